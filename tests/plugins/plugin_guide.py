"""The files of the guide on plugins, taken from its page: what people copy is what is tested."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "plugins.md"
BLOCK = re.compile(r"```(?:python|toml)\n# (my_\w+\.py|mine\.toml)\n(.*?)```", re.DOTALL)
PYTHON = ("my_host.py", "my_rule.py", "my_stream.py")


def write_guide(folder: Path) -> None:
    """The guide's files, each under its name."""
    found = dict(BLOCK.findall(PAGE.read_text(encoding="utf-8")))
    assert set(found) == {*PYTHON, "mine.toml"}
    for name, text in found.items():
        (folder / name).write_text(text, encoding="utf-8")
