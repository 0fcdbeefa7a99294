"""Text in columns, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text_columns(rows: Iterable[Sequence[str]], right: bool = True) -> list[str]:
    """A line per row: the first column to the left, the others to the right (or all to the left).

    >>> print("\\n".join(text_columns([("", "Avg"), ("RISE", "81.20"), ("FO", "9.5")])))
            Avg
    RISE  81.20
    FO      9.5
    """
    table = list(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(_cells(row, widths, right)).rstrip() for row in table]


def _cells(row: Sequence[str], widths: Sequence[int], right: bool) -> list[str]:
    first, *rest = zip(row, widths, strict=True)
    others = [text.rjust(width) if right else text.ljust(width) for text, width in rest]
    return [first[0].ljust(first[1]), *others]
