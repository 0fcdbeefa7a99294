"""Named parameters as one flat vector in which every block is a run of neighbours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from risegrad.core.blocks import BlockRow, Blocks, exempted, resolve_blocks
from risegrad.core.coverage import plain_name
from risegrad.core.shapers import Shaper, q_of_blocks

MOST_BLOCKS = 256
"""With more blocks, rules are compared and blocks are not: each of them would cost a product."""
EXACT = 10**12
"""So many directions leave a gradient as it is: the q of blocks that move but are not shaped."""


@dataclass(frozen=True)
class Block(BlockRow):
    """A block and its place in the flat vector, ``start..stop``."""

    start: int = 0

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.d

    @property
    def at(self) -> slice:
        """Its place in the flat vector."""
        return slice(self.start, self.stop)


@dataclass(frozen=True)
class Space:
    """Parameters in the order of their blocks; ``names`` are the model's own."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    blocks: tuple[Block, ...]
    dtype: torch.dtype
    device: torch.device
    rows_left_out: Mapping[str, int] = field(default_factory=dict)
    """By name: how many of the first rows no step reaches. They are in no block, and zero in every
    displacement."""

    @property
    def d(self) -> int:
        """How many coordinates all blocks have together."""
        return self.blocks[-1].stop

    def numbers(self, what: str) -> Tensor:
        """One float64 number per block: ``d``, ``q``, ``tau`` or ``mean_factor``."""
        return torch.tensor([getattr(block, what) for block in self.blocks], dtype=torch.float64)

    def spread(self, values: Tensor) -> Tensor:
        """One number per block, repeated over its coordinates."""
        counts = torch.tensor([block.d for block in self.blocks], device=self.device)
        return values.to(self.device, self.dtype).repeat_interleave(counts)

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """Tensors in the order of ``names`` as one vector."""
        return self.narrowed(torch.cat([tensor.detach().reshape(-1) for tensor in tensors]))

    def tensors(self, vector: Tensor) -> list[Tensor]:
        """The inverse of ``flat``, as views where nothing is left out."""
        parts = torch.split(self.widened(vector), [shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def widened(self, part: Tensor) -> Tensor:
        """Vectors (d, ...) over all elements of the tensors, zero where rows are left out."""
        if not self.rows_left_out:
            return part
        whole = part.new_zeros(len(self._taken), *part.shape[1:])
        whole[self._taken] = part
        return whole

    def narrowed(self, whole: Tensor) -> Tensor:
        """The inverse of ``widened``."""
        return whole[self._taken] if self.rows_left_out else whole

    @cached_property
    def _taken(self) -> Tensor:
        """Which elements of all tensors take part."""
        marks = []
        for name, shape in zip(self.names, self.shapes, strict=True):
            mark = torch.ones(shape.numel(), dtype=torch.bool, device=self.device)
            mark[: self.rows_left_out.get(name, 0) * shape[1:].numel()] = False
            marks.append(mark)
        return torch.cat(marks)

    @property
    def by_block(self) -> bool:
        """Whether there are few enough blocks for a product with the gradient of each of them."""
        return len(self.blocks) <= MOST_BLOCKS

    @cached_property
    def _owners(self) -> Tensor:
        """The block of every coordinate."""
        sizes = torch.tensor([block.d for block in self.blocks], device=self.device)
        return torch.arange(len(sizes), device=self.device).repeat_interleave(sizes)

    def block_dots(self, a: Tensor, b: Tensor) -> Tensor:
        """``a_b . b_b`` for every block, added up in float64."""
        products = a.double() * b.double()
        sums = torch.zeros(len(self.blocks), dtype=torch.float64, device=products.device)
        return sums.index_add_(0, self._owners.to(products.device), products).cpu()


def trained_parameters(model: nn.Module, exempt: Sequence[str] = ()) -> dict[str, Tensor]:
    """What an update moves: parameters that want gradients and are not exempt, by plain name.

    Exempt parameters stand still in every prediction, under FO as under RISE.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    plain: dict[str, Tensor] = {plain_name(name): p for name, p in named}
    wanted: dict[str, Tensor] = plain if len(plain) == len(named) else {**dict(named)}
    if not wanted:
        raise ValueError("model has no parameter with requires_grad=True: nothing would be updated")
    for name in exempted(wanted, exempt):
        del wanted[name]
    if not wanted:
        raise ValueError("exempt names every trained parameter: nothing is left to diagnose")
    return wanted


def make_space(
    parameters: Mapping[str, Tensor],
    shaper: Shaper,
    still: Collection[str] = (),
    left_out: Mapping[str, int] | None = None,
) -> Space:
    """Lay out the parameters in the blocks that ``shaper`` would give them.

    Those named in ``still`` get no gradient and take no part in a step, nor do the first rows that
    are ``left_out``: blocks are what is left.
    """
    if shaper.blocks == "group":
        raise ValueError("blocks 'group' needs an optimizer's groups; choose another kind here")
    dtype, device = _common(parameters)
    blocks = resolve_blocks(shaper.blocks, dict.fromkeys(parameters, 0))
    counts = q_of_blocks(shaper, blocks, {name: p.numel() for name, p in parameters.items()})
    names = tuple(name for name in blocks.parameters if name not in still)
    rows = {name: count for name, count in (left_out or {}).items() if count and name in names}
    sizes = {name: _size(parameters[name], rows.get(name, 0)) for name in names}
    cut = _cut(blocks, counts, sizes)
    shapes = tuple(parameters[name].shape for name in names)
    return Space(names, shapes, cut, dtype, device, rows)


def _size(parameter: Tensor, rows: int) -> int:
    """Elements without the first rows; a single number has none to leave out."""
    return parameter.numel() - rows * parameter.shape[1:].numel()


def _cut(blocks: Blocks, counts: Sequence[int], sizes: Mapping[str, int]) -> tuple[Block, ...]:
    found: list[Block] = []
    start = 0
    for (name, members), q in zip(blocks.members.items(), counts, strict=True):
        there = [sizes[member] for member in members if member in sizes]
        if not there:
            continue
        stop = start + sum(there)
        if stop == start:
            raise ValueError(f"block {name!r} has no elements: a block needs at least one")
        edges = [*range(start, stop, blocks.chunk or stop - start), stop]
        pieces = list(pairwise(edges))
        labels = [name] if len(pieces) == 1 else [f"{name}[{i}]" for i in range(len(pieces))]
        found += [
            Block(label, high - low, q, start=low)
            for label, (low, high) in zip(labels, pieces, strict=True)
        ]
        start = stop
    return tuple(found)


def _common(parameters: Mapping[str, Tensor]) -> tuple[torch.dtype, torch.device]:
    """The dtype and device of all parameters: products are taken in one piece."""
    first = next(iter(parameters.values()))
    for name, parameter in parameters.items():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"parameter {name!r} is {parameter.dtype}: curvature needs float32 or float64 "
                "(model.float())"
            )
        if (parameter.dtype, parameter.device) != (first.dtype, first.device):
            raise ValueError(
                f"all parameters must have one dtype and device; {name!r} is {parameter.dtype} on "
                f"{parameter.device}, the first {first.dtype} on {first.device}"
            )
    return first.dtype, first.device
