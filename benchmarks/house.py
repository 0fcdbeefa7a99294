"""How heavy the house is: ``python -m benchmarks.house`` prints files, code lines and walks.

Code lines have no blanks, comments and docstrings. A walk is traced, not guessed: which modules
of ours a step, ``remember`` and a run with its page go through, imports not counted.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

SOURCE = Path(__file__).resolve().parents[1] / "src"
LEFT_OUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def code_lines(text: str) -> set[int]:
    """The numbers of the lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LEFT_OUT:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    return lines - {n for start, end in _docstrings(ast.parse(text)) for n in range(start, end + 1)}


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """Texts that stand alone: docstrings, those of fields too."""
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            yield text.lineno, text.end_lineno or text.lineno


def import_lines(text: str, code: set[int]) -> int:
    """How many of the code lines are import statements."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) and node.end_lineno is not None:
            found |= {*range(node.lineno, node.end_lineno + 1)}
    return len(found & code)


def rooms() -> Iterator[tuple[str, int, int, int]]:
    """Room, files, code lines, import lines."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        code, parts = code_lines(text), path.relative_to(SOURCE).parts
        for room in (parts[0], "/".join(parts[:2]) if len(parts) > 2 else f"{parts[0]}/(root)"):
            for place, number in enumerate((1, len(code), import_lines(text, code))):
                totals[room][place] += number
    for room in sorted(totals):
        yield room, *totals[room]  # type: ignore[misc]


def modules_of(work: Callable[[], object]) -> list[str]:
    """Our modules in which a function runs while ``work`` does."""
    found: set[str] = set()

    def note(frame: object, event: str, _: object) -> None:
        file = frame.f_code.co_filename  # type: ignore[attr-defined]
        if event == "call" and file.startswith(str(SOURCE)):
            found.add(str(Path(file).relative_to(SOURCE)))

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return sorted(found)


def walks() -> Iterator[tuple[str, list[str]]]:
    """What a step, a memory and a run walk through."""
    import torch
    from torch import nn

    import risegrad

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    batches = [(torch.randn(8, 8), torch.randint(4, (8,))) for _ in range(4)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    risegrad.attach(optimizer, risegrad.Rise(keep=0.5), params=model.named_parameters())
    nn.functional.cross_entropy(model(batches[0][0]), batches[0][1]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()  # what is made once is made
    yield "a RISE step", modules_of(optimizer.step)
    memory = risegrad.remember(model, batches)  # what is imported once is imported
    yield "remember", modules_of(lambda: risegrad.remember(model, batches))
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    informed = risegrad.Informed(memory)
    risegrad.attach(other, informed, params=model.named_parameters(), on="update")
    other.step()
    yield "an informed step", modules_of(other.step)
    yield "a run until its page", modules_of(run_and_report())


def run_and_report() -> Callable[[], object]:
    """An informed run of turned digits, from its file to its page; done once before."""
    from riselab.records.record import read_records
    from riselab.report.builder import build, write_report
    from riselab.running.plan import plan_runs
    from riselab.running.worker import execute, order_for

    def work() -> None:
        with TemporaryDirectory() as name:
            out = Path(name)
            changes = ["seeds=[0]", "adapter.epochs=1"]
            for cell in plan_runs("turned-digits", changes, ["informed"]).cells[:1]:
                execute(order_for(cell, out))
            write_report(build(*read_records([out])), out / "report.html")

    work()
    return work


def closure(module: str) -> int:
    """How many of our modules come in with one."""
    code = (
        f"import {module}, sys; print(sum(n.split('.')[0] in ('risegrad', 'riselab') "
        "for n in sys.modules))"
    )
    command = [sys.executable, "-c", code]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print everything."""
    print(f"{'room':<28}{'files':>6}{'code':>8}{'imports':>9}")
    for room, files, code, imports in rooms():
        print(f"{room:<28}{files:>6}{code:>8}{imports / max(code, 1):>9.0%}")
    for name, modules in walks():
        print(f"\n{name}: {len(modules)} modules\n  " + "\n  ".join(modules))
    print(f"\nimporting the Trainer's callbacks: {closure('risegrad.integrations.transformers')}")


if __name__ == "__main__":
    main()
