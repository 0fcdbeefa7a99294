"""Execute the notebooks in this folder and write them with their outputs, and as pages of the docs.

    python notebooks/run_notebooks.py                # all, each in a process of its own
    python notebooks/run_notebooks.py first_steps    # one

A notebook is a list of cells in JSON, and these need no more of Jupyter than printed text, figures
and the value of a cell's last line. So this runs them: nothing has to be installed for it, and the
docs need no plugin. In Jupyter they run as well.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "notebooks"


def names() -> list[str]:
    """The notebooks of this folder."""
    return sorted(path.stem for path in HERE.glob("*.ipynb"))


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with fresh outputs; its cells run here, one after another."""
    import matplotlib

    matplotlib.use("agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(cells, 1):
        cell["execution_count"] = count
        cell["outputs"] = _outputs("".join(cell["source"]), names, count)
    return notebook


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    body = ast.parse(source)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(body, f"cell {count}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)
    found = []
    if text := printed.getvalue():
        found.append({"output_type": "stream", "name": "stdout", "text": _lines(text)})
    found += [_shown("display_data", data) for data in _figures()]
    if value is not None and not source.rstrip().endswith(";"):  # Jupyter's way to show nothing
        found.append(_shown("execute_result", _rich(value)) | {"execution_count": count})
    return found


def _shown(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"output_type": kind, "metadata": {}, "data": data}


def _rich(value: Any) -> dict[str, Any]:
    """As text, and as the object shows itself in notebooks, if it does."""
    data: dict[str, Any] = {"text/plain": _lines(repr(value))}
    if callable(getattr(value, "savefig", None)):
        data["image/png"] = _png(value)
    elif callable(getattr(value, "_repr_html_", None)):
        data["text/html"] = _lines(value._repr_html_())
    return data


def _figures() -> list[dict[str, Any]]:
    """The figures that a cell has left open in pyplot, which Jupyter shows, too."""
    from matplotlib import pyplot

    found = [{"image/png": _png(pyplot.figure(number))} for number in pyplot.get_fignums()]
    pyplot.close("all")
    return found


def _png(figure: Any) -> str:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=90, bbox_inches="tight", metadata={"Software": None})
    return base64.b64encode(stream.getvalue()).decode()


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def page(name: str, notebook: dict[str, Any]) -> dict[str, str | bytes]:
    """The files of a page in the docs: Markdown, and each figure beside it."""
    parts: list[str] = []
    files: dict[str, str | bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).removesuffix(";")
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            parts.append(_on_page(output, name, files))
    parts.append(f"*This page is `notebooks/{name}.ipynb` with the outputs of its last execution.*")
    return {f"{name}.md": "\n\n".join(parts) + "\n"} | files


def _on_page(output: dict[str, Any], name: str, files: dict[str, str | bytes]) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        file = f"{name}-{len(files) + 1}.png"
        files[file] = base64.b64decode(data["image/png"])
        return f"![What the cell above draws]({file})"
    html = "".join(data.get("text/html", []))
    if html.startswith(("<table", "<div>\n<table")):  # whole pages stay out
        return html
    text = "".join(output.get("text") or data["text/plain"]).rstrip()
    return f"```text\n{text}\n```"


def read(name: str) -> dict[str, Any]:
    """A notebook of this folder as it is stored."""
    found: dict[str, Any] = json.loads((HERE / f"{name}.ipynb").read_text(encoding="utf-8"))
    return found


def write(name: str) -> None:
    """Execute one notebook in a folder of its own; store it and its page."""
    notebook = read(name)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        execute(notebook)
    store(name, notebook)


def store(name: str, notebook: dict[str, Any]) -> None:
    """A notebook with its outputs, and its page."""
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    (HERE / f"{name}.ipynb").write_text(text, encoding="utf-8")
    PAGES.mkdir(exist_ok=True)
    for file, content in page(name, notebook).items():
        data = content.encode() if isinstance(content, str) else content
        (PAGES / file).write_bytes(data)


if __name__ == "__main__":
    chosen = sys.argv[1:] or names()
    if len(chosen) == 1:
        write(chosen[0])
    else:  # a process each: none sees what another has imported or set
        for each in chosen:
            command = [sys.executable, __file__, each]
            subprocess.run(command, check=True)
