"""The numbers of a report as plain data, which the page carries for further work."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from risegrad.lab.report.paired_differences import Difference
from risegrad.lab.report.report_parts import Chapter, Report
from risegrad.lab.report.result_rows import ResultRow


def numbers(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "experiments": [_chapter(chapter) for chapter in report.chapters],
        "saved": [
            {"kind": saved.kind, "file": saved.path.name, "finding": saved.finding}
            for saved in report.saved
        ],
        "left_out": list(report.left_out),
        "remarks": list(report.remarks),
    }


def _chapter(chapter: Chapter) -> dict[str, Any]:
    return {
        "name": chapter.experiment.name,
        "rows": [_row(row) for row in chapter.experiment.rows],
        "equal_learning": [
            asdict(found) | {"verdict": found.verdict}
            for frontier in chapter.frontiers
            for found in frontier.found.comparisons
        ],
        "differences": [_difference(found) for found in chapter.differences],
    }


def _row(row: ResultRow) -> dict[str, Any]:
    return {
        "label": row.label,
        "section": row.section,
        "baseline": row.baseline,
        "runs": [
            {"id": run.id, "seed": run.seed, "metrics": dict(run.result.metrics)}
            for run in row.runs
        ],
    }


def _difference(found: Difference) -> dict[str, Any]:
    return {
        "row": found.row.label,
        "baseline": found.baseline.label,
        "metric": found.metric.key,
        "verdict": found.verdict,
        "interval": asdict(found.interval) if found.interval else None,
    }
