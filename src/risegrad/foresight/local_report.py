"""A local validation in words, as a table and as a page."""

from __future__ import annotations

from risegrad.common.text_columns import text_columns
from risegrad.foresight.local_agreement import Agreement, breaking_point
from risegrad.foresight.local_validation import LocalResult
from risegrad.pages.charts import CalibrationPoint, calibration
from risegrad.pages.looks import Palette
from risegrad.pages.page import ChartFigure, Page, Part, Row, html
from risegrad.pages.tables import text_table

QUESTION = "Do the predicted changes of the historical loss come true?"
GLOSSARY = (
    ("FO", "first-order: steps along the exact gradient"),
    ("Adam's signs", "the signs of the gradient, at a rate that keeps FO's first-order progress"),
    ("informed", "the gradient as a memory of the earlier tasks shapes it"),
    ("rank corr.", "of predicted and true change, by ranks"),
    ("damage corr.", "of the second-order parts of both"),
    ("sign", "updates whose direction was predicted right"),
    ("RISE<FO", "draws for which it was predicted right whether RISE does better than FO"),
    ("score", "distance of the drawn mean from the predicted one in standard errors"),
)

HEAD = ("curvature", "updates", "rank corr.", "damage corr.", "sign", "RISE<FO", "median error")


def local_summary(found: LocalResult) -> str:
    """Agreement of each curvature, where the quadratic picture ends, and the predicted draws."""
    lines = [f"local validation: {_head(found)}"]
    for count in found.settings.validation.steps:
        lines += ["", _updates_of(count)]
        lines += text_columns([HEAD, *map(agreement_cells, found.agreements(count))])
    lines += ["", *text_columns([ends_head(found), *ends_rows(found)])]
    lines += ["", *text_columns([SPREAD_HEAD, *spread_rows(found)])]
    return "\n".join(lines)


def _head(found: LocalResult) -> str:
    return (
        f"{found.blocks} blocks, {found.parameters:,} parameters, {len(found.outcomes)} updates at "
        f"{len(found.checkpoints)} checkpoints, {found.seconds:.0f} s"
    )


def _updates_of(steps: int) -> str:
    return f"updates of {steps} step{'s' if steps > 1 else ''}"


def agreement_cells(row: Agreement) -> tuple[str, ...]:
    """The cells of one curvature's row."""
    return (
        row.curvature, str(row.count), _number(row.rank_correlation),
        _number(row.damage_correlation), f"{row.sign_agreement:.0%}",
        "-" if row.better_agreement is None else f"{row.better_agreement:.0%}",
        f"{row.relative_error:.2g}",
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def ends_head(found: LocalResult) -> tuple[str, ...]:
    """The head of ``ends_rows``: a column for each rule that was measured."""
    return ("within 25% up to", "steps", "curvature", *found.rules, "measured")


def ends_rows(found: LocalResult) -> list[tuple[str, ...]]:
    """The step sizes up to which each rule's updates are predicted within a quarter."""
    rows = []
    for point in found.checkpoints:
        measured = f"{min(point.step_sizes):.3g} to {max(point.step_sizes):.3g}"
        for count in found.settings.validation.steps:
            for curvature in found.curvatures:
                ends = (
                    breaking_point(point.outcomes, curvature, count, rule) for rule in found.rules
                )
                sizes = ("none" if end is None else f"{end:.3g}" for end in ends)
                rows.append((f"checkpoint {point.steps}", str(count), curvature, *sizes, measured))
    return rows


SPREAD_HEAD = ("RISE draws", "step size", "mean", "predicted", "std", "predicted", "score")


def spread_rows(found: LocalResult) -> list[tuple[str, ...]]:
    """Mean and deviation over the draws of RISE: predicted and true."""
    return [
        (f"checkpoint {point.steps}", f"{row.drawn.step_size:.3g}", f"{row.drawn.mean:.3g}",
         f"{row.mean:.3g}", f"{row.drawn.std:.2g}", f"{row.std:.2g}", f"{row.score:+.1f}")
        for point in found.checkpoints for row in point.predicted
    ]  # fmt: skip


def local_page(found: LocalResult, title: str = "Local validation") -> str:
    """A local validation as one HTML file."""
    words = "; ".join(filter(None, [found.settings.subject, _head(found)]))
    return html(Page(title, local_parts(found), words, glossary=GLOSSARY))


def local_parts(found: LocalResult) -> tuple[Part, ...]:
    """Predictions against truth for each number of steps; the first part has no title."""
    first, *others = (_part(found, count) for count in found.settings.validation.steps)
    ends = text_table(
        "Step sizes up to which updates are predicted within 25 %", ends_head(found),
        ends_rows(found),
    )  # fmt: skip
    draws = text_table(
        "Changes of the historical loss over draws", SPREAD_HEAD, spread_rows(found)
    )  # fmt: skip
    return (
        Part("", first.blocks, QUESTION, headline(found)),
        *others,
        Part("Where the quadratic picture ends", (ends,)),
        Part("Draws of RISE and their predicted moments", (draws,)),
    )


def headline(found: LocalResult) -> str:
    """How well the best curvature ranks the updates, in one sentence."""
    count = found.settings.validation.steps[0]
    ranked = [row for row in found.agreements(count) if row.rank_correlation is not None]
    if not ranked:
        return "There are too few updates to say how well they are predicted."
    best = max(ranked, key=lambda row: row.rank_correlation or 0.0)
    return (
        f"For {_updates_of(count)}, {best.curvature} predicts best: rank correlation "
        f"{_number(best.rank_correlation)} with the true changes, the sign right in "
        f"{best.sign_agreement:.0%} of {best.count}."
    )


def _part(found: LocalResult, count: int) -> Part:
    plots = tuple(_figure(found, curvature, count) for curvature in found.curvatures)
    table = text_table(f"Agreement, {_updates_of(count)}", HEAD,
                       map(agreement_cells, found.agreements(count)))  # fmt: skip
    return Part(_updates_of(count).capitalize(), (Row(plots), table))


def _figure(found: LocalResult, curvature: str, count: int) -> ChartFigure:
    rows = [o for o in found.outcomes if o.steps == count]
    points = [
        CalibrationPoint(o.rule, o.predicted(curvature), o.true,
                         f"{o.rule}, step size {o.step_size:.3g}: predicted "
                         f"{o.predicted(curvature):.3g}, true {o.true:.3g}")
        for rule in found.rules for o in rows if o.rule == rule
    ]  # fmt: skip
    table = text_table(
        f"Updates predicted by {curvature}",
        ("rule", "step size", "predicted change", "true change"),
        ((p.rule, f"{p.step_size:.3g}", f"{p.predicted(curvature):.3g}", f"{p.true:.3g}")
         for p in rows),
    )  # fmt: skip
    title = f"{curvature}: predicted and true change of the historical loss, {_updates_of(count)}"
    words = f"Points of {len(points)} updates. {title}; on the dashed line the two are equal."
    note = "On the dashed line the prediction is exact. Axes are linear near zero."
    chart = calibration(points, Palette(found.rules))
    return ChartFigure(f"local-{curvature}-{count}", title, words, chart, table, note)
