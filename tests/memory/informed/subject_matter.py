"""A memory made by hand, runs of the attach contract with layers it knows, and the dense filter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from core.attach.subjects import ONLY_MATRICES, Run, Subject, fixed
from risegrad.memory.factor import Factor
from risegrad.memory.informed import Informed
from risegrad.memory.layers import LayerMemory
from risegrad.memory.memory import Memory

SHAPES: dict[str, tuple[int, ...]] = {"a.weight": (5, 4), "a.bias": (5,), "b.weight": (3, 6)}
MATRICES = {name: shape for name, shape in SHAPES.items() if len(shape) == 2}
LAYERS = {"a": (5, 4), "b": (3, 6)}


def spd(size: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Symmetric, positive, with eigenvalues that differ by a lot."""
    root = fixed((size, size), seed, torch.float64) * torch.logspace(0, 1, size).double()
    return (root @ root.T).to(dtype)


def memory(
    seed: int = 0,
    layers: Mapping[str, tuple[int, int]] = LAYERS,
    dtype: torch.dtype = torch.float32,
    rank: int | None = None,
) -> Memory:
    kept = {}
    for number, (name, (rows, columns)) in enumerate(layers.items()):
        sides = {
            "inputs": Factor(spd(columns, 100 * seed + 2 * number, dtype)),
            "outputs": Factor(spd(rows, 100 * seed + 2 * number + 1, dtype)),
        }
        kept[name] = LayerMemory("linear", (rows, columns), sides, 8, 8)
    found = Memory(kept)
    return found if rank is None else found.truncated(rank)


def start(subject: Subject, dtype: torch.dtype = torch.float32, **more: Any) -> Run:
    shapes = MATRICES if subject.name in ONLY_MATRICES else SHAPES
    params = {
        name: torch.nn.Parameter(fixed(shape, 77 + number, dtype))
        for number, (name, shape) in enumerate(shapes.items())
    }
    return Run(subject, params, subject.make(params, **more))


def power(matrix: Tensor, damping: float, exponent: float, measure: float | None = None) -> Tensor:
    """``(F/t + damping)^exponent``, written out in float64."""
    matrix = matrix.double()
    mean = matrix.trace() / len(matrix) if measure is None else measure
    values, vectors = torch.linalg.eigh(matrix / mean)
    return vectors @ torch.diag((values + damping) ** exponent) @ vectors.T


def metrics(kept: Memory, name: str, damping: float, exponent: float = -1.0) -> tuple[Tensor, ...]:
    """The filters to the left and to the right of a parameter."""
    layer = kept[name.split(".")[0]]
    inputs, outputs = (layer.parts[p].dense() for p in ("inputs", "outputs"))
    left = power(outputs, damping, exponent)
    if name.endswith("weight"):
        return left, power(inputs, damping, exponent)
    measure = float(inputs.double().trace()) / len(inputs)
    return left, power(torch.ones(1, 1), damping, exponent, measure)


def turned(shaper: Informed, raw: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The filtered step in float64: by layer, at the norm that the layer's step had."""
    found = {}
    for layer in {name.split(".")[0] for name in raw}:
        own = {name: g.double() for name, g in raw.items() if name.startswith(f"{layer}.")}
        after = {}
        for name, g in own.items():
            left, right = metrics(shaper.memory, name, shaper.damping)
            after[name] = (left @ g.reshape(len(g), -1) @ right).reshape(g.shape)
        scale = norm(own) / norm(after)
        found |= {name: x * scale for name, x in after.items()}
    return found


class Matching:
    """Progress matching, written out: what a step must be, one call for each."""

    def __init__(self, shaper: Informed) -> None:
        self.shaper, self.factor = shaper, 1.0
        self.means = [0.0, 0.0]

    def turned(
        self, raw: Mapping[str, Tensor], gradients: Mapping[str, Tensor], sign: int = 1
    ) -> dict[str, Tensor]:
        found = turned(self.shaper, raw)
        size = float(norm(raw) * norm(gradients))
        both = [
            sign * sum(float((g.double() * step[n].double()).sum()) for n, g in gradients.items())
            for step in (raw, found)
        ]
        if min(both) > 0:
            self.means = [0.9 * m + 0.1 * x / size for m, x in zip(self.means, both, strict=True)]
            self.factor = min(max(self.means[0] / self.means[1], 1.0), 8.0)
        return {name: x * self.factor for name, x in found.items()}


def norm(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([x.double().reshape(-1) for x in tensors.values()]).norm()
