"""The figures of the paper's Tables 1-3, in percent, as printed there.

A record names a cell by table, row and column (``docs/records.md``); ``find`` looks it up. The
section distinguishes rows of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from riselab.common.intervals import Estimate

METRICS = ("avg", "last", "forgetting")
"""The columns of every table of the paper, in its order."""


@dataclass(frozen=True)
class PaperRow:
    """One row of a table in the paper."""

    section: str
    label: str
    figures: tuple[tuple[Estimate, ...], ...]
    """one triple (avg, last, forgetting) per column of the table"""


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper."""

    number: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    model: str


@dataclass(frozen=True)
class PaperPlace:
    """A row and a column of one of the tables, counted from 0."""

    table: PaperTable
    row: int
    column: int

    @property
    def figures(self) -> tuple[Estimate, ...]:
        """The figures at this place."""
        return self.table.rows[self.row].figures[self.column]

    @property
    def setting(self) -> str:
        """Where the figures stand and what they are of: "Table 1, CIFAR100 Inc-5, ViT-B/16"."""
        table = self.table
        return f"Table {table.number}, {table.columns[self.column]}, {table.model}"


def _rows(section: str, text: str, metrics: int = len(METRICS)) -> Iterator[PaperRow]:
    """``label | numbers`` per line; a number may carry its deviation as ``53.33~1.16``."""
    for line in text.strip().splitlines():
        label, numbers = line.split("|")
        figures = [_figure(number) for number in numbers.split()]
        triples = (tuple(figures[i : i + metrics]) for i in range(0, len(figures), metrics))
        yield PaperRow(section, label.strip(), tuple(triples))


def _figure(text: str) -> Estimate:
    mean, _, sd = text.partition("~")
    return Estimate(float(mean), float(sd) if sd else None, 0)  # of how many, it does not say


VISION = PaperTable(
    "1",
    "Vision continual-learning results (%)",
    ("CIFAR100 Inc-5", "ImageNet-R Inc-5", "DomainNet Inc-69"),
    (
        *_rows(
            "FO Optimization",
            """
            Learnable Cls. | 85.61 78.33 5.17  60.60 52.12 3.98  75.85 69.88 3.70
            Adapter + Cls. | 88.41 83.64 9.58  74.71 69.62 8.49  78.67 72.85 4.64
            APER Adapter   | 87.90 81.68 6.01  71.52 63.42 7.48  71.24 64.93 6.72
            EASE           | 91.13 85.45 7.05  78.78 71.93 7.54  75.91 70.24 8.54
            """,
        ),
        *_rows(
            "ZO Optimization",
            """
            Learnable Cls. | 62.85 43.55 3.99  25.60 17.08 9.18  52.70 46.21 7.37
            Adapter + Cls. | 79.45 70.46 8.72  34.87 27.33 6.36  48.24 44.29 4.56
            APER Adapter   | 87.70 81.49 6.07  62.60 54.50 8.55  62.45 56.67 6.89
            EASE           | 87.32 81.07 6.87  62.65 54.47 9.84  63.10 56.80 7.22
            ZO-FC          | 88.39 83.34 5.26  72.01 66.63 4.40  77.17 71.05 4.19
            ZO-FC+RISE     | 89.75 84.73 4.25  72.05 67.57 2.68  77.57 71.44 3.91
            """,
        ),
    ),
    "ViT-B/16",
)

LANGUAGE = PaperTable(
    "2",
    "Additional language-model continual-learning results (%)",
    (
        "Standard CL Benchmark Order 1",
        "Standard CL Benchmark Order 2",
        "Large Number of Tasks Order 3",
    ),
    (
        *_rows(
            "SeqLoRA",
            """
            FO   | 53.33~1.16 89.99~0.40 35.57~1.50 52.13~4.89 73.23~0.61 37.01~6.69 27.62~11.26 52.43~3.81 50.62~12.43
            ZO   | 46.24~3.02 62.05~5.49 3.67~0.62  42.07~3.62 57.51~1.31 7.36~1.31  25.60~8.24 53.61~10.77 15.83~6.13
            RISE | 74.85~1.95 89.46~0.09 7.01~2.21  75.15~0.67 73.16~0.23 6.58~1.45  62.65~5.13 56.66~1.42 17.77~5.16
            """,  # noqa: E501
        ),
        *_rows(
            "O-LoRA",
            """
            FO   | 77.19~0.28 89.04~0.47 2.83~0.02  76.61~0.62 71.92~0.19 2.37~0.32  72.72~1.61 54.44~2.09 3.80~1.44
            ZO   | 62.42~1.47 61.70~3.18 0.98~1.16  60.38~1.32 61.72~0.86 2.09~2.59  56.48~2.61 52.19~6.54 3.76~2.57
            RISE | 77.24~0.30 88.81~0.37 1.43~0.37  76.90~0.18 71.85~0.26 1.87~0.05  74.06~0.39 54.55~1.27 3.16~0.48
            """,  # noqa: E501
        ),
    ),
    "T5",
)

QUERIES = PaperTable(
    "3",
    "Ablation over query count q on ImageNet-R Inc-5 (%)",
    ("ImageNet-R Inc-5",),
    tuple(
        _rows(
            "",
            """
            q=1  | 71.21 66.42 2.63
            q=4  | 72.05 67.57 2.68
            q=8  | 72.98 68.27 3.48
            q=16 | 73.92 68.73 4.29
            q=32 | 74.94 69.27 5.08
            q=64 | 75.06 69.03 6.46
            """,
        )
    ),
    "ViT-B/16",
)

TABLES = {table.number: table for table in (VISION, LANGUAGE, QUERIES)}


def find(table: str, row: str, column: str, section: str = "") -> PaperPlace:
    """The place that a record names; a ``ValueError`` says what there is.

    ``row`` is the printed name, alone or after its section: ``"RISE"`` in the section ``"SeqLoRA"``
    or ``"SeqLoRA RISE"``. In Table 3 it may be the bare query count; ``column`` may stay empty
    where the table has one only. Case, spaces and punctuation do not matter.
    """
    if table not in TABLES:
        raise ValueError(f"the paper has no table {table!r} of results; it has {', '.join(TABLES)}")
    found = TABLES[table]
    matches = [place for place, one in enumerate(found.rows) if plain_name(row) in _names(one)]
    if len(matches) > 1:
        here = plain_name(section)
        matches = [place for place in matches if plain_name(found.rows[place].section) == here]
    if len(matches) != 1:
        known = ", ".join(f"{one.section} {one.label}".strip() for one in found.rows)
        raise ValueError(f"Table {table} has no single row {row!r}; its rows are: {known}")
    columns = [plain_name(one) for one in found.columns]
    wanted = plain_name(column) or (columns[0] if len(columns) == 1 else "")
    if wanted not in columns:
        known = ", ".join(found.columns)
        raise ValueError(f"Table {table} has no column {column!r}; its columns are: {known}")
    return PaperPlace(found, matches[0], columns.index(wanted))


def plain_name(text: str) -> str:
    """Letters and digits only: what two spellings of a name have in common."""
    return "".join(character for character in text.lower() if character.isalnum())


def _names(row: PaperRow) -> set[str]:
    plain = plain_name(row.label)
    return {plain, plain_name(row.section + row.label), plain.removeprefix("q")}
