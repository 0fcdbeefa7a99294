"""What a memory of a model would take, from shapes alone: bytes, and multiplications per step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from risegrad.common.checks import check_positive_int
from risegrad.common.text_columns import text_columns
from risegrad.core.blocks import matches
from risegrad.curvature.memory.covered_layers import sizes_of
from risegrad.curvature.memory.memory import size
from risegrad.curvature.memory.memory_size import NUMBER, factor_bytes

RANKS = (8, 16, 64)
TOKENS = 2048
"""Tokens (of images: patches) in a step, if nothing else is said: 8 texts of 256."""


@dataclass(frozen=True)
class LayerShape:
    """A layer as a memory sees it: its kind, and its weight's shape as it is stored."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs of the map."""
        return sizes_of(self.kind, self.shape)

    def bytes(self, rank: int) -> int:
        """What its two factors take; tokens of an embedding and norms are held as diagonals."""
        inputs, outputs = self.sizes
        if self.kind == "norm":
            return NUMBER * 2 * inputs
        first = NUMBER * inputs if self.kind == "embedding" else factor_bytes(inputs, rank)
        return first + factor_bytes(outputs, rank)

    def own(self, tokens: int, trained: bool) -> int:
        """Multiplications forward and backward; a frozen weight has no gradient of its own."""
        inputs, outputs = self.sizes
        if self.kind in ("embedding", "norm"):
            return tokens * outputs
        return (3 if trained else 2) * tokens * inputs * outputs

    def filter(self, rank: int) -> int:
        """Multiplications that filter the step of the whole weight, from both sides."""
        inputs, outputs = self.sizes
        if self.kind == "norm":
            return inputs
        right = 1 if self.kind == "embedding" else _across(inputs, rank)
        return inputs * outputs * (right + _across(outputs, rank))

    def lora_filter(self, rank: int, r: int) -> int:
        """The same for LoRA's ``A`` and ``B``, with the ``r x r`` sides that each step makes."""
        inputs, outputs = self.sizes
        wide = r * (inputs * _across(inputs, rank) + outputs * _across(outputs, rank))
        # Once to filter and once for A S A' and B'DB, which are then applied: 2 r^2 (in + out).
        return 2 * wide + 2 * r * r * (inputs + outputs)


def _across(dim: int, rank: int) -> int:
    """Multiplications per number to apply a factor: into its eigenvectors and back, or in full."""
    return dim if rank >= dim else 2 * rank


@dataclass(frozen=True)
class EstimatedGroup:
    """Layers that differ in their number alone; by rank, as ``ranks`` of the estimate has them."""

    name: str
    layers: int
    bytes: tuple[int, ...]
    time: tuple[float, ...]
    """Multiplications that are added to each step, over the layers' own."""


@dataclass(frozen=True)
class MemoryEstimate:
    """A memory of a model in one way of training."""

    way: str
    tokens: int
    ranks: tuple[int, ...]
    groups: tuple[EstimatedGroup, ...]
    total: EstimatedGroup

    def __str__(self) -> str:
        head = [f"memory of {self.way}", "layers"]
        head += [f"rank {rank}" for rank in self.ranks] + [f"time {rank}" for rank in self.ranks]
        rows = [_cells(group) for group in (*self.groups, self.total)]
        note = f"time: multiplications added to a step of {self.tokens:,} tokens over the layers'"
        return "\n".join([*text_columns([head, *rows]), f"{note} own"])


def _cells(group: EstimatedGroup) -> list[str]:
    sizes = [size(count) for count in group.bytes]
    return [group.name, str(group.layers), *sizes, *(f"{share:.2%}" for share in group.time)]


def full_estimate(
    layers: Iterable[LayerShape], tokens: int = TOKENS, ranks: Sequence[int] = RANKS
) -> MemoryEstimate:
    """For a training of all weights."""
    return _estimate("full fine-tuning", list(layers), None, tokens, ranks)


def lora_estimate(
    layers: Iterable[LayerShape],
    r: int,
    targets: Sequence[str],
    tokens: int = TOKENS,
    ranks: Sequence[int] = RANKS,
) -> MemoryEstimate:
    """For a LoRA of rank ``r`` on the layers whose names end with one of ``targets``."""
    patterns = [pattern for target in targets for pattern in (target, f"*.{target}")]
    adapted = [
        layer
        for layer in layers
        if layer.kind in ("linear", "conv1d") and matches(layer.name, patterns)
    ]
    if not adapted:
        raise ValueError(f"targets: no layer is called {' or '.join(targets)}")
    return _estimate(f"LoRA r={r} on {', '.join(targets)}", adapted, r, tokens, ranks)


def _estimate(
    way: str, layers: list[LayerShape], r: int | None, tokens: int, ranks: Sequence[int]
) -> MemoryEstimate:
    check_positive_int("tokens", tokens)
    grouped: dict[str, list[LayerShape]] = {}
    for layer in layers:
        grouped.setdefault(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", layer.name), []).append(layer)
    groups = [_group(name, own, r, tokens, ranks) for name, own in grouped.items()]
    total = _group("in all", layers, r, tokens, ranks)
    return MemoryEstimate(way, tokens, tuple(ranks), tuple(groups), total)


def _group(
    name: str, layers: list[LayerShape], r: int | None, tokens: int, ranks: Sequence[int]
) -> EstimatedGroup:
    own = sum(layer.own(tokens, r is None) for layer in layers)
    added = [
        sum(layer.filter(rank) if r is None else layer.lora_filter(rank, r) for layer in layers)
        for rank in ranks
    ]
    taken = (sum(layer.bytes(rank) for layer in layers) for rank in ranks)
    return EstimatedGroup(name, len(layers), tuple(taken), tuple(count / own for count in added))
