"""The parameters that are perturbed, and the random direction of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.core.blocks import listing
from risegrad.core.draws import Draws, drawing_dtype
from risegrad.core.parameter_names import Named, plain_name


@dataclass(frozen=True)
class Perturbed:
    """Tensors and the numbers under which their directions are drawn.

    The number is a hash of the parameter's name. So a parameter's direction depends neither on its
    place nor on which others are perturbed with it, and replicas agree without talking.
    """

    tensors: tuple[Tensor, ...]
    numbers: tuple[int, ...]

    @property
    def d(self) -> int:
        """How many elements are perturbed, all tensors together."""
        return sum(tensor.numel() for tensor in self.tensors)

    def direction(self, draws: Draws, query: int, index: int) -> Tensor:
        """Standard normals in the shape of one tensor, float32 where the tensor is half."""
        tensor, number = self.tensors[index], self.numbers[index]
        room = torch.empty(tensor.numel(), dtype=drawing_dtype(tensor.dtype), device=tensor.device)
        return draws.normals(room, direction=query, stream=number).view(tensor.shape)


def perturbed(params: Named) -> Perturbed:
    """The parameters that require a gradient, each once; frozen ones are left alone."""
    names: dict[Tensor, str] = {}
    frozen = []
    for name, tensor in _pairs(params):
        if not tensor.requires_grad:
            frozen.append(name)
        elif tensor not in names:  # a tied tensor keeps its first name
            _check_supported(name, tensor)
            names[tensor] = name
    if not sum(tensor.numel() for tensor in names):
        came = f"only frozen or empty ones: {listing(frozen)}" if frozen else "none"
        raise ValueError(f"params must have a parameter that requires a gradient, got {came}")
    return Perturbed(tuple(names), tuple(_number(name) for name in _distinct(names.values())))


def _pairs(params: Named) -> list[tuple[str, Tensor]]:
    if not isinstance(params, Iterable):
        raise TypeError(_not_pairs(params))
    pairs = list(params.items() if isinstance(params, Mapping) else params)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise TypeError(_not_pairs(pair))
        if not (isinstance(pair[0], str) and isinstance(pair[1], Tensor)):
            raise TypeError(_not_pairs(pair))
    return pairs


def _distinct(names: Iterable[str]) -> list[str]:
    """Names without what wrappers added; a model may have its own attribute called "module"."""
    whole = list(names)
    plain = [plain_name(name) for name in whole]
    distinct = plain if len(set(plain)) == len(plain) else whole
    twice = [name for name in distinct if distinct.count(name) > 1]
    if twice:
        raise ValueError(f"params must name every parameter differently, got {twice[0]!r} twice")
    return distinct


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _check_supported(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        raise TypeError(
            f"params: {name!r} must be a dense real floating-point tensor, "
            f"got {tensor.dtype}, {tensor.layout}"
        )
    if hasattr(tensor, "placements"):
        raise NotImplementedError(
            f"params: {name!r} is sharded over processes (DTensor); zeroth-order estimates need "
            "whole parameters: replicate them, or shape exact gradients with risegrad.attach"
        )


def _not_pairs(came: object) -> str:
    return (
        "params must be (name, parameter) pairs such as model.named_parameters(), "
        f"got {type(came).__name__}"
    )
