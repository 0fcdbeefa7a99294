"""A memory as text: per layer what it was made from, how much it protects and what it takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from risegrad.curvature.memory.factor import Factor

if TYPE_CHECKING:
    from risegrad.curvature.memory.layer_memory import LayerMemory
    from risegrad.curvature.memory.memory import Memory

DAMPING = 0.3
"""The damping at which directions are counted."""


def table(memory: Memory, damping: float = DAMPING) -> str:
    wide = max(len(name) for name in memory)
    head = [
        f"memory of {len(memory)} layers, {size(memory.bytes)}, {_kept(memory)}",
        f"{'layer':{wide}} {'kind':10} {'examples':>8} {'eff. dim of in x out':>24} {'bytes':>9}",
    ]
    rows = [_row(name.ljust(wide), layer, damping) for name, layer in memory.items()]
    tail = [f"effective dimension at damping {damping:g}"]
    if memory.uncovered:
        tail.append(f"not covered, left as plain training leaves it ({len(memory.uncovered)}):")
        tail += [f"  {name}: {reason}" for name, reason in memory.uncovered.items()]
    return "\n".join(head + rows + tail)


def _row(name: str, layer: LayerMemory, damping: float) -> str:
    sides = [f"{side.effective_dimension(damping):.1f}/{side.dim}" for side in layer.parts.values()]
    return (
        f"{name} {layer.kind:10} {layer.examples:8d} {' x '.join(sides):>24} {size(layer.bytes):>9}"
    )


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
