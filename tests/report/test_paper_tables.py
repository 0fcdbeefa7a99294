"""The paper's figures: as printed, and found by the names that records use."""

from __future__ import annotations

import pytest

from riselab.common.intervals import Estimate
from riselab.report.paper import TABLES, find


def test_every_row_is_complete() -> None:
    counts = {"1": 10, "2": 6, "3": 6}
    for number, table in TABLES.items():
        assert len(table.rows) == counts[number]
        for row in table.rows:
            assert [len(triple) for triple in row.figures] == [3] * len(table.columns)


@pytest.mark.parametrize(
    ("table", "row", "column", "section", "expected"),
    [
        ("1", "ZO-FC+RISE", "CIFAR100 Inc-5", "", (89.75, 84.73, 4.25)),
        ("1", "zo-fc + rise", "ImageNet-R Inc-5", "anything", (72.05, 67.57, 2.68)),
        ("1", "EASE", "DomainNet Inc-69", "FO Optimization", (75.91, 70.24, 8.54)),
        ("1", "EASE", "DomainNet Inc-69", "ZO Optimization", (63.10, 56.80, 7.22)),
        ("1", "FO Optimization EASE", "CIFAR100 Inc-5", "", (91.13, 85.45, 7.05)),
        ("2", "RISE", "Standard CL Benchmark Order 2", "O-LoRA", (76.90, 71.85, 1.87)),
        ("2", "SeqLoRA FO", "Large Number of Tasks Order 3", "", (27.62, 52.43, 50.62)),
        ("3", "q=16", "ImageNet-R Inc-5", "", (73.92, 68.73, 4.29)),
        ("3", "64", "", "", (75.06, 69.03, 6.46)),
    ],
)
def test_find(table: str, row: str, column: str, section: str, expected: tuple[float, ...]) -> None:
    assert tuple(f.mean for f in find(table, row, column, section).figures) == expected


def test_deviations_are_those_of_the_language_table() -> None:
    order = find("2", "RISE", "Standard CL Benchmark Order 1", "SeqLoRA")
    assert order.figures == (
        Estimate(74.85, 1.95, 0),
        Estimate(89.46, 0.09, 0),
        Estimate(7.01, 2.21, 0),
    )


@pytest.mark.parametrize(
    ("table", "row", "column", "message"),
    [
        ("4", "EASE", "", "the paper has no table '4' of results; it has 1, 2, 3"),
        ("1", "EASE", "CIFAR100 Inc-5", "no single row 'EASE'; its rows are: FO Optimization L"),
        ("1", "L2P", "CIFAR100 Inc-5", "no single row 'L2P'"),
        ("1", "ZO-FC", "CIFAR10", "no column 'CIFAR10'; its columns are: CIFAR100 Inc-5, "),
        ("3", "q=2", "", "no single row 'q=2'"),
        ("2", "!", "Standard CL Benchmark Order 1", "no single row '!'"),
    ],
)
def test_what_is_not_there_is_said(table: str, row: str, column: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"[Tt]able") as caught:
        find(table, row, column)
    assert message in str(caught.value)
