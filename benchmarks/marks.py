"""Numbers within sentences and tables of the documentation, made from records.

A mark `<!-- = equal turned-digits informed -->...<!-- / -->` says which function below makes what
stands in it, and with which words.
"""

import json
import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from riselab.common.intervals import estimate
from riselab.frontier.curves import Measures
from riselab.frontier.equal_learning import EqualLearning
from riselab.records.record import read_records
from riselab.report.builder import Report, build

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "experiments" / "records"
MARK = re.compile(r"(<!-- = (.*?) -->).*?(<!-- / -->)")


@cache
def report_of(name: str) -> Report:
    """The report of an experiment whose records the repository holds."""
    records, problems = read_records([RECORDS / name])
    assert not problems, problems
    return build(records)


def equal(name: str, method: str, called: str = "") -> str:
    """What a method loses and what the reference does, where both learned as much."""
    found, measures = _compared(name, method)
    assert found.of_reference is not None
    theirs = measures.amount(found.of_reference.mean)
    mine = f"{called or method} {lost(name, method)} {measures.unit}"
    return f"{mine}, plain {theirs}, at New {found.level:.1f}"


def lost(name: str, method: str) -> str:
    """The first of these numbers alone."""
    found, measures = _compared(name, method)
    assert found.forgotten is not None
    return measures.amount(found.forgotten.mean)


def _compared(name: str, method: str) -> tuple[EqualLearning, Measures]:
    (chapter,) = report_of(name).chapters
    (found,) = (
        (one, part.found.measures)
        for part in chapter.frontiers
        for one in part.found.comparisons
        if one.method == method
    )
    return found


def mean(name: str, metric: str, label: str, form: str = ".1f") -> str:
    """A metric of a row over its seeds."""
    (chapter,) = report_of(name).chapters
    (row,) = (row for row in chapter.experiment.rows if row.label == label)
    found = row.spread(lambda run: run.result.metrics.get(metric))
    assert found is not None
    return format(found.mean, form)


def before(name: str, metric: str, label: str, form: str = ".1f") -> str:
    """A metric of the model as it came: what a row has less what changed."""
    after, change = (float(mean(name, key, label, ".9g")) for key in (metric, f"{metric}_change"))
    return format(after - change, form)


def end(name: str, score: str, label: str) -> str:
    """A score over all classes at the end."""
    (chapter,) = report_of(name).chapters
    (row,) = (row for row in chapter.experiment.rows if row.label == label)
    found = estimate(run.result.scores[score].union[-1] for run in row.runs)
    assert found is not None
    return f"{found.mean:.1f}"


def sandbox(what: str, form: str = ".3g") -> str:
    """A line of the sandbox's record."""
    lines = _file(ROOT / "docs" / "records" / "sandbox.json")["comparison"]
    (line,) = (one for one in lines if one["what"] == what)
    return format(line["ours"], form)


def in_order(name: str) -> str:
    """How many pairs of methods predictions put in order, up to a session's end."""
    horizons = _file(RECORDS / "foresight" / f"{name}.json")["horizons"]
    (found,) = (row["ordered"] for row in horizons if row["steps"] == 0)
    return f"{found:.0%}"


def beyond() -> str:
    """Rank correlations of block scores with a benefit beyond that of a smaller step."""
    files = sorted((RECORDS / "foresight").glob("*.json"))
    scores = [row["beyond"] for path in files for row in _file(path)["scores"] if row["steps"] == 1]
    holding = sum(row["low"] <= 0 <= row["high"] for row in scores)
    values = [row["value"] for row in scores]
    return (
        f"{min(values):.2f} to {max(values):.2f}; {holding} of {len(values)} intervals contain zero"
    )


def local(name: str, curvature: str) -> str:
    """The rank correlation of predicted and true change after one step."""
    lines = _file(RECORDS / "local" / f"{name}.json")["agreement_by_steps"]["1"]
    (line,) = (one for one in lines if one["curvature"] == curvature)
    return f"{line['rank_correlation']:.3f}"


def remembered(study: str, what: str) -> str:
    """Points forgotten in a study of what to remember, at equal learning; ``nothing``: plain."""
    found = _file(ROOT / "benchmarks" / "studies" / "memory_of.json")[study]["equal learning"]
    name = {"nothing": "plain"}.get(what, what)
    (row,) = (one for one in found["methods"] if one["method"].split(",")[0] == name)
    return format(row["forgotten"], ".1f")


def of_plain(name: str, method: str) -> str:
    """What the reference loses where a method was compared with it."""
    found, measures = _compared(name, method)
    assert found.of_reference is not None
    return measures.amount(found.of_reference.mean)


def ratio(part: str) -> str:
    """Benchmarks whose names contain this: from the least to the largest."""
    suites = _file(ROOT / "benchmarks" / "results.json")["suites"]
    found = [line["value"] for suite in suites.values() for line in suite if part in line["name"]]
    return f"{100 * min(found):.1f} to {100 * max(found):.0f} %"


@cache
def _file(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


NUMBERS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        *(equal, lost, of_plain, mean, before, end, remembered),
        *(sandbox, in_order, beyond, local, ratio),
    )
}


def with_numbers(text: str) -> str:
    """The text with every marked number made anew."""

    def made(found: re.Match[str]) -> str:
        name, *words = shlex.split(found[2])
        return f"{found[1]}{NUMBERS[name](*words)}{found[3]}"

    return MARK.sub(made, text)
