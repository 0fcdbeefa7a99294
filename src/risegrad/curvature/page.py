"""One self-contained HTML page: text, tables and SVG, no scripts and nothing from the network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from risegrad.curvature.estimates import Estimate
from risegrad.curvature.report import BlockReport, Diagnosis
from risegrad.curvature.summary import BLOCK_HEAD, advice, block_cells, head_lines, rule_rows
from risegrad.curvature.svg import Bar, bars

STYLE = """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; font-size: 13px }
th, td { padding: 2px 10px; text-align: right; border-bottom: 1px solid #8884 }
th:first-child, td:first-child { text-align: left }
.wide { overflow-x: auto }
.row { display: flex; flex-wrap: wrap; gap: 1rem }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0 }
"""
MOST_BARS = 20


def document(title: str, parts: Iterable[str]) -> str:
    """The frame around what a page shows."""
    body = "\n".join(parts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n{body}\n</body>\n</html>\n"
    )


def diagnosis_page(found: Diagnosis, title: str = "Diagnosis before training") -> str:
    """Verdicts first, then what they rest on."""
    sentences = [*found.verdicts, advice(found)]
    return document(
        title,
        [
            *(f"<p>{escape(line)}</p>" for line in head_lines(found)),
            "<h2>Verdicts</h2>",
            "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in sentences) + "</ul>",
            "<h2>Rules</h2>",
            html_table(("rule", "damage", "deviation", "loss change"), rule_rows(found)),
            _rules_plot(found),
            "<h2>Blocks</h2>",
            _curvature_plot(found),
            _scores_plot(found),
            html_table(BLOCK_HEAD, [block_cells(block) for block in found.blocks]),
            GLOSSARY,
        ],
    )


GLOSSARY = """<p>Damage: predicted second-order change of the historical loss by one step.
Deviation: of one draw. lambda_dir: curvature along the block's gradient; lambda_avg: average over
directions (the damage density D). S: what shaping removes inside the block; C: sensitivity to
couplings with other blocks; R: how much of the signal lies in flat directions, between two bounds.
± is one standard error of the estimate.</p>"""


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table>\n<tr>{cells}</tr>\n{body}\n</table></div>'


def _bar(value: Estimate | None) -> Bar:
    return Bar(float("nan")) if value is None else Bar(value.value, value.error)


def _rules_plot(found: Diagnosis) -> str:
    t = found.totals
    rows = {
        "FO": [Bar(t.fo.value)],
        "scaled FO": [Bar(t.scaled_fo.value)],
        "RISE": [Bar(t.rise.value, t.rise_std.value)],
        "covariance noise": [Bar(t.covariance_noise.value, t.covariance_noise_std.value)],
    }
    return bars(rows, ["damage"], "Predicted damage (whiskers: deviation of one draw)")


def _largest(blocks: Sequence[BlockReport]) -> list[BlockReport]:
    return sorted(blocks, key=lambda block: -abs(block.S.value))[:MOST_BARS]


def _curvature_plot(found: Diagnosis) -> str:
    rows = {b.name: [_bar(b.lambda_dir), _bar(b.lambda_avg)] for b in _largest(found.blocks)}
    return bars(rows, ["lambda_dir", "lambda_avg"], "Curvature along the gradient and on average")


def _scores_plot(found: Diagnosis) -> str:
    rows = {b.name: [_bar(b.S), _bar(b.C)] for b in _largest(found.blocks)}
    return bars(rows, ["S", "C"], "Shaping score and coupling score")
