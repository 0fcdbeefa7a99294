"""Tables and figures in the documentation, made from records.

`python -m benchmarks.tables` writes the tables anew, with `--figures` also the pictures.
"""

import argparse
import json
import re
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.benchmark_figure import benchmark_figure
from benchmarks.foresight_tables import (
    agreement_table,
    diagnosis_table,
    foresight_overview,
    score_table,
)
from benchmarks.keep import row_labels
from benchmarks.marks import report_of, with_numbers
from benchmarks.memory_tables import dreams_table, memory_of_table, moved_table, scale_table
from riselab.common.intervals import estimate
from riselab.frontier.curves import Measures
from riselab.frontier.equal_learning import EqualLearning
from riselab.pages.page import ChartFigure, save_figures
from riselab.records.fields import Record
from riselab.records.record import read_records
from riselab.report.methods import VERDICTS
from riselab.report.rows import data_megabytes, kept_megabytes, seconds_per_session

ROOT = Path(__file__).parents[1]


@cache
def benchmark_suites() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(
        (ROOT / "benchmarks/results.json").read_text(encoding="utf-8")
    )["suites"]
    return found


def benchmark_table() -> str:
    rows = ["| what | ratio | target | |", "|---|---:|---:|---|"]
    for suite in benchmark_suites().values():
        for line in suite:
            verdict = "met" if line["met"] else "**missed**"
            rows.append(f"| {line['name']} | {line['value']:.3g} | {line['target']} | {verdict} |")
    return "\n".join(rows)


def spread(values: list[float], digits: int = 1) -> str:
    found = estimate(values)
    assert found is not None
    deviation = "" if found.sd is None else f" ± {found.sd:.{digits}f}"
    return f"{found.mean:.{digits}f}{deviation}"


RANK_GAIN = 0.9
COLUMNS = {"Avg": "avg", "Last": "last", "Fgt": "forgetting", "New": "plasticity"}
CHAT_COLUMNS = {"New": "plasticity", "NLL": "nll", "Drift": "drift", "Agree": "agreement",
                "Wiki": "wiki_change", "Obeys": "followed", "Length": "answer_tokens",
                "Choice": "choice_change", "Facts": "facts_change"}  # fmt: skip
IN_NATS = ("nll", "drift", "wiki_change")
LABELS_ONLY = {"Avg (labels)": "constrained_avg", "Fgt (labels)": "constrained_forgetting"}
"""Where a language model may only choose among a task's labels."""


@cache
def kept(name: str) -> list[Record]:
    """The records of an experiment that the repository holds."""
    records, problems = read_records([ROOT / "experiments/records" / name])
    assert not problems, problems
    return records


def experiment_table(name: str) -> str:
    """A line per row of an experiment, in the file's order, from the records that are kept."""
    records = [record for record in kept(name) if not record.row.decides]
    groups: dict[str, list[Record]] = {}
    order = row_labels(name)
    places = {label: place for place, label in enumerate(order)}
    # A row whose settings have changed since in the file comes last.
    for record in sorted(records, key=lambda found: places.get(found.row.label, len(places))):
        groups.setdefault(record.row.label, []).append(record)
    language = all("constrained" in record.result.scores for record in records)
    columns = COLUMNS | (LABELS_ONLY if language else {})
    if all(record.setting("domain") == "chat" for record in records):
        columns = {
            title: key
            for title, key in CHAT_COLUMNS.items()
            if all(key in record.result.metrics for record in records)
        }
    rows = [f"| | {' | '.join(columns)} | seeds |", "|---|" + "---:|" * (len(columns) + 1)]
    for label, found in groups.items():
        cells = [
            spread([_metric(one, key) for one in found], 3 if key in IN_NATS else 1)
            for key in columns.values()
        ]
        rows.append(f"| {label} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(rows)


READINGS = {"head": "accuracy", "class means": "class_means", "both views": "both_views"}
"""How Adapter + Cls. is scored over all classes: titles of columns, and scores of records."""
OWN_READING = {"SimpleCIL": "class means", "APER": "both views", "EASE": "class means"}
"""Where the one score of the other hosts stands."""


def all_classes_table(name: str) -> str:
    """CIFAR-100: the accuracy over all fifty classes at the end, by each reading."""
    columns = ALL_CLASSES[name]
    rows = [f"| | {' | '.join(columns)} | seeds |", "|---|" + "---:|" * (len(columns) + 1)]
    for label in row_labels(name):
        found = [_ends(record) for record in kept(name) if record.row.label == label]
        if found:
            cells = [
                spread([one[title] for one in found]) if title in found[0] else ""
                for title in columns
            ]
            rows.append(f"| {label} | {' | '.join(cells)} | {len(found)} |")
    return "\n".join(rows)


def _ends(record: Record) -> dict[str, float]:
    """By the title of its column: the accuracy over all classes after the last session."""
    scores = record.result.scores
    own = OWN_READING.get(record.row.label.partition(" (")[0])
    readings = READINGS if own is None else {own: "accuracy"}
    ends = {title: scores[key].union[-1] for title, key in readings.items() if key in scores}
    return {title: end for title, end in ends.items() if end is not None}


def equal_learning_table(name: str) -> str:
    """The finding of a swept experiment, and a line for each method at equal New and its costs."""
    (chapter,) = report_of(name).chapters
    fgt = "Drift" if chapter.experiment.chat else "Fgt"
    costs = costs_of(name)
    rows = [
        f"| method | compared at New | {fgt} | {fgt} of the reference | "
        f"difference (95 % interval) | {' | '.join(['', *costs])} |",
        "|---|---:|---:|---:|---:|---|" + "---:|" * len(costs),
    ]
    for section in chapter.frontiers:
        measures = section.found.measures
        for reference in section.found.references:
            cost = [by_method[reference] for by_method in costs.values()]
            rows.append(f"| {reference} | | | | | {' | '.join(['reference', *cost])} |")
        for found in section.found.comparisons:
            words = VERDICTS[found.verdict].format(verb=measures.verb)
            cost = [by_method[found.method] for by_method in costs.values()]
            figures = _figures(found, measures)
            rows.append(f"| {found.method} | {figures} | {' | '.join([words, *cost])} |")
    return "\n".join([chapter.headline, "", *rows])


def costs_of(name: str) -> dict[str, dict[str, str]]:
    """Seconds of a session, megabytes kept, and those of the data that these stand for, by method;
    without the columns that no run fills."""
    (chapter,) = report_of(name).chapters
    columns: dict[str, Callable[[Record], float | None]] = {
        "seconds": seconds_per_session, "MB kept": held, "of MB of data": stood_for,
    }  # fmt: skip
    found = {
        title: {method.name: method.mean(value) for method in chapter.methods}
        for title, value in columns.items()
    }
    digits = {"seconds": 2, "MB kept": 2, "of MB of data": 3}
    return {
        title: {m: "" if x is None else f"{x:.{digits[title]}f}" for m, x in means.items()}
        for title, means in found.items()
        if any(x is not None for x in means.values())
    }


def held(run: Record) -> float | None:
    """The megabytes that a run keeps of old tasks; records of before say it of memories only."""
    found = kept_megabytes(run)
    names = [addition["name"] for addition in run.config.get("additions", ())]
    if found is None and "replay" in names:
        return stood_for(run)
    if found is None and "ewc" in names:  # a diagonal and a centre, in float32
        return 2 * 4 * sum(run.result.trainable.values()) / 1e6
    return found


def stood_for(run: Record) -> float | None:
    """The megabytes of the data that this stands for: as the record says, or, where it is older, by
    the number of examples and the size of an image or a text."""
    if run.result.data_bytes:
        return data_megabytes(run)
    if run.setting("domain") == "chat":
        return None
    trained = [task.train for task in run.result.tasks]
    sizes = [a["size"] for a in run.config.get("additions", ()) if a["name"] == "replay"]
    if not sizes and not run.result.memory_bytes:
        return None
    looked_at = sum(min(count, run.config["memory"]["examples"]) for count in trained)
    examples = min(sizes[0], sum(trained)) if sizes else looked_at
    if run.setting("domain") == "vision":
        return float(examples * 3 * run.config["stream"]["image_size"] ** 2 / 1e6)
    return float(examples * text_bytes()[run.experiment] / 1e6)


@cache
def text_bytes() -> dict[str, float]:
    """The mean bytes of a training text, by experiment."""
    path = ROOT / "benchmarks/studies/text_bytes.json"
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8"))
    return found


def more_table(name: str) -> str:
    """A second level of learning: the middle of what a method and the reference both learn."""
    (chapter,) = report_of(name).chapters
    fgt = "Drift" if chapter.experiment.chat else "Fgt"
    rows = [
        f"| method | in the middle: New | {fgt} | {fgt} of the reference | "
        "difference (95 % interval) |",
        "|---|---:|---:|---:|---:|",
    ]
    for section in chapter.frontiers:
        measures = section.found.measures
        for found in section.found.halfway:
            rows.append(f"| {found.method} | {_figures(found, measures)} |")
    return "\n".join(rows)


def _figures(found: EqualLearning, measures: Measures) -> str:
    mine, theirs, less = found.forgotten, found.of_reference, found.difference
    if found.level is None or mine is None or theirs is None or less is None:
        return " | | | "
    digits, gain = measures.digits, less.times(measures.factor)
    ends = "" if gain.low is None else f" ({gain.low:+.{digits}f} to {gain.high:+.{digits}f})"
    return (
        f"{found.level:.1f} | {measures.amount(mine.mean)} | {measures.amount(theirs.mean)} | "
        f"{gain.mean:+.{digits}f}{ends}"
    )


def beside_table(name: str) -> str:
    """What else changed in a chat model, at the same learning."""
    (chapter,) = report_of(name).chapters
    assert chapter.beside is not None
    _caption, _, *lines = chapter.beside.markdown()
    return "\n".join(lines).strip()


def rank_text() -> str:
    """How much of what full factors gain on banking77 is gained with sixteen eigenpairs of each."""
    (chapter,) = report_of("banking77").chapters
    found = {one.method: one for part in chapter.frontiers for one in part.found.comparisons}
    full, few = found["informed"].difference, found["informed, rank 16"].difference
    assert full is not None
    assert few is not None
    share = few.mean / full.mean
    verdict = "met" if share >= RANK_GAIN else "missed"
    return f"Rank 16 has {share:.2f} of the gain of full factors (target {RANK_GAIN}: {verdict})."


def choice_text(name: str) -> str:
    """Which settings validation data chose, in a sentence."""
    (chapter,) = report_of(name).chapters
    return chapter.choice


def save_figure(name: str) -> Path:
    """The main figure of an experiment's report, as the documentation shows it."""
    figure = next(report_of(name).page.figures())
    return save_png(figure, FIGURES / f"{name}-frontier.png")


def save_png(figure: ChartFigure, target: Path) -> Path:
    """One figure, on white."""
    with TemporaryDirectory() as folder:
        png = next(path for path in save_figures([figure], Path(folder)) if path.suffix == ".png")
        target.write_bytes(png.read_bytes())
    return target


def _metric(record: Record, key: str) -> float:
    value = record.result.metrics[key]
    assert value is not None, f"{record.path.name} has no {key}"
    return value


EXPERIMENTS = (
    "turned-digits", "turned-digits-validated", "turned-digits-ablations", "turned-digits-ten",
    "banking77",
    "banking77-t5", "banking77-zero-shot", "cifar100-within", "digits", "table1-cpu",
    "table3-cpu", "language-short-cpu", "language-frontier-cpu", "language-ten-cpu",
    "keep-135", "keep-135-past-tense",
)  # fmt: skip
"""An entry here gives an experiment with records its figure, `docs/figures/NAME-frontier.png`, and
what may stand between marks on a page: its table (`NAME`), its finding and table at equal learning
(`NAME-equal`), a second level of learning and the costs (`NAME-more`), what validation data chose
(`NAME-choice`) and, of a chat model, what else changed (`NAME-beside`)."""
FIGURES = ROOT / "docs" / "figures"
LOCAL = ("cifar100-within", "banking77")
ALL_CLASSES = {"cifar100-within": ("head", "class means"), "cifar100-means": tuple(READINGS)}
"""Experiments that are also read over all classes, and how; both views came after the first."""
TABLES: dict[str, Callable[[], str]] = {
    "benchmarks": benchmark_table,
    "memory-scale": scale_table,
    "memory-moved": moved_table,
    "memory-of": memory_of_table,
    "dreams": dreams_table,
    "banking77-rank": rank_text,
    **{f"{name}-all-classes": partial(all_classes_table, name) for name in ALL_CLASSES},
    "foresight-all": foresight_overview,
    "block-scores": score_table,
    **{name: partial(experiment_table, name) for name in EXPERIMENTS},
    **{f"{name}-equal": partial(equal_learning_table, name) for name in EXPERIMENTS},
    **{f"{name}-more": partial(more_table, name) for name in EXPERIMENTS},
    **{f"{name}-beside": partial(beside_table, name) for name in EXPERIMENTS},
    **{f"{name}-choice": partial(choice_text, name) for name in EXPERIMENTS},
    **{f"local-{name}": partial(agreement_table, name) for name in LOCAL},
    **{f"diagnosis-{name}": partial(diagnosis_table, name) for name in LOCAL},
}
PLACES = (
    "README.md", "docs/index.md", "docs/benchmarks.md", "docs/claims.md", "docs/results.md",
    "docs/informed.md", "docs/foresight.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "results").glob("*.md")),
)  # fmt: skip


def filled(text: str) -> str:
    """The text with every marked table and number made anew."""
    for name in set(re.findall(r"<!-- ([\w-]+): ", text)) & TABLES.keys():
        make = TABLES[name]
        mark = re.compile(rf"(<!-- {name}: [^>]*-->\n)(?:.*?)(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda found, make=make: f"{found[1]}{make()}\n{found[2]}", text)  # type: ignore[misc]
    return with_numbers(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figures", action="store_true", help="also the pictures")
    if parser.parse_args().figures:
        print(save_png(benchmark_figure(benchmark_suites()), FIGURES / "benchmarks.png").name)
        for experiment in EXPERIMENTS:
            print(save_figure(experiment).relative_to(ROOT))
    for place in PLACES:
        path = ROOT / place
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
