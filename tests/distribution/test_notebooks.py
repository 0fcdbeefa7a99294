"""The notebooks run from top to bottom, and their pages in the docs are what they gave."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from continual.chat import tiny_chat
from notebooks import run_notebooks
from tail import by_default

NEEDS = {
    "first_steps": ("peft", "transformers", "datasets", "sklearn"),
    "keep_trl": ("trl", "peft", "transformers", "datasets"),
}
RUN = """
import json, sys
from notebooks.run_notebooks import execute, read
print("\\n" + json.dumps(execute(read(sys.argv[1]))))
"""


SHORTEST = "paper_in_pictures"
LONGER = [name for name in run_notebooks.names() if name != SHORTEST]


@pytest.mark.parametrize("name", by_default(SHORTEST, slow=LONGER))
def test_a_notebook_runs_and_shows_something(name: str, tmp_path: Path) -> None:
    for package in ("matplotlib", *NEEDS.get(name, ())):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    command = [sys.executable, "-c", RUN.replace("import json, sys", HEAD), name]
    where = os.environ | (small_chat(tmp_path / "small") if name == "keep_trl" else {})
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=where, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cells = json.loads(done.stdout.splitlines()[-1])["cells"]
    kinds = [[o["output_type"] for o in cell["outputs"]] for cell in cells if "outputs" in cell]
    stored = [cell for cell in run_notebooks.read(name)["cells"] if "outputs" in cell]
    assert kinds == [[o["output_type"] for o in cell["outputs"]] for cell in stored]
    assert any(kinds)


def small_chat(folder: Path) -> dict[str, str]:
    """A chat model that trains in a moment, as the notebook's variables name it."""
    tiny_chat.llama().save_pretrained(folder)
    tiny_chat.tokenizer().save_pretrained(folder)
    return {"CHAT_MODEL": str(folder), "CHAT_STEPS": "4", "CHAT_KEPT": "8"}


def test_the_chat_notebook_names_a_model_of_the_hub_and_shows_no_path_of_a_machine() -> None:
    first, *cells = run_notebooks.read("keep_trl")["cells"]
    assert first["cell_type"] == "code"
    assert "pip" in "".join(first["source"])
    assert any('"CHAT_MODEL", "HuggingFaceTB/' in "".join(cell["source"]) for cell in cells)
    outputs = json.dumps([cell.get("outputs") for cell in cells])
    assert not re.search(r"/(?:home|root|tmp|work|models)/", outputs)


HEAD = f"import json, sys; sys.path.insert(0, {str(run_notebooks.HERE.parent)!r})"


@pytest.mark.parametrize("name", run_notebooks.names())
def test_the_page_is_the_notebook(name: str) -> None:
    """``python notebooks/run_notebooks.py`` writes both."""
    for file, content in run_notebooks.page(name, run_notebooks.read(name)).items():
        data = content.encode() if isinstance(content, str) else content
        assert (run_notebooks.PAGES / file).read_bytes() == data, f"docs/notebooks/{file} is old"


def test_the_runner_shows_what_a_notebook_shows() -> None:
    drawn = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
    source = ["print('printed')\n", drawn, "3 + 4"]
    cell = {"cell_type": "code", "source": source}
    outputs = run_notebooks.execute({"cells": [cell]})["cells"][0]["outputs"]
    assert outputs[0]["text"] == ["printed\n"]
    assert outputs[1]["data"]["image/png"]
    assert outputs[2]["data"]["text/plain"] == ["7"]
