"""Diagnoses and local validations that were saved as JSON, as parts of a report's page.

What they say and show is the business of ``foresight``: here is only which file is which kind, who
reads it and who makes its parts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from risegrad.lab.records.record import Record, RecordError, find_records
from risegrad.pages.page_blocks import Part


@dataclass(frozen=True)
class SavedKind:
    """One kind of saved result; modules are imported when a file of the kind is there."""

    name: str
    keys: frozenset[str]
    """that its files have, and records and other kinds do not"""
    reader: str
    """``module:class`` with a ``from_dict``"""
    parts: str
    """``module:function`` from what was read to the parts of a page"""
    glossary: str = ""
    """``module:name`` of the abbreviations of those parts"""


KINDS = [
    SavedKind(
        "Diagnosis",
        frozenset({"blocks", "totals", "verdicts"}),
        "risegrad.foresight.diagnosis_report:Diagnosis",
        "risegrad.foresight.diagnosis_page:diagnosis_parts",
        "risegrad.foresight.diagnosis_page:GLOSSARY",
    ),
    SavedKind(
        "Local validation",
        frozenset({"checkpoints", "agreement"}),
        "risegrad.foresight.local_validation:LocalResult",
        "risegrad.foresight.local_report:local_parts",
        "risegrad.foresight.local_report:GLOSSARY",
    ),
    SavedKind(
        "Foresight",
        frozenset({"sessions", "horizons"}),
        "risegrad.foresight.foresight_result:ForesightResult",
        "risegrad.foresight.foresight_report:foresight_parts",
        "risegrad.foresight.foresight_report:GLOSSARY",
    ),
]
"""Another kind needs an entry here and nothing else."""


@dataclass(frozen=True)
class SavedResult:
    """A file that was understood, and what it says."""

    kind: str
    path: Path
    parts: tuple[Part, ...]
    subject: str = ""
    """what was looked at, where the file says so"""
    glossary: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """The kind, the file's name unless that is the kind again, and the subject."""
        same = self.path.stem.lower() == self.kind.lower()
        named = self.kind if same else f"{self.kind} {self.path.stem}"
        return ": ".join(filter(None, [named, self.subject]))

    @property
    def finding(self) -> str:
        """What it found, in a sentence."""
        return self.parts[0].finding if self.parts else ""

    def titled(self) -> Iterator[Part]:
        """Its parts, each under a title that tells it from those of other files."""
        for part in self.parts:
            yield replace(part, title=": ".join(filter(None, [self.title, part.title])))


def read_saved(
    paths: Sequence[Path], records: Iterable[Record], problems: Sequence[RecordError]
) -> tuple[list[SavedResult], list[RecordError]]:
    """The saved results among files that are no records, and the problems that are left."""
    known = {record.path for record in records}
    found: list[SavedResult] = []
    left = list(problems)
    for path in find_records(paths):
        if path in known:
            continue
        try:
            saved = _saved(path)
        except json.JSONDecodeError:
            continue  # the reader of records has said so
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            left.append(RecordError(path, f"cannot be read as what it seems to be ({error})"))
            continue
        if saved:
            found.append(saved)
    understood = {saved.path for saved in found}
    return found, [problem for problem in left if problem.path not in understood]


def _saved(path: Path) -> SavedResult | None:
    """None where the file is of no kind that is known."""
    content = json.loads(path.read_text(encoding="utf-8"))
    kind = _kind(content.keys()) if isinstance(content, Mapping) else None
    if kind is None:
        return None
    found = _named(kind.reader).from_dict(content)
    return SavedResult(
        kind.name,
        path,
        tuple(_named(kind.parts)(found)),
        getattr(found, "subject", None) or "",
        _named(kind.glossary) if kind.glossary else (),
    )


def _kind(keys: Collection[str]) -> SavedKind | None:
    return next((kind for kind in KINDS if kind.keys <= set(keys)), None)


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
