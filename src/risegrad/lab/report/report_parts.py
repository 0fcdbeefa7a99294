"""What a report says, before it is HTML, Markdown, LaTeX or lines on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from risegrad.lab.records.record import Record
from risegrad.lab.records.record_reader import RecordError
from risegrad.lab.report.experiment_tables import (
    difference_table,
    other_metrics,
    overheads,
    query_sweep,
    results,
)
from risegrad.lab.report.paired_differences import Difference, differences
from risegrad.lab.report.paper_layout import paper_layouts
from risegrad.lab.report.report_choice import choice_sentence, choice_table
from risegrad.lab.report.report_findings import Finding, caveat, findings, headline
from risegrad.lab.report.report_frontier import SectionFrontier, equal_table, frontiers
from risegrad.lab.report.report_frontier import headline as equal_headline
from risegrad.lab.report.report_methods import Method, sweeps
from risegrad.lab.report.report_methods import methods as methods_of
from risegrad.lab.report.report_other_ways import other_ways_table
from risegrad.lab.report.result_rows import ReportedExperiment, gather
from risegrad.lab.report.saved_results import SavedResult
from risegrad.lab.report.side_scores import score_table
from risegrad.pages.page_tables import Table

PAPER_CAUTION = (
    "The paper's figures come from its own runs. Ours come from the settings in the records; the "
    "two can be compared as far as those settings agree."
)


@dataclass(frozen=True)
class Chapter:
    """One experiment."""

    experiment: ReportedExperiment
    methods: tuple[Method, ...]
    """its rows, those of one sweep together"""
    frontiers: tuple[SectionFrontier, ...]
    """where methods were swept"""
    equal: Table | None
    """the methods at equal learning"""
    other_ways: Table | None
    """the same curves at equal forgetting, and each method at its best"""
    results: Table
    choice: str
    """which settings were chosen on validation data, in a sentence; empty where none were"""
    chosen: Table | None
    """the figures that decided"""
    scores: Table | None
    """all scores side by side, where there are several"""
    differences: tuple[Difference, ...]
    findings: tuple[Finding, ...]
    caveat: str
    compared: Table | None
    """the differences as a table"""
    costs: Table | None
    more: tuple[Table, ...]
    """sweeps over q and other metrics, as far as there are any"""

    @property
    def headline(self) -> str:
        """The finding in a sentence: at equal learning where that can be said."""
        return equal_headline(self.frontiers) or headline(self.differences)

    def tables(self) -> list[Table]:
        """All of them, in the order of the page."""
        first = (self.equal, self.results, self.other_ways, self.chosen)
        more = (self.scores, self.compared, self.costs, *self.more)
        return [table for table in (*first, *more) if table]


@dataclass(frozen=True)
class Report:
    """What a report says: a chapter per experiment, and the paper's tables."""

    chapters: tuple[Chapter, ...]
    paper: tuple[Table, ...]
    left_out: tuple[str, ...]
    """files that could not be used, with the reason"""
    remarks: tuple[str, ...]
    """what a reader should know of how runs became rows"""
    saved: tuple[SavedResult, ...] = ()
    """diagnoses and local validations"""

    @property
    def experiments(self) -> list[ReportedExperiment]:
        """The experiments of all chapters."""
        return [chapter.experiment for chapter in self.chapters]


def build(
    records: Iterable[Record],
    problems: Sequence[RecordError] = (),
    baseline: str | None = None,
    saved: Sequence[SavedResult] = (),
) -> Report:
    """From records to a report; ``problems`` are the files that could not be read."""
    experiments, remarks = gather(records, baseline)
    return Report(
        tuple(_chapter(experiment) for experiment in experiments),
        tuple(paper_layouts(experiments)),
        tuple(str(problem) for problem in problems),
        tuple(remarks),
        tuple(saved),
    )


def _chapter(experiment: ReportedExperiment) -> Chapter:
    found = tuple(differences(experiment))
    more = [
        *(query_sweep(rows, of) for of, rows in sweeps(experiment)),
        other_metrics(experiment),
    ]
    methods = tuple(methods_of(experiment))
    swept = tuple(frontiers(methods))
    return Chapter(
        experiment,
        methods,
        swept,
        equal_table(experiment.name, swept),
        other_ways_table(experiment.name, swept),
        results(experiment),
        choice_sentence(experiment),
        choice_table(experiment),
        score_table(experiment),
        found,
        tuple(findings(found)),
        caveat(experiment, found),
        difference_table(experiment, found),
        overheads(experiment),
        tuple(table for table in more if table),
    )
