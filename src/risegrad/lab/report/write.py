"""The three files of a report, each written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from risegrad.files import write_text
from risegrad.lab.report.latex import latex
from risegrad.lab.report.markdown import markdown
from risegrad.lab.report.page import page
from risegrad.lab.report.report import Report


def write_report(report: Report, out: Path) -> list[Path]:
    """The page at ``out``, Markdown and LaTeX beside it; returns the paths.

    All three texts are made before the first is written, so that a failure leaves the old ones.
    """
    texts = {
        out: page(report),
        out.with_suffix(".md"): markdown(report),
        out.with_suffix(".tex"): latex(report),
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_text(path, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise RuntimeError(
            f"--out must be a place that can be written, got {out} ({reason})"
        ) from error
    return list(texts)
