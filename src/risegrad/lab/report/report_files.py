"""The three files of a report, each written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from risegrad.common.atomic_files import write_text
from risegrad.lab.report.latex_tables import latex
from risegrad.lab.report.markdown_tables import markdown
from risegrad.lab.report.report_page import report_page
from risegrad.lab.report.report_parts import Report
from risegrad.pages.page_html import html
from risegrad.pages.vega_charts import save_figures


def write_report(report: Report, out: Path, figures: Path | None = None) -> list[Path]:
    """The page at ``out``, Markdown and LaTeX beside it; returns the paths of these three.

    All three texts are made before the first is written, so that a failure leaves the old ones.
    The charts go to the folder ``figures`` if there is one, each as SVG and as PNG.
    """
    page = report_page(report)
    texts = {
        out: html(page),
        out.with_suffix(".md"): markdown(report),
        out.with_suffix(".tex"): latex(report),
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, text in texts.items():
            write_text(path, text)
    except OSError as error:
        raise _unwritable("--out", out, error) from error
    if figures is not None:
        try:
            save_figures(page.figures(), figures)
        except OSError as error:
            raise _unwritable("--figures", figures, error) from error
    return list(texts)


def _unwritable(option: str, path: Path, error: OSError) -> RuntimeError:
    reason = error.strerror or str(error)
    return RuntimeError(f"{option} must be a place that can be written, got {path} ({reason})")
