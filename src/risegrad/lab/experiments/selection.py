"""``select``: the point of a sweep that is reported, chosen on validation data alone.

Every point runs on validation data first. The one with the highest mean of a metric over seeds is
then run on test data, which had no part in the choice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from risegrad.lab.records.record import Record

PART = "validation"
METRICS = {"avg": "average accuracy", "last": "last accuracy"}
"""Whoever learns least forgets least, so that a choice by forgetting would choose the dead."""
SELECTIONS = tuple(f"{PART}:{metric}" for metric in METRICS)


def check_select(select: str) -> None:
    """What chooses must be a part of the data and one of its metrics."""
    if select not in SELECTIONS:
        raise ValueError(f"select must be one of {', '.join(SELECTIONS)}, got {select!r}")


def in_words(select: str) -> str:
    """``validation:avg`` as a reader knows it."""
    part, _, metric = select.partition(":")
    return f"{METRICS.get(metric, metric)} on {part} data"


@dataclass(frozen=True)
class Choice:
    """One method: what its settings reached where it was chosen, and which of them that is."""

    section: str
    method: str
    by: str
    scores: Mapping[str, Mapping[int, float]]
    """By setting, then by seed; settings in the order of the sweep."""

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Those that every setting has: others would compare seeds instead of settings."""
        common = set.intersection(*(set(found) for found in self.scores.values()))
        return tuple(sorted(common))

    @cached_property
    def means(self) -> dict[str, float]:
        """The mean of each setting over the common seeds; empty where there are none."""
        if not self.seeds:
            return {}
        return {name: fmean(by[seed] for seed in self.seeds) for name, by in self.scores.items()}

    @property
    def setting(self) -> str | None:
        """The chosen one, of equals the first; None where no seed is common to all."""
        return max(self.means, key=lambda name: self.means[name]) if self.means else None

    @property
    def sentence(self) -> str:
        """What was chosen, and by what."""
        if self.setting is None:
            return f"{self.method}: nothing chosen, no seed has run at every setting"
        return f"{self.method} {self.setting} ({self.means[self.setting]:.1f})"


def choices(records: Iterable[Record]) -> list[Choice]:
    """One for each method of the runs that decide; of other runs nothing is read."""
    found: dict[tuple[str, str, str], dict[str, dict[int, float]]] = {}
    for record in sorted(records, key=lambda one: one.row.order):
        row = record.row
        value = record.result.metrics.get(row.decides.partition(":")[2])
        if row.decides and value is not None:
            settings = found.setdefault((row.section, row.method, row.decides), {})
            settings.setdefault(row.swept, {})[record.seed] = value
    return [Choice(*of, scores) for of, scores in found.items()]
