"""The tables of one experiment: results, differences, costs, scores, choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from riselab.common.intervals import CONFIDENCE, Estimate, differ_from_zero, estimate
from riselab.experiments.file import Choice, in_words
from riselab.pages.tables import (
    Column,
    Line,
    Table,
    TableCell,
    by_section,
    difference_cell,
    number_cell,
    ranked,
    spread_cell,
)
from riselab.pages.text import number, plural
from riselab.records.fields import Record
from riselab.report.paper import METRICS
from riselab.report.rows import (
    ReportedExperiment,
    ResultRow,
    data_megabytes,
    kept_megabytes,
    seconds_per_session,
)

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
    meaning: str
    """one line for a reader who meets the title for the first time"""
    alone: bool = True
    """False where the figure by itself names no best, because every smaller step improves it"""
    factor: float = 1.0
    """from what a record has to what a report shows"""
    digits: int = 2

    def of(self, run: Record) -> float | None:
        """As a report shows it."""
        found = run.result.metrics.get(self.key)
        return None if found is None else found * self.factor

    def column(self) -> Column:
        """A table's column; forgetting alone has no best."""
        return Column(self.title, self.better, self.meaning, self.alone)


KNOWN = (
    Metric("avg", "Avg", "average accuracy", 1,
           "average accuracy, as the paper defines it for the domain of the record"),
    Metric("last", "Last", "last accuracy", 1, "accuracy on all tasks after the last session"),
    Metric("forgetting", "Fgt", "forgetting", -1,
           "forgetting: points that old tasks lost until the end", alone=False),
    Metric("plasticity", "New", "new-task accuracy", 1,
           "new-task accuracy: on each task right after learning it"),
    Metric("constrained_avg", "Avg (labels)", "average accuracy among labels", 1,
           "average accuracy where a language model chooses among a task's labels"),
    Metric("constrained_forgetting", "Fgt (labels)", "forgetting among labels", -1,
           "forgetting where it does", alone=False),
    Metric("backward_transfer", "BWT", "backward transfer", 1,
           "backward transfer: what later tasks changed for earlier ones", alone=False),
    Metric("forward_transfer", "FWT", "forward transfer", 1,
           "forward transfer: what earlier tasks changed for later ones before these were learned"),
)  # fmt: skip
AVG, LAST, FORGETTING, PLASTICITY, *_ = KNOWN
CHAT = (
    Metric("plasticity", "New", "exact answers", 1,
           "exact answers on each task right after learning it, in percent"),
    Metric("nll", "NLL", "loss of an answer", -1,
           "negative log-likelihood of a whole right answer, when its task was learned"),
    Metric("forgetting", "Drift", "drift", -1,
           "how far the answers to general instructions have moved: KL(before || now) in nats per "
           "token", alone=False, factor=0.01, digits=3),
    Metric("agreement", "Agree", "agreement", 1,
           "how many percent of the likeliest tokens of those answers are still the same",
           alone=False),
    Metric("wiki_change", "Wiki", "loss on Wikipedia", -1,
           "rise of the loss on Wikipedia, in nats per token", alone=False, digits=3),
    Metric("followed", "Obeys", "obeyed instructions", 1,
           "percent of instructions such as \"at least 50 words\" that answers obey (IFEval's "
           "checkers; none that the answer \"Yes\" would obey)", alone=False),
    Metric("answer_tokens", "Length", "length of answers", 0,
           "mean length of the answers to those instructions, in tokens", alone=False),
    Metric("choice_change", "Choice", "questions with options", 1,
           "change of the right answers to questions with options, in points", alone=False),
    Metric("facts_change", "Facts", "facts", 1,
           "change of how many wrong answers about facts are less likely than the right one, in "
           "points", alone=False),
    Metric("task_forgetting", "Fgt", "forgetting of tasks", -1,
           "points that earlier tasks of the stream lost", alone=False),
)  # fmt: skip
"""Of runs of a chat model."""
EXACT, DRIFT, BESIDE = CHAT[0], CHAT[2], CHAT[3:9]
"""Learning, drift, and what is measured beside them."""


def known(experiment: ReportedExperiment) -> Sequence[Metric]:
    """The metrics that a report names."""
    return CHAT if experiment.chat else KNOWN


def compared(experiment: ReportedExperiment) -> Sequence[Metric]:
    """Those in which rows are compared with their baseline.

    Backward transfer is left out, because it nearly repeats forgetting with the other sign; forward
    transfer because few records have it.
    """
    return (EXACT, DRIFT) if experiment.chat else KNOWN[:4]


def results(experiment: ReportedExperiment) -> Table:
    """Every row with the metrics that the project knows, the paper's figures where it names some.

    Who learned nothing keeps everything: said beside the row, and never best of a column.
    """
    shown = [m for m in known(experiment) if any(row.spread(m.of) for row in experiment.rows)]
    marks = ((row, ["baseline"] * row.baseline + [IDLE] * row.idle) for row in experiment.rows)
    lines = ((row.section, Line(row.label, (*_metrics(row, shown), _count(row.runs)), ", ".join(m)))
             for row, m in marks)  # fmt: skip
    unit = "" if experiment.chat else " in percent"
    return ranked(
        Table(
            f"Results of {experiment.name}{unit}: mean ± standard deviation over seeds",
            "Method",
            (*(m.column() for m in shown), SEEDS),
            by_section(lines),
            tuple(_beside_the_paper(experiment.rows)),
        )
    )


SEEDS = Column("Seeds", explanation="number of runs")


def _count(items: Sequence[object]) -> TableCell:
    return TableCell(str(len(items)), order=len(items))


def _metrics(row: ResultRow, shown: Sequence[Metric]) -> list[TableCell | None]:
    paper = dict(zip(METRICS, row.place.figures, strict=True)) if row.place else {}
    return [
        spread_cell(row.spread(m.of), paper.get(m.key), idle=row.idle, digits=m.digits)
        for m in shown
    ]


def _beside_the_paper(rows: Sequence[ResultRow]) -> Iterator[str]:
    """The paper's setting and ours, so that nobody compares what cannot be compared."""
    for paper, *ours in dict.fromkeys(
        (row.place.setting, run.setting("stream", "name"), run.setting("model", "name"))
        for row in rows
        if row.place
        for run in row.runs[:1]
    ):
        said = ", ".join(str(part) for part in ours if part)
        yield (
            f"“paper”: its own runs, {paper}. These runs: {said}. "
            "The figures can be compared as far as the settings agree."
        )


NOTES = (
    "Better or worse: the difference is more than noise, also after correction for the number of "
    "rows (Holm, metric by metric). Open: it is not, which does not show that two rows are equal. "
    "The intervals are not corrected. No word: fewer than two seeds in common, a row that learned "
    "nothing, or one that forgets less and learns less.",
)


@dataclass(frozen=True)
class Difference:
    """What a row gains on its baseline in one metric, at the same seeds."""

    row: ResultRow
    baseline: ResultRow
    metric: Metric
    gain: Estimate | None
    """row minus baseline; None if no seed is in both"""
    verdict: str


def differences(experiment: ReportedExperiment) -> Iterator[Difference]:
    """Every row that has a baseline, in every compared metric that both have anywhere."""
    pairs = [(row, b) for row in experiment.rows if (b := experiment.baseline_of(row)) not in
             (None, row)]  # fmt: skip
    for metric in compared(experiment):
        both = [(row, b) for row, b in pairs if b and row.spread(metric.of) and b.spread(metric.of)]
        gains = [_paired(row, b, metric.of) for row, b in both]
        judged = (
            None if row.idle or b.idle else gain for (row, b), gain in zip(both, gains, strict=True)
        )
        clear = differ_from_zero(list(judged))
        for (row, baseline), gain, sure in zip(both, gains, clear, strict=True):
            verdict = _verdict(row, baseline, metric, gain, sure)
            yield Difference(row, baseline, metric, gain, verdict)


def _paired(
    row: ResultRow, baseline: ResultRow, value: Callable[[Record], float | None]
) -> Estimate | None:
    ours, theirs = row.by_seed(value), baseline.by_seed(value)
    return estimate(ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys()))


def _verdict(
    row: ResultRow, baseline: ResultRow, metric: Metric, gain: Estimate | None, clear: bool
) -> str:
    """Better, worse, open; or nothing: of a model that learned nothing, because it keeps what it
    never risked, and of one that forgets less and learns less, as every smaller step does."""
    if row.idle or baseline.idle or gain is None or gain.half is None:
        return ""
    if not clear:
        return "open"
    learned = None if metric.alone else _paired(row, baseline, PLASTICITY.of)
    if learned and learned.excludes_zero and gain.mean * learned.mean > 0:
        return ""
    return "better" if gain.mean * metric.better > 0 else "worse"


def difference_table(experiment: ReportedExperiment, found: Sequence[Difference]) -> Table | None:
    """One line per compared row: mean difference and interval in each metric."""
    if not found:
        return None
    shown = [m for m in compared(experiment) if any(d.metric is m for d in found)]
    lines = []
    for row in dict.fromkeys(d.row for d in found):
        own = {d.metric: d for d in found if d.row is row}
        baseline = next(iter(own.values())).baseline
        cells = (
            difference_cell(own[m].gain, own[m].verdict, m.digits) if m in own else None
            for m in shown
        )
        lines.append((f"against {baseline.label}", Line(row.label, tuple(cells), IDLE * row.idle)))
    return Table(
        f"Differences in {experiment.name}: row minus baseline at the same seed, with {PERCENT} t "
        "intervals",
        "Method",
        tuple(m.column() for m in shown),
        by_section(lines),
        NOTES,
    )


def costs(experiment: ReportedExperiment) -> Table | None:
    """Time, memory and trained parameters; time also relative to the baseline at the same seed."""
    columns: dict[Column, Callable[[ResultRow], TableCell | None]] = {
        Column("Train s/session", -1, "training seconds per session"):
            lambda row: spread_cell(row.spread(seconds_per_session)),
        Column("× baseline", -1, "relative to the baseline"):  # noqa: RUF001
            lambda row: _ratio(row, experiment.baseline_of(row)),
        Column("Score s/session", -1, "scoring seconds per session"):
            lambda row: spread_cell(row.spread(_scoring)),
        Column("MB kept", -1, "of old tasks at the end"):
            lambda row: _mean(row, kept_megabytes),
        Column("MB of data", -1, "that these replace"):
            lambda row: _mean(row, data_megabytes),
        Column("Peak MiB", -1, "peak memory of the process"): lambda row: _mean(row, _peak, 0),
        Column("Trained", 0, "trained parameters"): lambda row: _mean(row, _trained, 0),
    }  # fmt: skip
    made = {column: [cell(row) for row in experiment.rows] for column, cell in columns.items()}
    shown = {column: cells for column, cells in made.items() if any(cells)}
    if not any(row.spread(seconds_per_session) for row in experiment.rows):
        return None
    lines = (
        (row.section, Line(row.label, cells))
        for row, cells in zip(experiment.rows, zip(*shown.values(), strict=True), strict=True)
    )
    return Table(
        f"Costs in {experiment.name}: mean ± standard deviation over seeds",
        "Method",
        tuple(shown),
        by_section(lines),
        tuple(_cost_notes(experiment)),
    )


def _mean(
    row: ResultRow, value: Callable[[Record], float | None], digits: int = 2
) -> TableCell | None:
    found = row.spread(value)
    return number_cell(found.mean if found else None, digits)


def _scoring(run: Record) -> float | None:
    found = estimate(run.run.seconds.score)
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
    common = (seed for seed in sorted(ours.keys() & theirs.keys()) if theirs[seed] > 0)
    found = estimate(ours[seed] / theirs[seed] for seed in common)
    if found is None:
        return None
    low, high = found.low, found.high
    ends = "" if low is None or high is None else f"[{number(low)}, {number(high)}]"
    return TableCell(number(found.mean), ends, order=found.mean)


def _cost_notes(experiment: ReportedExperiment) -> Iterator[str]:
    runs = experiment.runs()
    if any(row.baseline for row in experiment.rows):
        yield f"× baseline: mean over common seeds with its {PERCENT} t interval."  # noqa: RUF001
    if resumed := sum(run.run.resumed > 0 for run in runs):
        yield (
            f"{resumed} of {plural(len(runs), 'run')} had been interrupted and resumed: "
            "their times may be off."
        )


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
        ("These scores decide the choice and are not results: none is from test data.",),
    )


def _heading(choice: Choice) -> str:
    name = f"{choice.section}: {choice.method}" if choice.section else choice.method
    return f"{name}, by {in_words(choice.by)}"


def _tried(choice: Choice) -> Iterator[Line]:
    for setting, by_seed in choice.scores.items():
        value = spread_cell(estimate(by_seed[seed] for seed in choice.seeds))
        words = TableCell("chosen" if setting == choice.setting else "")
        yield Line(setting, (value, _count(choice.seeds), words))
