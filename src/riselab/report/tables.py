"""The tables of one experiment: results, differences, costs, other scores, queries, choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from riselab.common.intervals import CONFIDENCE, interval, spread
from riselab.experiments.file import Choice, in_words
from riselab.pages.tables import (
    Column,
    Line,
    Section,
    Table,
    TableCell,
    by_section,
    number_cell,
    ranked,
    spread_cell,
)
from riselab.pages.text import number, plural
from riselab.records.fields import Record
from riselab.report.paper import METRICS
from riselab.report.rows import ReportedExperiment, ResultRow, seconds_per_session

PERCENT = f"{CONFIDENCE:.0%}"
IDLE = "learned nothing"
"""Said beside a row whose model is no better than one that was not trained."""


@dataclass(frozen=True)
class Metric:
    """A metric of the record, and what a report calls it."""

    key: str
    title: str
    words: str
    better: int
    """1 where higher is better, -1 where lower is, 0 where neither is"""
    meaning: str = ""
    """one line for a reader who meets the title for the first time"""
    alone: bool = True
    """False where the figure by itself names no best, because every smaller step improves it"""

    def column(self, group: str = "") -> Column:
        """A table's column; forgetting alone has no best."""
        return Column(self.title, group, self.better, self.words, self.alone)


KNOWN = (
    Metric("avg", "Avg", "average accuracy", 1,
           "average accuracy, as the paper defines it for the domain of the record"),
    Metric("last", "Last", "last accuracy", 1, "accuracy on all tasks after the last session"),
    Metric("forgetting", "Fgt", "forgetting", -1,
           "forgetting: points that old tasks lost until the end", alone=False),
    Metric("plasticity", "New", "new-task accuracy", 1,
           "new-task accuracy: on each task right after learning it"),
    Metric("backward_transfer", "BWT", "backward transfer", 1,
           "backward transfer: what later tasks changed for earlier ones", alone=False),
    Metric("forward_transfer", "FWT", "forward transfer", 1,
           "forward transfer: what earlier tasks changed for later ones before these were learned"),
)  # fmt: skip
AVG, LAST, FORGETTING, PLASTICITY, *_ = KNOWN
PAPER = (AVG, LAST, FORGETTING)
COMPARED = (*PAPER, PLASTICITY)
"""Backward transfer is left out: it nearly repeats forgetting with the other sign. Forward transfer
is too: few records have it."""


def results(experiment: ReportedExperiment) -> Table:
    """Every row with the metrics that the project knows, the paper's figures where it names some.

    Who learned nothing keeps everything: said beside the row, and never best of a column.
    """
    shown = [m for m in KNOWN if any(row.metric(m.key) for row in experiment.rows)]
    marks = ((row, ["baseline"] * row.baseline + [IDLE] * row.idle) for row in experiment.rows)
    lines = ((row.section, Line(row.label, (*_metrics(row, shown), _seeds(row)), ", ".join(mark)))
             for row, mark in marks)  # fmt: skip
    return ranked(
        Table(
            f"Results of {experiment.name} in percent: mean ± standard deviation over seeds",
            "Method",
            (*(m.column() for m in shown), SEEDS),
            by_section(lines),
            tuple(_beside_the_paper(experiment.rows)),
        )
    )


SEEDS = Column("Seeds", explanation="number of runs")


def _metrics(row: ResultRow, shown: Sequence[Metric]) -> list[TableCell | None]:
    paper = dict(zip(METRICS, row.place.figures, strict=True)) if row.place else {}
    return [spread_cell(row.metric(m.key), paper.get(m.key), idle=row.idle) for m in shown]


def _seeds(row: ResultRow) -> TableCell:
    return TableCell(str(len(row.runs)), order=len(row.runs))


LIMITS = {
    "classes": "classes",
    "train_per_class": "training images per class",
    "test_per_class": "test images per class",
    "train_size": "training examples per task",
    "test_size": "test examples per task",
}


def _beside_the_paper(rows: Sequence[ResultRow]) -> Iterator[str]:
    """The paper's setting and ours, so that nobody compares what cannot be compared."""
    found: dict[tuple[str, str], None] = {}
    for row in rows:
        if row.place:
            found[row.place.setting, _setting(row.runs[0])] = None
    for paper, ours in found:
        yield (
            f"“paper”: its own runs, {paper}. These runs: {ours}. The figures can be compared as "
            "far as the settings agree."
        )


def _setting(run: Record) -> str:
    limits = ((run.setting("stream", key), words) for key, words in LIMITS.items())
    parts = [run.setting("stream", "name"), *(f"{n} {words}" for n, words in limits if n)]
    return ", ".join(str(part) for part in (*parts, run.setting("model", "name")) if part)


def other_metrics(experiment: ReportedExperiment) -> Table | None:
    """Metrics that records have beyond the known ones; the report knows no better direction."""
    known = {m.key for m in KNOWN}
    keys = sorted({key for run in experiment.runs() for key in run.result.metrics} - known)
    found = [key for key in keys if any(row.metric(key) for row in experiment.rows)]
    if not found:
        return None
    lines = (
        (row.section, Line(row.label, tuple(spread_cell(row.metric(key)) for key in found)))
        for row in experiment.rows
    )
    caption = f"Other metrics of {experiment.name}: mean ± standard deviation over seeds"
    return Table(caption, "Method", tuple(map(Column, found)), by_section(lines))


def costs(experiment: ReportedExperiment) -> Table | None:
    """Time, memory and trained parameters; time also relative to the baseline at the same seed."""
    if not any(row.spread(seconds_per_session) for row in experiment.rows):
        return None
    lines = ((row.section, Line(row.label, _costs(experiment, row))) for row in experiment.rows)
    return Table(
        f"Costs in {experiment.name}: mean ± standard deviation over seeds",
        "Method",
        (
            Column("Train s/session", better=-1, explanation="training seconds per session"),
            Column("× baseline", better=-1, explanation="relative to the baseline"),  # noqa: RUF001
            Column("Score s/session", better=-1, explanation="scoring seconds per session"),
            Column("Peak MiB", better=-1, explanation="peak memory of the process"),
            Column("Trained", explanation="trained parameters"),
        ),
        by_section(lines),
        _cost_notes(experiment),
    )


def _costs(experiment: ReportedExperiment, row: ResultRow) -> tuple[TableCell | None, ...]:
    memory, trained = row.spread(_peak), row.spread(_trained)
    return (
        spread_cell(row.spread(seconds_per_session)),
        _ratio(row, experiment.baseline_of(row)),
        spread_cell(row.spread(_scoring)),
        None if memory is None else number_cell(memory.mean, 0),
        None if trained is None else number_cell(trained.mean, 0),
    )


def _scoring(run: Record) -> float | None:
    found = spread(run.run.seconds.score)
    return found.mean if found else None


def _peak(run: Record) -> float | None:
    peak = run.run.memory.peak_rss_bytes
    return None if peak is None else peak / 2**20


def _trained(run: Record) -> float | None:
    return float(sum(run.result.trainable.values())) if run.result.trainable else None


def _ratio(row: ResultRow, baseline: ResultRow | None) -> TableCell | None:
    if baseline is None:
        return None
    ours, theirs = row.by_seed(seconds_per_session), baseline.by_seed(seconds_per_session)
    pairs = [ours[s] / theirs[s] for s in sorted(ours.keys() & theirs.keys()) if theirs[s] > 0]
    found = interval(pairs)
    if found is None:
        return None
    low, high = found.low, found.high
    extra = "" if low is None or high is None else f"[{number(low)}, {number(high)}]"
    return TableCell(number(found.mean), extra, order=found.mean)


def _cost_notes(experiment: ReportedExperiment) -> tuple[str, ...]:
    runs = experiment.runs()
    notes = [f"× baseline: mean over common seeds with its {PERCENT} t interval."]  # noqa: RUF001
    if not any(row.baseline for row in experiment.rows):
        notes = ["No row is marked as the baseline, so that no time is relative."]
    if resumed := sum(run.run.resumed > 0 for run in runs):
        notes.append(
            f"{resumed} of {plural(len(runs), 'run')} had been interrupted and resumed: "
            "their times may be off."
        )
    return tuple(notes)


def query_table(rows: Sequence[ResultRow], of: str) -> Table:
    """In the layout of the paper's Table 3: one line per number of queries."""
    lines = tuple(
        Line(f"q = {row.runs[0].setting('rule', 'q')}", (*_metrics(row, PAPER), _seeds(row)))
        for row in rows
    )
    caption = f"Number of queries q, {of}: mean ± standard deviation over seeds, in percent"
    columns = (*(m.column() for m in PAPER), SEEDS)
    return ranked(
        Table(caption, "q", columns, (Section("", lines),), tuple(_beside_the_paper(rows)))
    )


def score_names(experiment: ReportedExperiment) -> list[str]:
    """The main score first."""
    runs = experiment.runs()
    mains = dict.fromkeys(run.result.main_score for run in runs)
    return list(mains | dict.fromkeys(name for run in runs for name in run.result.scores))


def score_table(experiment: ReportedExperiment) -> Table | None:
    """All scores side by side, each also before the stream; None where there is one score only.

    Avg, Last and Fgt are those that the paper defines for the record's domain.
    """
    names = score_names(experiment)
    ahead = any(run.result.before for run in experiment.runs())
    if len(names) < 2 and not ahead:
        return None
    columns: list[Column] = []
    for name in names:
        columns += [Column("Zero-shot", name, 0, "mean over all tasks before the stream")] * ahead
        columns += [metric.column(name) for metric in PAPER]
    lines = (
        (row.section, Line(row.label, tuple(c for s in names for c in _scores(row, s, ahead))))
        for row in experiment.rows
    )
    caption = f"Scores of {experiment.name} in percent: mean ± standard deviation over seeds"
    notes = ("Zero-shot: mean over all tasks before the stream.",) if ahead else ()
    return ranked(Table(caption, "Method", tuple(columns), by_section(lines), notes))


def _scores(row: ResultRow, score: str, ahead: bool) -> list[TableCell | None]:
    zero = spread_cell(row.spread(lambda run: _mean_before(run, score)))
    found = [spread_cell(row.spread(_of(metric, score)), idle=row.idle) for metric in PAPER]
    return [zero] * ahead + found


def _mean_before(run: Record, score: str) -> float | None:
    """The mean over tasks of what the model could do before it learned anything."""
    values = run.result.before.get(score, ())
    found = spread(values)
    return found.mean if found and found.n == len(values) else None


def _of(metric: Metric, score: str) -> Callable[[Record], float | None]:
    def value(run: Record) -> float | None:
        if score == run.result.main_score and metric.key in run.result.metrics:
            return run.result.metrics[metric.key]
        found = run.result.scores.get(score)
        if found is None:
            return None
        # Imported late: it brings torch, and most reports have one score only.
        from riselab.continual.metrics import summary_language, summary_vision

        try:
            if run.setting("domain") == "language":
                summary = summary_language(found.matrix)
            else:
                summary = summary_vision(found.matrix, found.union)
        except ValueError:  # entries that this metric needs were not measured
            return None
        number: float = getattr(summary, metric.key)
        return None if number != number else number  # NaN: undefined for a single task

    return value


def choice_sentence(experiment: ReportedExperiment) -> str:
    """Which setting each method got, and by what; empty where none was chosen."""
    if not experiment.choices:
        return ""
    by = " and ".join(dict.fromkeys(in_words(choice.by) for choice in experiment.choices))
    said = "; ".join(choice.sentence for choice in experiment.choices)
    return f"Settings chosen by {by}, in which test data had no part: {said}."


def choice_table(experiment: ReportedExperiment) -> Table | None:
    """Every setting that was tried, its figures on validation data, and which one was taken."""
    if not experiment.choices:
        return None
    lines = [(_heading(choice), line) for choice in experiment.choices for line in _tried(choice)]
    return Table(
        f"Choice of settings in {experiment.name}, on validation data, in percent: mean ± standard "
        "deviation over seeds",
        "Setting",
        (
            Column("Chosen by", better=1, explanation="what decides, over the seeds that all have"),
            Column("Seeds", explanation="number of runs that all settings of the method have"),
            Column("In words", text=True),
        ),
        by_section(lines),
        ("These figures decide and are no results: none of them is from test data.",),
    )


def _heading(choice: Choice) -> str:
    name = f"{choice.section}: {choice.method}" if choice.section else choice.method
    return f"{name}, by {in_words(choice.by)}"


def _tried(choice: Choice) -> Iterator[Line]:
    seeds = TableCell(str(len(choice.seeds)), order=len(choice.seeds))
    for setting, by_seed in choice.scores.items():
        value = spread_cell(spread(by_seed[seed] for seed in choice.seeds))
        words = TableCell("chosen" if setting == choice.setting else "")
        yield Line(setting, (value, seeds, words))
