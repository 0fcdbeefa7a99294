"""Was the foresight right? In words, as tables and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from risegrad.common.text_columns import text_columns
from risegrad.foresight.foresight_agreement import (
    FEWEST,
    ORDERED,
    HorizonAgreement,
    Ranked,
    ScoreAgreement,
    good_until,
)
from risegrad.foresight.foresight_result import ForesightResult
from risegrad.pages.charts import CalibrationPoint, calibration
from risegrad.pages.looks import Palette
from risegrad.pages.page import ChartFigure, Fold, ItemList, Page, Part, Row, html
from risegrad.pages.tables import Table, text_table

QUESTION = "Did predictions from before a session come true, and how far ahead?"
HORIZON_HEAD = ("steps ahead", "sessions", "rank corr. with loss", "with forgetting",
                "pairs in order", "predicted/true")  # fmt: skip
SCORE_HEAD = ("score", "steps", "blocks", "rank corr. with benefit", "beyond a smaller step")
GLOSSARY = (
    ("FO", "first-order: steps along the exact gradient"),
    ("with loss", "rank correlation of the predicted and the true change of the earlier tasks'"
     " loss, with its 95 % interval"),
    ("with forgetting", "the same for the points of accuracy that the session then cost"),
    ("pairs in order", "pairs of methods, of one seed and task, that were ordered right"),
    ("benefit", "true loss after FO less after shaping one block alone, at equal step length"),
    ("beyond a smaller step", "the same against the block shortened to equal mean progress"),
    ("S, D, R, C", "the paper's block scores: shaping, damage density, flat signal, coupling"),
)  # fmt: skip


def foresight_summary(found: ForesightResult) -> str:
    """For a terminal."""
    rows = [HORIZON_HEAD, *map(horizon_cells, found.horizons)]
    lines = [*findings(found), "", *text_columns(rows)]
    if found.blocks:
        lines += ["", *text_columns([SCORE_HEAD, *map(score_cells, found.scores)])]
    return "\n".join(lines)


def findings(found: ForesightResult) -> list[str]:
    """What may be said, also where it does not hold."""
    return [_headline(found), *_score_words(found)]


def _headline(found: ForesightResult) -> str:
    rows = found.horizons
    first, last = rows[0], rows[-1]
    return (
        f"Over {first.correlation.count} sessions, predicted and true change of the earlier tasks' "
        f"loss have rank correlation {first.correlation} {_ahead(first)} and {last.correlation} "
        f"{_ahead(last)}; with the points then forgotten {last.forgetting}. {_reach(rows)}"
    )


def _reach(rows: Sequence[HorizonAgreement]) -> str:
    until = good_until(rows)
    pairs = f"{ORDERED:.0%} or more of all pairs of methods"
    if until is None:
        return f"The local picture does not put {pairs} in order, not even {_ahead(rows[0])}."
    far = "up to the session's end" if until == 0 else f"up to {until} steps ahead"
    return f"The local picture puts {pairs} in order {far}."


def _ahead(row: HorizonAgreement) -> str:
    if row.steps == 0:
        return "at the session's end"
    return "one step ahead" if row.steps == 1 else f"{row.steps} steps ahead"


def _score_words(found: ForesightResult) -> Iterator[str]:
    for row in found.scores:
        if row.benefit.value is None:
            continue
        what = f"Block score {row.score}, {row.steps} step{'s' * (row.steps > 1)}"
        if row.benefit.too_few:
            yield f"{what}: {row.benefit.count} blocks are too few to tell; {FEWEST} are needed."
            continue
        yield (
            f"{what}: {_holds(row.benefit)} the benefit of shaping single blocks (rank correlation "
            f"{row.benefit}), {_holds(row.beyond)} the benefit beyond a smaller step "
            f"({row.beyond})."
        )


def _holds(found: Ranked) -> str:
    if found.low is None or found.high is None or found.low <= 0 <= found.high:
        return "does not tell"
    return "tells" if found.low > 0 else "tells the opposite of"


def horizon_cells(row: HorizonAgreement) -> tuple[str, ...]:
    """The cells of one horizon."""
    ordered = "-" if row.ordered is None else f"{row.ordered:.0%}"
    return (
        str(row.steps) if row.steps else "session's end", str(row.correlation.count),
        str(row.correlation), str(row.forgetting), ordered, f"{row.ratio:.2g}",
    )  # fmt: skip


def score_cells(row: ScoreAgreement) -> tuple[str, ...]:
    """The cells of one block score."""
    count = str(row.benefit.count)
    return row.score, str(row.steps), count, str(row.benefit), str(row.beyond)


def foresight_page(found: ForesightResult) -> str:
    """One HTML file."""
    title = f"Was it right? {found.title or found.experiment}"
    return html(Page(title, foresight_parts(found), _words(found), glossary=GLOSSARY))


def _words(found: ForesightResult) -> str:
    seeds = len({session.seed for session in found.sessions})
    return (
        f"{found.experiment}: {len(found.methods)} methods, {seeds} seeds, "
        f"{len(found.sessions)} sessions, {found.seconds:.0f} s"
    )


def foresight_parts(found: ForesightResult) -> tuple[Part, ...]:
    """Calibration and agreement first, then single blocks, then every session."""
    headline, *others = findings(found)
    plots = Row(tuple(_figure(found, row.steps) for row in found.horizons))
    table = text_table("By steps ahead", HORIZON_HEAD, map(horizon_cells, found.horizons))
    parts = [Part("", (plots, table), QUESTION, headline)]
    if found.blocks:
        scores = text_table("Scores and benefits", SCORE_HEAD, map(score_cells, found.scores))
        words = ItemList("In words", tuple(others))
        blocks = Fold("Every block", (_block_table(found),))
        asked = "Does a block's score tell whether shaping it helps?"
        parts.append(Part("Single blocks", (scores, words, blocks), asked))
    return (*parts, Part("Sessions", (Fold("Every session", (_session_table(found),)),)))


def _figure(found: ForesightResult, steps: int) -> ChartFigure:
    rows = [(s, m) for s in found.sessions for m in s.moments if m.steps == steps]
    points = [
        CalibrationPoint(s.method, m.predicted, m.true,
                         f"{s.label}, task {s.task}, seed {s.seed}: predicted {m.predicted:.3g}, "
                         f"true {m.true:.3g}")
        for s, m in rows
    ]  # fmt: skip
    when = f"{steps} steps ahead" if steps else "at the session's end"
    title = f"Predicted and true change of the earlier tasks' loss, {when}"
    table = text_table(title, ("row", "task", "seed", "predicted", "true"), (
        (s.label, str(s.task), str(s.seed), f"{m.predicted:.3g}", f"{m.true:.3g}") for s, m in rows
    ))  # fmt: skip
    words = f"Points of {len(points)} sessions. {title}; on the dashed line the two are equal."
    note = "On the dashed line the prediction is exact. Axes are linear near zero."
    chart = calibration(points, Palette(found.methods))
    return ChartFigure(f"foresight-{steps}", title, words, chart, table, note)


def _block_table(found: ForesightResult) -> Table:
    head = ("block", "d", "steps", "S", "D", "R", "C", "benefit", "beyond", "± ")
    rows = (
        (b.name, str(b.d), str(b.steps), f"{b.S:.2g}", f"{b.D:.2g}", _maybe(b.R), _maybe(b.C),
         f"{b.benefit:.2g}", f"{b.beyond:.2g}", f"{b.error:.1g}")
        for b in found.blocks
    )  # fmt: skip
    return text_table("Blocks that were shaped alone", head, rows)


def _session_table(found: ForesightResult) -> Table:
    head = ("row", "seed", "task", "steps", "old loss", "predicted", "true", "forgotten", "learned")
    rows = []
    for s in found.sessions:
        last = s.moments[-1]
        rows.append((
            s.label, str(s.seed), str(s.task), str(s.length), f"{s.historical_loss:.3g}",
            f"{last.predicted:.3g}", f"{last.true:.3g}", f"{s.forgetting:.1f}", f"{s.learned:.1f}",
        ))  # fmt: skip
    return text_table("Sessions, at their end", head, rows)


def _maybe(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"
