"""The curvature of what must be kept, layer by layer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_kind, check_number, check_positive_int
from risegrad.common.text_columns import text_columns
from risegrad.core.blocks import listing
from risegrad.memory.factor import Factor, Side
from risegrad.memory.files import read_memory, write_memory
from risegrad.memory.layers import LayerMemory, all_layers, role_of
from risegrad.memory.penalty import Anchor, anchor_of, layer_damages
from risegrad.memory.ranks import check_unsharded
from risegrad.memory.sides import Bound, Named, ParameterSides

if TYPE_CHECKING:
    from risegrad.memory.layers import LayerMemory

DAMPING = 0.1
"""The damping at which directions are counted."""
HEAD = ("layer", "kind", "examples", "eff. dim of in x out", "bytes")


def table(memory: Memory, damping: float = DAMPING) -> str:
    """A memory as text: a line per layer with its effective dimension and size."""
    title = f"memory of {len(memory)} layers, {size(memory.bytes)}, {_kept(memory)}"
    rows = [_row(name, layer, damping) for name, layer in memory.items()]
    tail = [f"effective dimension at damping {damping:g}"]
    if memory.uncovered:
        tail.append(f"not covered, trained plainly ({len(memory.uncovered)}):")
        tail += [f"  {name}: {reason}" for name, reason in memory.uncovered.items()]
    return "\n".join(map(_printable, [title, *text_columns([HEAD, *rows]), *tail]))


def _printable(line: str) -> str:
    """Names may come from a file of someone else: what would steer a terminal is written out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _row(name: str, layer: LayerMemory, damping: float) -> tuple[str, ...]:
    sides = [f"{side.effective_dimension(damping):.1f}/{side.dim}" for side in layer.parts.values()]
    return name, layer.kind, str(layer.examples), " x ".join(sides), size(layer.bytes)


def _kept(memory: Memory) -> str:
    chosen = ", chosen by the byte budget" if memory.source.get("rank") == "budget" else ""
    factors = [s for layer in memory.values() for s in layer.parts.values()]
    if memory.rank is None or all(isinstance(s, Factor) and s.rank is None for s in factors):
        return f"full factors{chosen}"
    return f"{memory.rank} eigenpairs of each factor and one number for the rest{chosen}"


def size(count: int) -> str:
    """Bytes for people.

    >>> size(1536)
    '1.5 KiB'
    """
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 2**20 else f"{count / 2**20:.1f} MiB"


def check_fits(memory: Mapping[str, LayerMemory], model: nn.Module) -> None:
    """Every remembered layer is in the model with its kind and shape; an error names the others."""
    layers = all_layers(model)
    wrong = []
    for name, kept in memory.items():
        layer = layers.get(name)
        if layer is None:
            wrong.append(f"{name} (missing)")
        elif (layer.kind, layer.shape) != (kept.kind, tuple(kept.shape)):
            wrong.append(
                f"{name} ({layer.kind} {layer.shape} in the model, {kept.kind} "
                f"{tuple(kept.shape)} in the memory)"
            )
    if wrong:
        raise ValueError(
            f"the memory is of another model: {listing(wrong)}; this model has {listing([*layers])}"
        )


class Memory(Mapping[str, LayerMemory]):
    """Layer names and the factors of each layer. Immutable; sums are new memories."""

    def __init__(
        self,
        layers: Mapping[str, LayerMemory],
        *,
        rank: int | None = None,
        uncovered: Mapping[str, str] | None = None,
        source: Mapping[str, Any] | None = None,
    ) -> None:
        if not layers:
            raise ValueError("a memory must hold at least one layer")
        self._layers = dict(layers)
        self.rank = rank
        """Eigenpairs kept of each factor; None: all factors are full."""
        self.uncovered = dict(uncovered or {})
        """Trained parameters that it says nothing of, with the reason."""
        self.source = dict(source or {})
        """What it was made from, as plain data."""

    def __getitem__(self, name: str) -> LayerMemory:
        return self._layers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Memory) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def __add__(self, other: Memory) -> Memory:
        """Both tasks: inputs averaged, output gradients added, layer by layer.

        A layer that only one of them knows is taken as it is.
        """
        if not isinstance(other, Memory):
            return NotImplemented
        if not set(self) & set(other):
            raise ValueError(
                f"these are memories of two models: one has {listing([*self])}, the other "
                f"{listing([*other])}"
            )
        layers = {**self, **other}
        for name in set(self) & set(other):
            try:
                layers[name] = self[name].plus(other[name])
            except ValueError as error:
                raise ValueError(
                    f"these are memories of two models: layer {name!r} is {error}"
                ) from error
        ranks = [memory.rank for memory in (self, other) if memory.rank is not None]
        rank = max(ranks) if ranks else None
        kept = {name: layer.changed(_cut(rank)) for name, layer in layers.items()}
        uncovered = _still_uncovered(self, other) | _still_uncovered(other, self)
        return Memory(kept, rank=rank, uncovered=uncovered, source=_joined(self, other))

    def __radd__(self, other: object) -> Memory:
        """``sum(memories)`` begins with zero."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def scaled(self, weight: float) -> Memory:
        """The same with another weight: in a sum, and in a penalty."""
        by = check_number("weight", weight, above=0)
        layers = {name: layer.scaled(by) for name, layer in self.items()}
        return Memory(layers, rank=self.rank, uncovered=self.uncovered, source=self.source)

    def __mul__(self, weight: float) -> Memory:
        return self.scaled(weight)

    __rmul__ = __mul__

    def truncated(self, rank: int) -> Memory:
        """The top ``rank`` eigenpairs of every factor and one number for the rest of it."""
        check_positive_int("rank", rank)
        found = self.changed(lambda _layer, _part, side: side.truncated(rank))
        return Memory(found, rank=rank, uncovered=self.uncovered, source=self.source)

    def changed(self, change: Callable[[str, str, Side], Side]) -> Memory:
        """Every factor replaced by ``change(layer, part, factor)``: for ablations and controls."""
        layers = {
            name: layer.changed(lambda part, side, name=name: change(name, part, side))  # type: ignore[misc]
            for name, layer in self.items()
        }
        return Memory(layers, rank=self.rank, uncovered=self.uncovered, source=self.source)

    def rotated(self, seed: int = 0) -> Memory:
        """The control that must lose the gain: the same spectra in random directions."""
        generator = torch.Generator().manual_seed(seed)
        return self.changed(lambda _layer, _part, side: side.rotated(generator))

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Memory:
        """A copy on another device, or in another dtype."""
        return self.changed(lambda _layer, _part, side: side.to(device, dtype))

    @property
    def bytes(self) -> int:
        """The memory that all layers take."""
        return sum(layer.bytes for layer in self.values())

    @cached_property
    def hash(self) -> str:
        """The same for equal memories: names, shapes and every number."""
        digest = hashlib.sha256()
        for name in sorted(self):
            layer = self[name]
            digest.update(json.dumps([name, layer.kind, layer.shape, layer.weight]).encode())
            for part, side in sorted(layer.parts.items()):
                for key, tensor in sorted(side.tensors().items()):
                    digest.update(f"{part} {key} {tensor.dtype} {tuple(tensor.shape)}".encode())
                    flat = tensor.detach().cpu().contiguous().reshape(-1)
                    digest.update(flat.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def check_fits(self, model: nn.Module) -> None:
        """Every remembered layer is in the model with the same shape, or an error names it."""
        check_fits(self, model)

    def sides(self, model: nn.Module | Named) -> dict[str, ParameterSides]:
        """For each trained parameter that is covered, its curvature in its own coordinates.

        As the adapters' values are *now*. ``model`` may also be named parameters, as an attachment
        has them: filters are the same, but a LoRA's scale ``s`` is not known from names and taken
        to be 1, so that ``quadratic`` is too small by ``s^2``.
        """
        return self.bind(model).now()

    def bind(self, model: nn.Module | Named) -> Bound:
        """For loops: looks names up once; then ``bound.now()`` returns the sides."""
        return Bound(self, model)

    def anchor(self, model: nn.Module) -> Anchor:
        """The trained parameters of the remembered layers as they are now, for a penalty."""
        check_unsharded(model, "an anchor")
        return anchor_of(self, model)

    def penalty(self, model: nn.Module, anchor: Anchor | None = None) -> Tensor:
        """``sum tr(D dW S dW')/2`` over all layers since the anchor; differentiable.

        Without an anchor, LoRA is measured from zero: the weights under it are what was remembered.
        Not so with PiSSA and OLoRA, which begin with ``BA`` other than zero: give them an anchor.
        """
        check_unsharded(model, "a penalty")
        found = layer_damages(self, model, anchor or Anchor({}))
        return torch.stack([*found.values()]).sum()

    def damage(self, before: Anchor, after: nn.Module) -> dict[str, float]:
        """The same as numbers, by layer: the predicted rise of the old loss per prediction."""
        check_unsharded(after, "damage")
        with torch.no_grad():
            found = layer_damages(self, after, before)
        return {name: float(value) for name, value in found.items()}

    def save(self, path: str | Path) -> None:
        """As safetensors: numbers and plain text, nothing that runs when it is read."""
        write_memory(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Memory:
        """Read a file that ``save`` wrote."""
        return cls(**read_memory(Path(path)))

    def __str__(self) -> str:
        return table(self)

    def __repr__(self) -> str:
        return f"Memory({len(self)} layers, {self.bytes} bytes, hash {self.hash[:8]})"


def check_memory(given: object) -> Memory | None:
    """``memory=`` of those who can do without one."""
    allowed = "a Memory, as risegrad.remember makes it and Memory.load reads it"
    return None if given is None else check_kind("memory", given, Memory, allowed)


def _cut(rank: int | None) -> Callable[[str, Side], Side]:
    return lambda _part, side: side if rank is None else side.truncated(rank)


def _still_uncovered(one: Memory, other: Memory) -> dict[str, str]:
    """What one of two memories does not cover and the other neither."""
    return {
        name: reason
        for name, reason in one.uncovered.items()
        if name in other.uncovered or role_of(name).layer not in other
    }


def _joined(one: Memory, other: Memory) -> dict[str, Any]:
    """Where a sum came from: the list of all that went into it."""
    parts = [part for memory in (one, other) for part in memory.source.get("sum", [memory.source])]
    return {"sum": parts}
