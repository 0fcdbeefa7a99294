"""The code in the guides runs, block after block, as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tail import PATIENCE

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
NEEDS = {
    "pytorch": "torch",
    "huggingface": "transformers",
    "lightning": "lightning",
    "avalanche": "avalanche",
}


def code(guide: str) -> str:
    text = (GUIDES / f"{guide}.md").read_text(encoding="utf-8")
    found = "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert re.search(r"^assert .*\.steps ==", found, re.MULTILINE), "a guide says what to expect"
    return found


@pytest.mark.filterwarnings("ignore")  # the trainers' advice about workers and loggers
@pytest.mark.parametrize("guide", NEEDS)
def test_guide(
    guide: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip(NEEDS[guide])
    monkeypatch.chdir(tmp_path)
    exec(compile(code(guide), f"{guide}.md", "exec"), {"__name__": guide})
    assert "mean factor" in capsys.readouterr().out, "print(handle) shows the mean factors"


def test_distributed_guide(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(code("distributed"), encoding="utf-8")
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*run, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Rise on gradient") == 1
