"""Tables in the documentation, made from records: `python -m benchmarks.tables` rewrites them."""

import json
import re
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.foresight_tables import agreement_table, diagnosis_table, draws_table, ends_table
from benchmarks.keep import row_labels
from benchmarks.memory_tables import dreams_table, memory_of_table, scale_table
from risegrad.lab.frontier.equal_learning import EqualLearning
from risegrad.lab.records.record import Record, read_records
from risegrad.lab.report.report_frontier import VERDICTS
from risegrad.lab.report.report_parts import build

ROOT = Path(__file__).parents[1]


def benchmark_table() -> str:
    record = json.loads((ROOT / "benchmarks/results.json").read_text())
    rows = ["| what | ratio | target | |", "|---|---:|---:|---|"]
    for suite in record["suites"].values():
        for line in suite:
            verdict = "met" if line["met"] else "**missed**"
            rows.append(f"| {line['name']} | {line['value']:.3g} | {line['target']} | {verdict} |")
    return "\n".join(rows)


def digits_table() -> str:
    record = json.loads((ROOT / "docs/records/digits.json").read_text())
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        groups.setdefault((run["rule"], run["learning_rate"]), []).append(run)
    rows = ["| rule | rate | forgotten (points) | learned (%) |", "|---|---:|---:|---:|"]
    for (rule, rate), runs in groups.items():
        cells = [spread([run[key] for run in runs]) for key in ("forgotten", "learned")]
        rows.append(f"| {rule} | {rate:g} | {cells[0]} | {cells[1]} |")
    return "\n".join(rows)


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


COLUMNS = {"Avg": "avg", "Last": "last", "Fgt": "forgetting", "New": "plasticity"}
LABELS_ONLY = {"Avg (labels)": "constrained_avg", "Fgt (labels)": "constrained_forgetting"}
"""Where a language model may only choose among a task's labels."""


def experiment_table(name: str) -> str:
    """A line per row of an experiment, in the file's order, from the records that are kept."""
    records, problems = read_records([ROOT / "experiments/records" / name])
    assert not problems, problems
    groups: dict[str, list[Record]] = {}
    order = row_labels(name)
    for record in sorted(records, key=lambda found: order.index(found.row.label)):
        groups.setdefault(record.row.label, []).append(record)
    language = all("constrained" in record.result.scores for record in records)
    columns = COLUMNS | (LABELS_ONLY if language else {})
    rows = [f"| | {' | '.join(columns)} | seeds |", "|---|" + "---:|" * (len(columns) + 1)]
    for label, found in groups.items():
        cells = [spread([_metric(one, key) for one in found]) for key in columns.values()]
        rows.append(f"| {label} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(rows)


def equal_learning_table(name: str) -> str:
    """The finding of a swept experiment in a sentence, and a line for each method at equal New."""
    records, problems = read_records([ROOT / "experiments/records" / name])
    assert not problems, problems
    (chapter,) = build(records).chapters
    rows = [
        "| method | compared at New | Fgt | Fgt of the reference | difference (95 % interval) | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for section in chapter.frontiers:
        rows += [_equal_line(compared) for compared in section.found.comparisons]
    return "\n".join([chapter.headline, "", *rows])


def _equal_line(found: EqualLearning) -> str:
    words = VERDICTS[found.verdict]
    mine, theirs, less = found.forgotten, found.of_reference, found.difference
    if found.level is None or mine is None or theirs is None or less is None:
        return f"| {found.method} | | | | | {words} |"
    figures = f"{found.level:.1f} | {mine.mean:.1f} | {theirs.mean:.1f}"
    ends = "" if less.low is None else f" ({less.low:+.1f} to {less.high:+.1f})"
    return f"| {found.method} | {figures} | {less.mean:+.1f}{ends} | {words} |"


def _metric(record: Record, key: str) -> float:
    value = record.result.metrics[key]
    assert value is not None, f"{record.path.name} has no {key}"
    return value


EXPERIMENTS = (
    "turned-digits", "digits", "digits-validation", "table1-cpu", "table3-cpu",
    "language-short-cpu", "language-frontier-cpu", "language-ten-cpu",
)  # fmt: skip
LOCAL = ("vit", "t5")
TABLES: dict[str, Callable[[], str]] = {
    "benchmarks": benchmark_table,
    "memory-scale": scale_table,
    "memory-of": memory_of_table,
    "dreams": dreams_table,
    "digits-frontier": digits_table,
    "turned-digits-equal": partial(equal_learning_table, "turned-digits"),
    **{name: partial(experiment_table, name) for name in EXPERIMENTS},
    **{f"local-{name}": partial(agreement_table, name) for name in LOCAL},
    **{f"ends-{name}": partial(ends_table, name) for name in LOCAL},
    **{f"draws-{name}": partial(draws_table, name) for name in LOCAL},
    **{f"diagnosis-{name}": partial(diagnosis_table, name) for name in LOCAL},
}
PLACES = ("README.md", "docs/benchmarks.md", "docs/results.md", "docs/informed.md")


def filled(text: str) -> str:
    """The text with every marked table made anew."""
    for name, make in TABLES.items():
        mark = re.compile(rf"(<!-- {name}: [^>]*-->\n)(?:.*?)(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda found, make=make: f"{found[1]}{make()}\n{found[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for place in PLACES:
        path = ROOT / place
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
