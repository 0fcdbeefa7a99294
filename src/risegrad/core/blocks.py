"""Blocks: named, ordered, disjoint sets of parameters that are shaped independently."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import accumulate

import torch
from torch import Tensor

from risegrad.common.checks import check_positive_int
from risegrad.theory.calibration import mean_factor, tau

Patterns = Mapping[str, str | Sequence[str]]
SPECIFICATIONS = ("tensor", "module", "group", "whole")


@dataclass(frozen=True)
class Blocks:
    """Block names and the parameters in each; with ``chunk``, each parameter is cut further.

    >>> Blocks({"first": ["a", "b"], "second": ["c"]}).parameters
    ('a', 'b', 'c')
    """

    members: Mapping[str, Sequence[str]]
    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None:
            check_positive_int("chunk size", self.chunk)
        home: dict[str, str] = {}
        for block, names in self.members.items():
            if isinstance(names, str):
                raise TypeError(
                    f"block {block!r} must list parameter names, got the text {names!r}"
                )
            if not names:
                raise ValueError(f"block {block!r} is empty: a block needs at least one parameter")
            if self.chunk is not None and len(names) > 1:
                raise ValueError(f"block {block!r}: with a chunk size, one parameter per block")
            for name in names:
                if name in home:
                    raise ValueError(
                        f"parameter {name!r} is in two blocks, {home[name]!r} and {block!r}; "
                        "blocks must be disjoint"
                    )
                home[name] = block

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameter names, block by block."""
        return tuple(name for names in self.members.values() for name in names)

    def dimensions(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """``d`` of each named block, for parameters of these sizes; of chunks, that of a whole one.

        >>> Blocks.chunks(["a", "b"], 64).dimensions({"a": 1000, "b": 10})
        (64, 10)
        """
        whole = (sum(sizes[name] for name in names) for names in self.members.values())
        return tuple(size if self.chunk is None else min(size, self.chunk) for size in whole)

    @classmethod
    def by_tensor(cls, names: Iterable[str]) -> Blocks:
        """Every tensor is a block: the paper's choice, and the default."""
        return cls({name: (name,) for name in names})

    @classmethod
    def by_module(cls, names: Iterable[str]) -> Blocks:
        """The tensors of one module (``layer.weight`` and ``layer.bias``) form a block."""
        return cls(_grouped((name.rpartition(".")[0] or "(root)", name) for name in names))

    @classmethod
    def by_group(cls, names: Iterable[str], groups: Mapping[str, int]) -> Blocks:
        """The parameters of one optimizer group form a block; ``groups`` maps names to groups."""
        return cls(_grouped((f"group {groups[name]}", name) for name in names))

    @classmethod
    def whole(cls, names: Iterable[str]) -> Blocks:
        """Everything is one block: global shaping."""
        return cls({"whole": tuple(names)})

    @classmethod
    def chunks(cls, names: Iterable[str], size: int) -> Blocks:
        """Each tensor is cut into pieces of ``size`` elements; the last may be shorter."""
        return cls({name: (name,) for name in names}, chunk=size)

    @classmethod
    def by_pattern(cls, names: Iterable[str], patterns: Patterns) -> Blocks:
        """Blocks from shell-style patterns over parameter names: ``{"attention": "*.attn.*"}``."""
        names = tuple(names)
        members = {}
        for block, wanted in patterns.items():
            wanted = (wanted,) if isinstance(wanted, str) else wanted
            members[block] = tuple(name for name in names if matches(name, wanted))
            if not members[block]:
                raise ValueError(f"block {block!r}: no parameter matches {', '.join(wanted)}")
        return cls(members)


BlockChoice = str | int | Patterns | Blocks


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether the name fits one of the patterns, such as ``head.*``."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_block_choice(choice: object) -> None:
    """What can be said about a choice of blocks before any parameter is known."""
    if isinstance(choice, bool) or not isinstance(choice, str | int | Mapping | Blocks):
        raise TypeError(f"blocks must be {_allowed()}; got {choice!r} ({type(choice).__name__})")
    if isinstance(choice, str) and choice not in SPECIFICATIONS:
        raise ValueError(f"blocks must be {_allowed()}; got {choice!r}")
    if isinstance(choice, int):
        check_positive_int("blocks (a chunk size)", choice)


def resolve_blocks(choice: BlockChoice, groups: Mapping[str, int]) -> Blocks:
    """The blocks that a choice means for parameters (name -> optimizer group), all covered."""
    check_block_choice(choice)
    names = tuple(groups)
    blocks = _resolve(choice, names, groups)
    _check_cover(blocks, names)
    return blocks


def exempted(names: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    """The names that exemption patterns take out; a pattern that matches nothing is a mistake."""
    names = tuple(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(
                f"exempt: no parameter matches {pattern!r}; the parameters are {listing(names)}"
            )
    return tuple(name for name in names if matches(name, patterns))


def listing(names: Sequence[str], most: int = 8) -> str:
    """A few of many names, for messages."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


def _resolve(choice: BlockChoice, names: tuple[str, ...], groups: Mapping[str, int]) -> Blocks:
    if isinstance(choice, Blocks):
        return choice
    if isinstance(choice, int):
        return Blocks.chunks(names, choice)
    if isinstance(choice, Mapping):
        return Blocks.by_pattern(names, choice)
    if choice == "group":
        return Blocks.by_group(names, groups)
    builders = {"tensor": Blocks.by_tensor, "module": Blocks.by_module, "whole": Blocks.whole}
    return builders[choice](names)


def _check_cover(blocks: Blocks, names: tuple[str, ...]) -> None:
    covered = set(blocks.parameters)
    left_out = [name for name in names if name not in covered]
    if left_out:
        raise ValueError(
            f"no block covers {listing(left_out)}; add a block for them, or name them in exempt"
        )
    known = set(names)
    unknown = [name for name in blocks.parameters if name not in known]
    if unknown:
        raise ValueError(
            f"blocks name parameters that the optimizer does not have (or that are exempt): "
            f"{listing(unknown)}; it has {listing(names)}"
        )


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    grouped: dict[str, list[str]] = {}
    for block, name in pairs:
        grouped.setdefault(block, []).append(name)
    return {block: tuple(names) for block, names in grouped.items()}


def _allowed() -> str:
    return (
        f"one of {', '.join(SPECIFICATIONS)}, a chunk size >= 1, a mapping of block names to "
        "patterns, or a Blocks object"
    )


WORKSPACE = 1 << 19
"""Elements: small blocks are handled together up to this many, to spare the overhead of each."""


@dataclass(frozen=True)
class Span:
    """Positions ``start..stop`` of a parameter: part of a block or, with ``chunk``, many blocks."""

    parameter: int
    start: int
    stop: int
    block: int
    offset: int
    """The parameter's place in the draws: its first element has this position."""
    chunk: int | None = None

    @property
    def size(self) -> int:
        """How many elements it has."""
        return self.stop - self.start


@dataclass(frozen=True)
class BlockBatch:
    """Spans that cover the blocks ``first..stop`` entirely."""

    spans: tuple[Span, ...]
    first: int
    stop: int


@dataclass(frozen=True)
class BlockRow:
    """A block as people see it; the pieces of a chunked parameter share a row."""

    name: str
    d: int
    q: int
    count: int = 1

    @property
    def tau(self) -> float:
        """``tau = d/(q+d+1)`` of the block."""
        return tau(self.d, self.q)

    @property
    def mean_factor(self) -> float:
        """``a = sqrt(q/(q+d+1))``: what is left of the mean."""
        return mean_factor(self.d, self.q)


@dataclass(frozen=True)
class Layout:
    """Parameters by number, the blocks, and the batches a step works through."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    rows: tuple[BlockRow, ...]
    batches: tuple[BlockBatch, ...]
    d: Tensor
    """Of every block, when all of it takes part in a step."""
    q: Tensor

    def taking_part(self, absent: Sequence[int]) -> Tensor:
        """``d`` of every block without the first ``absent`` elements of each parameter."""
        if not any(absent):
            return self.d
        d = self.d.numpy().copy()  # numpy, because most of many parameters may be frozen
        for span in (span for batch in self.batches for span in batch.spans):
            gone = min(absent[span.parameter], span.stop) - span.start
            if gone <= 0:
                continue
            whole, rest = (0, gone) if span.chunk is None else divmod(gone, span.chunk)
            d[span.block : span.block + whole] = 0
            if rest:
                d[span.block + whole] -= rest
        return torch.from_numpy(d)


def make_layout(blocks: Blocks, q: Sequence[int], sizes: Mapping[str, int]) -> Layout:
    """Lay out parameters of the given sizes; ``q`` has one entry per named block.

    The order of ``sizes`` gives the parameters their positions in the draws. It is not the order of
    the blocks, so that a parameter that joins an earlier block later on does not move the others.
    """
    for name in blocks.parameters:
        if sizes[name] == 0:
            raise ValueError(f"parameter {name!r} has no elements: a block needs at least one")
    rows, entries = _rows_and_entries(blocks, q, sizes)
    # Also under ``with torch.device("cuda")``: numpy draws the numbers of blocks.
    with torch.device("cpu"):
        counts = torch.tensor([row.count for row in rows])
        d = torch.tensor([row.d for row in rows], dtype=torch.float64)
        directions = torch.tensor([row.q for row in rows], dtype=torch.float64)
    return Layout(
        names=tuple(sizes),
        sizes=tuple(sizes.values()),
        rows=tuple(rows),
        batches=tuple(_packed(entries)),
        d=d.repeat_interleave(counts),
        q=directions.repeat_interleave(counts),
    )


def _rows_and_entries(
    blocks: Blocks, q: Sequence[int], sizes: Mapping[str, int]
) -> tuple[list[BlockRow], list[BlockBatch]]:
    """The rows, and the smallest batches there can be: one block, or a run of chunks."""
    index = {name: number for number, name in enumerate(sizes)}
    offsets = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))
    rows: list[BlockRow] = []
    entries: list[BlockBatch] = []
    block = 0
    for (name, members), directions in zip(blocks.members.items(), q, strict=True):
        size = sum(sizes[member] for member in members)
        if blocks.chunk is None or size <= blocks.chunk:
            rows.append(BlockRow(name, size, directions))
            spans = tuple(Span(index[m], 0, sizes[m], block, offsets[m]) for m in members)
            entries.append(BlockBatch(spans, block, block + 1))
        else:
            rows.extend(_chunk_rows(name, size, directions, blocks.chunk))
            whole = Span(index[members[0]], 0, size, block, offsets[members[0]], blocks.chunk)
            entries.extend(_chunk_entries(whole, blocks.chunk))
        block = entries[-1].stop
    return rows, entries


def _chunk_rows(name: str, size: int, q: int, chunk: int) -> Iterator[BlockRow]:
    yield BlockRow(name, chunk, q, size // chunk)
    if size % chunk:
        yield BlockRow(f"{name} (rest)", size % chunk, q)


def _chunk_entries(whole: Span, chunk: int) -> Iterator[BlockBatch]:
    size, block = whole.size, whole.block
    full, per_batch = size // chunk, max(1, WORKSPACE // chunk)
    for low in range(0, full, per_batch):
        high = min(low + per_batch, full)
        span = replace(whole, start=low * chunk, stop=high * chunk, block=block + low)
        yield BlockBatch((span,), block + low, block + high)
    if size % chunk:
        rest = replace(whole, start=full * chunk, block=block + full, chunk=None)
        yield BlockBatch((rest,), block + full, block + full + 1)


def _packed(entries: list[BlockBatch]) -> Iterator[BlockBatch]:
    """Neighbouring small entries together, up to ``WORKSPACE`` elements."""
    pending: list[BlockBatch] = []
    room = WORKSPACE
    for entry in entries:
        size = sum(span.size for span in entry.spans)
        if pending and size > room:
            yield _joined(pending)
            pending, room = [], WORKSPACE
        pending.append(entry)
        room -= size
    if pending:
        yield _joined(pending)


def _joined(entries: list[BlockBatch]) -> BlockBatch:
    spans = tuple(span for entry in entries for span in entry.spans)
    return BlockBatch(spans, entries[0].first, entries[-1].stop)
