"""The sweep over the number of queries q: each metric against q, the paper's points where known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from risegrad.lab.report.contents import query_sweep
from risegrad.lab.report.estimates import Spread
from risegrad.lab.report.markup import Markup, tag
from risegrad.lab.report.metric_names import PAPER, Metric
from risegrad.lab.report.paper_tables import Figure
from risegrad.lab.report.plots.canvas import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    Mark,
    canvas,
    frame,
    mark,
    path,
    series,
)
from risegrad.lab.report.plots.figure import figure
from risegrad.lab.report.plots.scale import Scale, linear, powers
from risegrad.lab.report.rows import Experiment, ResultRow
from risegrad.lab.report.text import plural, spread_text


def sweeps(experiment: Experiment) -> Iterator[tuple[str, list[ResultRow]]]:
    """Rows of the same rule and host that differ in q, in the order of q."""
    groups: dict[tuple[str, str], list[ResultRow]] = defaultdict(list)
    for row in experiment.rows:
        run = row.runs[0]
        if query_count(row) is not None:
            key = str(run.setting("rule", "name")), str(run.setting("host", "name"))
            groups[key].append(row)
    for (rule, host), rows in groups.items():
        if len({query_count(row) for row in rows}) > 1:
            name = f"{rule} on {host}" if host != "None" else rule
            yield f"{name} in {experiment.name}", sorted(rows, key=lambda r: query_count(r) or 0)


def query_count(row: ResultRow) -> int | None:
    q = row.runs[0].setting("rule", "q")
    return q if isinstance(q, int) and not isinstance(q, bool) and 0 < q < 2**53 else None


def query_figures(
    rows: Sequence[ResultRow], of: str, identities: Iterator[str]
) -> Iterator[Markup]:
    """Accuracies and forgetting apart: they differ too much in size for one scale."""
    for metrics in (PAPER[:2], PAPER[2:]):
        curves = [curve for metric in metrics for curve in _curves(rows, metric)]
        if curves:
            title = f"Number of queries and {' and '.join(m.words for m in metrics)}: {of}"
            table = query_sweep(rows, of)
            legend = [(curve.index, curve.label) for curve in curves]
            yield figure(title, _plot(curves, title), table, next(identities), legend)


@dataclass(frozen=True)
class Curve:
    label: str
    index: int
    points: list[tuple[int, Spread | Figure]]

    @property
    def kind(self) -> str:
        return "line" if isinstance(self.points[0][1], Spread) else "line dashed"


def _curves(rows: Sequence[ResultRow], metric: Metric) -> Iterator[Curve]:
    """Ours, and the paper's where rows have a place there."""
    position = PAPER.index(metric)
    known = [(q, row) for row in rows if (q := query_count(row)) is not None]
    ours: list[tuple[int, Spread | Figure]] = [
        (q, found) for q, row in known if (found := row.metric(metric.key))
    ]
    paper: list[tuple[int, Spread | Figure]] = [
        (q, row.figures[position]) for q, row in known if row.figures
    ]
    if ours:
        yield Curve(metric.words, position, ours)
    if ours and paper:
        # Four on, the shapes are hollow.
        yield Curve(f"{metric.words} (paper)", position + 4, paper)


def _plot(curves: Sequence[Curve], title: str) -> Markup:
    points = [point for curve in curves for point in curve.points]
    x = powers((float(q) for q, _ in points), LEFT, RIGHT)
    ends = (s.mean + sign * (s.sd or 0) for _, s in points for sign in (-1, 1))
    y = linear(ends, BOTTOM, TOP)
    return canvas(
        frame(x, y, "queries q", "percent"),
        *(series(curve.index, *_drawn(curve, x, y)) for curve in curves),
        words=f"Line plot. {title}, at {plural(len(x.ticks), 'value')} of q.",
        kind="queries",
    )


def _drawn(curve: Curve, x: Scale, y: Scale) -> list[Markup]:
    marks = [
        Mark(x(q), y(s.mean), f"q = {q}: {curve.label} {spread_text(s)} %", curve.index, q)
        for q, s in curve.points
    ]
    return [
        tag("path", d=path([(m.x, m.y) for m in marks]), class_=curve.kind),
        *(_bar(x(q), s, y) for q, s in curve.points if s.sd),
        *(mark(m, curve.index) for m in marks),
    ]


def _bar(x: float, found: Spread | Figure, y: Scale) -> Markup:
    sd = found.sd or 0.0
    return tag("line", x1=x, x2=x, y1=y(found.mean - sd), y2=y(found.mean + sd), class_="spread")
