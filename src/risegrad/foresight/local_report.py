"""A local validation in words, as a table and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from risegrad.curvature.agreement import Agreement, breaking_point
from risegrad.curvature.page import document, html_table
from risegrad.curvature.summary import table
from risegrad.curvature.svg import scatter
from risegrad.curvature.validation import RULES
from risegrad.foresight.local import LocalResult

HEAD = ("curvature", "updates", "rank corr.", "damage corr.", "sign", "RISE<FO", "median error")


def local_summary(found: LocalResult) -> str:
    """Agreement of each curvature, where the quadratic picture ends, and the predicted draws."""
    lines = [f"local validation: {_head(found)}"]
    for count in found.settings.validation.steps:
        lines += ["", _updates_of(count)]
        lines += table([HEAD, *map(agreement_cells, found.agreements(count))])
    lines += ["", *table([ENDS_HEAD, *ends_rows(found)])]
    lines += ["", *table([SPREAD_HEAD, *spread_rows(found)])]
    return "\n".join(lines)


def _head(found: LocalResult) -> str:
    return (
        f"{found.blocks} blocks, {found.parameters:,} parameters, {len(found.outcomes)} updates at "
        f"{len(found.checkpoints)} checkpoints, {found.seconds:.0f} s"
    )


def _updates_of(steps: int) -> str:
    return f"updates of {steps} step{'s' if steps > 1 else ''}"


def agreement_cells(row: Agreement) -> tuple[str, ...]:
    return (
        row.curvature, str(row.count), _number(row.rank_correlation),
        _number(row.damage_correlation), f"{row.sign_agreement:.0%}",
        "-" if row.better_agreement is None else f"{row.better_agreement:.0%}",
        f"{row.relative_error:.2g}",
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


ENDS_HEAD = ("within 25% up to", "steps", "curvature", *RULES, "measured")


def ends_rows(found: LocalResult) -> list[tuple[str, ...]]:
    """The step sizes up to which each rule's updates are predicted within a quarter."""
    rows = []
    for point in found.checkpoints:
        measured = f"{min(point.step_sizes):.3g} to {max(point.step_sizes):.3g}"
        for count in found.settings.validation.steps:
            for curvature in found.curvatures:
                ends = (breaking_point(point.outcomes, curvature, count, rule) for rule in RULES)
                sizes = ("none" if end is None else f"{end:.3g}" for end in ends)
                rows.append((f"checkpoint {point.steps}", str(count), curvature, *sizes, measured))
    return rows


SPREAD_HEAD = ("RISE draws", "step size", "mean", "predicted", "std", "predicted", "score")


def spread_rows(found: LocalResult) -> list[tuple[str, ...]]:
    return [
        (f"checkpoint {point.steps}", f"{row.drawn.step_size:.3g}", f"{row.drawn.mean:.3g}",
         f"{row.mean:.3g}", f"{row.drawn.std:.2g}", f"{row.std:.2g}", f"{row.score:+.1f}")
        for point in found.checkpoints for row in point.predicted
    ]  # fmt: skip


def local_page(found: LocalResult, title: str = "Local validation") -> str:
    """Scatter plots of prediction against truth, one per curvature and number of steps."""
    parts = [f"<p>{escape(_head(found))}</p>"]
    for count in found.settings.validation.steps:
        plots = "".join(_plot(found, curvature, count) for curvature in found.curvatures)
        parts += [
            f"<h2>{_updates_of(count).capitalize()}</h2>",
            html_table(HEAD, map(agreement_cells, found.agreements(count))),
            f'<div class="row">{plots}</div>',
        ]
    parts += [
        "<h2>Where the quadratic picture breaks</h2>",
        html_table(ENDS_HEAD, ends_rows(found)),
        "<h2>Draws of RISE and their predicted moments</h2>",
        html_table(SPREAD_HEAD, spread_rows(found)),
        GLOSSARY,
    ]
    return document(title, parts)


GLOSSARY = """<p>Every update is a point: what the historical loss did, against what the curvature
had predicted from the same batches. Rank corr.: of predicted and true change; damage corr.: of
their second-order parts. Sign: updates whose direction was foretold; RISE&lt;FO: draws for which it
was foretold whether RISE would do better than FO. Score: distance of the drawn mean from the
predicted one in standard errors.</p>"""


def _plot(found: LocalResult, curvature: str, count: int) -> str:
    rows = [o for o in found.outcomes if o.steps == count]
    series: dict[str, Sequence[tuple[float, float]]] = {
        rule: [(o.predicted(curvature), o.true) for o in rows if o.rule == rule] for rule in RULES
    }
    return scatter(series, curvature, "predicted change", "true change")
