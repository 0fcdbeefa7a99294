"""The blocks of a diagnosis as lines that can be read, however many there are.

Those whose names differ in numbers only, such as the layers of a model, stand under one title. A
line is a block, or a tensor with the range over its chunks where there are very many.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from risegrad.curvature.estimates.estimated import Estimate
from risegrad.curvature.estimates.spectral import Bounds
from risegrad.curvature.operators.parameter_space import EXACT
from risegrad.foresight.diagnosis_report import BlockReport
from risegrad.foresight.recommendation import in_short
from risegrad.pages.tables import Line, Section, Table, text_table

MOST_BLOCKS, MOST_TENSORS = 100, 200
"""Beyond the first, chunks share a line; beyond the second, tensors of one pattern do."""
LONGEST_NAME, LONGEST_TITLE = 22, 80
"""Characters, of a line or label and of a section; what is longer is cut in the middle."""
NOTHING = "-"
CHUNK = re.compile(r"\[\d+\]$")
LAYER = re.compile(r"(?<![^.])\d+(?![^.])")
MEASURES = ("lambda_dir", "lambda_avg", "S", "C", "R")
Blocks = Sequence[BlockReport]
Row = tuple[str, ...]


def block_table(blocks: Blocks) -> Table:
    """All blocks in one table, those of one pattern under one title; empty columns are left out."""
    patterns = _grouped(blocks, lambda block: LAYER.sub("*", CHUNK.sub("", block.name)))
    titles = short_names([*patterns], LONGEST_TITLE)
    caption, key = "Every block", _own_name
    if len(blocks) > MOST_BLOCKS:
        caption, key = f"{len(blocks):,} blocks: each line has the range over its own", _tensor
        if len(_grouped(blocks, _tensor)) > MOST_TENSORS:
            key = _nothing
    made = [
        (title, group, _grouped(group, key))
        for title, group in zip(titles, patterns.values(), strict=True)
    ]
    single = [_line(title, group) for title, group, own in made if len(own) == 1]
    several = [_section(*found) for found in made if len(found[2]) > 1]
    sections = [Section("", tuple(single)), *several] if single else several
    return _without_empty_columns(text_table(caption, ("block", *MEASURES), []), sections)


def _own_name(block: BlockReport) -> str:
    return block.name


def _tensor(block: BlockReport) -> str:
    return CHUNK.sub("", block.name)


def _nothing(block: BlockReport) -> str:
    return ""


def _grouped(blocks: Blocks, key: Callable[[BlockReport], str]) -> dict[str, Blocks]:
    found: dict[str, list[BlockReport]] = {}
    for block in blocks:
        found.setdefault(key(block), []).append(block)
    return dict(found)


def _section(title: str, blocks: Blocks, own: Mapping[str, Blocks]) -> Section:
    """The range over all, then the lines; what all have in common is said in the title."""
    names = different_words([*own])
    lines = [_line(name, group) for name, group in zip(names, own.values(), strict=True)]
    whole = _line(f"all {len(own)}", blocks)
    notes = {line.note for line in lines}
    if len(notes) > 1:
        return Section(title, (whole, *lines))
    plain = (replace(line, note="") for line in (whole, *lines))
    return Section(f"{title}: {notes.pop()}", tuple(plain))


def _line(name: str, blocks: Blocks) -> Line:
    row = (name, *(_measured([getattr(b, measure) for b in blocks]) for measure in MEASURES))
    (line,) = text_table("", ("block", *MEASURES), [row]).sections[0].lines
    return replace(line, note=_sizes(blocks))


def _sizes(blocks: Blocks) -> str:
    """What is known of blocks before any measurement."""
    count = f"{len(blocks):,} blocks of " if len(blocks) > 1 else ""
    qs = ["all" if q >= EXACT else str(q) for q in sorted(b.q for b in blocks)]
    return (
        f"{count}d {_range([f'{d:,}' for d in sorted(b.d for b in blocks)])}, q {_range(qs)}, "
        f"factor {_range([f'{a:.3g}' for a in sorted(b.mean_factor for b in blocks)])}"
    )


def _range(ordered: Sequence[str]) -> str:
    return " to ".join(dict.fromkeys((ordered[0], ordered[-1])))


def _measured(found: Sequence[Estimate | Bounds | None]) -> str:
    """One with its error; of many the range, in which errors would say little."""
    estimates = [value for value in found if isinstance(value, Estimate)]
    bounds = [value for value in found if isinstance(value, Bounds)]
    if len(estimates) == 1:
        return _compact(in_short(estimates[0]))
    lows = [e.value for e in estimates] + [b.lower for b in bounds]
    highs = [e.value for e in estimates] + [b.upper for b in bounds]
    return _compact(f"{min(lows):.2g} to {max(highs):.2g}") if lows else NOTHING


def _compact(text: str) -> str:
    """Columns must fit on a page: 2e-05 as 2e-5."""
    return re.sub(r"e(-?)\+?0*(\d)", r"e\1\2", text)


def _without_empty_columns(table: Table, sections: Sequence[Section]) -> Table:
    lines = [line for section in sections for line in section.lines]
    kept = [
        n for n in range(len(MEASURES))
        if any(cell and cell.text != NOTHING for cell in (line.cells[n] for line in lines))
    ]  # fmt: skip
    cut = (
        replace(s, lines=tuple(replace(x, cells=tuple(x.cells[n] for n in kept)) for x in s.lines))
        for s in sections
    )
    return replace(table, columns=tuple(table.columns[n] for n in kept), sections=tuple(cut))


def without_empty(rows: Iterable[Sequence[str]]) -> list[Row]:
    """A head and its rows without the columns in which no row has anything.

    >>> without_empty([("block", "S", "C"), ("a", "1", "-"), ("b", "2", "-")])
    [('block', 'S'), ('a', '1'), ('b', '2')]
    """
    table = [tuple(row) for row in rows]
    empty = [all(row[n] == NOTHING for row in table[1:]) for n in range(len(table[0]))]
    if len(table) == 1:
        return table
    return [tuple(text for text, out in zip(row, empty, strict=True) if not out) for row in table]


def short_names(names: Sequence[str], longest: int = LONGEST_NAME) -> list[str]:
    """Without the words that all share; then cut in the middle, no two alike.

    >>> short_names(["model.blocks.0.fc1.default.weight", "model.blocks.1.fc2.default.weight"])
    ['0.fc1', '1.fc2']
    """
    tensors = [CHUNK.sub("", name) for name in names]
    rests = [name[len(tensor) :] for name, tensor in zip(names, tensors, strict=True)]
    words = _different([tensor.split(".") for tensor in tensors])
    if not all(words):
        return cut_names(names, longest)
    whole = [".".join(row) + rest for row, rest in zip(words, rests, strict=True)]
    return cut_names(whole, longest)


def _different(words: Sequence[list[str]]) -> list[list[str]]:
    """Of names with as many words as each other also without shared words in the middle."""
    if len({len(row) for row in words}) == 1:
        columns = [column for column in zip(*words, strict=True) if len(set(column)) > 1]
        return [list(row) for row in zip(*columns, strict=True)] or [[] for _ in words]
    start, end = _common(words), _common([row[::-1] for row in words])
    return [row[start : len(row) - end] for row in words]


def different_words(names: Sequence[str]) -> list[str]:
    """What tells names of one pattern apart: their numbers, each with the word before it.

    >>> different_words(["encoder.block.0.layer.1.q[3]", "encoder.block.7.layer.1.q[3]"])
    ['block.0[3]', 'block.7[3]']
    """
    tensors = [CHUNK.sub("", name) for name in names]
    words = [tensor.split(".") for tensor in tensors]
    places = [n for n, column in enumerate(zip(*words, strict=True)) if len(set(column)) > 1]
    return [
        ".".join(w for n in places for w in row[max(n - 1, 0) : n + 1]) + name[len(tensor) :]
        for row, tensor, name in zip(words, tensors, names, strict=True)
    ]


def cut_names(names: Sequence[str], longest: int) -> list[str]:
    """Cut in the middle to as few characters as keep them distinct, but not below ``longest``.

    >>> cut_names(["encoder.block.0.attention.q[24]", "encoder.block.1.attention.q[24]"], 24)
    ['encoder.block.0…on.q[24]', 'encoder.block.1…on.q[24]']
    """
    different = len(set(names))
    for width in range(longest, max(map(len, names), default=0)):
        for head in _heads(width):
            found = [_cut(name, head, width - 1 - head) for name in names]
            if len(set(found)) == different:
                return found
    return list(names)


def _heads(width: int) -> Iterator[int]:
    """Lengths of the part before the cut, from the middle outwards."""
    middle = width // 2
    for off in range(middle - 3):
        yield from (middle + off, middle - off)


def _cut(name: str, head: int, tail: int) -> str:
    return name if len(name) <= head + 1 + tail else f"{name[:head]}…{name[len(name) - tail :]}"


def _common(rows: Sequence[Sequence[str]]) -> int:
    """How many words all rows begin with."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))
