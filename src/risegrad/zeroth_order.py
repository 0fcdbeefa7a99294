"""Two-point estimates of a gradient: SPSA with q queries (the paper, equation 6).

    g_hat = (1/q) sum_k p_k z_k,      p_k = (f(theta + eps z_k) - f(theta - eps z_k)) / (2 eps)

with standard normal ``z_k`` over all perturbed parameters at once, so one number ``p_k`` is shared
by all of them. For small ``eps`` this is the raw shape ``Z g``, and on a quadratic exactly that.

Everything happens in place and from seeds. Parameters, modules and the global random state are
left as they were found; only ``.grad`` is written, so that any torch optimizer can step.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from risegrad.common.checks import (
    check_choice,
    check_int,
    check_kind,
    check_number,
    check_positive_int,
)
from risegrad.core.arithmetic import norm
from risegrad.core.blocks import listing
from risegrad.core.coverage import Named, plain_name
from risegrad.core.draws import Draws, drawing_dtype
from risegrad.core.undisturbed import Closure, LossEvaluator
from risegrad.theory.calibration import mean_factor

__all__ = [
    "RESTORES",
    "VARIANTS",
    "Restore",
    "SpsaEstimate",
    "SpsaSettings",
    "Variant",
    "spsa",
]

Restore = Literal["copy", "arithmetic"]
RESTORES: tuple[Restore, ...] = ("copy", "arithmetic")

Direction = Callable[[int], Tensor]
"""The direction of the tensor with this index, made when asked: one at a time is alive."""


class Walk:
    """Tensors that stand at ``theta + offset * direction``; at first the offset is 0.

    From a copy nothing is left over, not even rounding. Without copies differences of offsets are
    added, as MeZO does, and each move rounds once.
    """

    def __init__(self, tensors: Sequence[Tensor], restore: Restore) -> None:
        check_choice("restore", restore, RESTORES)
        self.tensors = tensors
        self.copies = [tensor.clone() for tensor in tensors] if restore == "copy" else None
        self.offset = 0.0
        self.direction: Direction | None = None

    def to(self, offset: float, direction: Direction) -> None:
        """Stand at ``theta + offset * direction``."""
        if self.copies is not None or direction is not self.direction:
            self.home()
        self._add(offset - self.offset, direction)
        self.offset, self.direction = (0.0, None) if self.copies else (offset, direction)

    def home(self) -> None:
        """Stand at ``theta`` again."""
        if self.copies is not None:
            for tensor, copy in zip(self.tensors, self.copies, strict=True):
                tensor.copy_(copy)
        elif self.direction is not None:
            self._add(-self.offset, self.direction)
        self.offset, self.direction = 0.0, None

    def _add(self, change: float, direction: Direction) -> None:
        for index, tensor in enumerate(self.tensors):
            tensor.add_(direction(index), alpha=change)


@contextmanager
def walking(tensors: Sequence[Tensor], restore: Restore) -> Iterator[Walk]:
    """A walk that ends where it began, whatever happens on the way."""
    walk = Walk(tensors, restore)
    try:
        yield walk
    finally:
        walk.home()


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
        size = tensor.numel()
        room = torch.empty(size, dtype=drawing_dtype(tensor.dtype), device=tensor.device)
        drawn = draws.normals(room, direction=query, stream=number, length=size)
        return drawn.view(tensor.shape)


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


Variant = Literal["two-sided", "one-sided", "sign"]
VARIANTS: tuple[Variant, ...] = ("two-sided", "one-sided", "sign")


@dataclass(frozen=True)
class SpsaEstimate:
    """What one estimate saw. The estimate itself is in the parameters' ``.grad``."""

    plus: tuple[float, ...]
    """The loss at ``theta + epsilon z_k``, one per query."""
    minus: tuple[float, ...]
    """The loss at ``theta - epsilon z_k``; in the one-sided variant, at ``theta`` each time."""
    projected: tuple[float, ...]
    """The difference quotients ``p_k``, before any sign is taken."""
    d: int
    """How many elements were perturbed."""
    norm: float
    """The l2 norm of the estimate over all parameters, before clipping."""

    @property
    def loss(self) -> float:
        """The mean of ``minus`` and ``plus``: the loss at ``theta`` up to order ``epsilon``."""
        return (sum(self.plus) + sum(self.minus)) / (2 * len(self.plus))

    @property
    def finite(self) -> bool:
        """Whether the estimate is; a loss that is not makes every gradient non-finite."""
        return math.isfinite(self.norm)


@dataclass(frozen=True)
class SpsaSettings:
    """How losses become an estimate.

    >>> SpsaSettings(q=0)
    Traceback (most recent call last):
    ValueError: q must be an integer >= 1, got 0
    """

    q: int = 1
    """Directions; each costs two losses (one in the one-sided variant)."""
    epsilon: float = 1e-3
    """How far along a direction the losses are taken."""
    variant: Variant = "two-sided"
    """``two-sided``, ``one-sided``, or ``sign``, which keeps only the sign of a slope."""
    norm_matched: bool = False
    """Multiply by ``kappa^(-1/2)``, with ``d`` the number of all perturbed elements."""
    clip: float | None = None
    """Bound of the norm over all parameters, after norm matching; None: no bound."""

    def __post_init__(self) -> None:
        check_positive_int("q", self.q)
        check_number("epsilon", self.epsilon, above=0)
        if self.clip is not None:
            check_number("clip", self.clip, above=0)
        check_choice("variant", self.variant, VARIANTS)
        check_kind("norm_matched", self.norm_matched, bool, "True or False")
        if self.norm_matched and self.variant == "sign":
            raise ValueError(
                "norm_matched must be False with variant 'sign': without the slopes there is no "
                "norm of a gradient to match; got True"
            )


@torch.no_grad()
def spsa(
    closure: Closure,
    params: Named,
    settings: SpsaSettings | None = None,
    *,
    seed: int = 0,
    step: int = 0,
    restore: Restore = "copy",
    model: nn.Module | None = None,
) -> SpsaEstimate:
    """Estimate the gradient of ``closure()`` and replace the parameters' ``.grad`` by it.

    ``params`` are (name, parameter) pairs; those that do not require a gradient are left alone.
    The directions depend on (``seed``, ``step``, name, position) only: count ``step`` up.
    With ``model``, its modes and buffers are left as found. See ``docs/zeroth-order.md`` for
    variants, ``restore`` and non-finite losses.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0, 2.0], dtype=torch.float64))
    >>> settings = SpsaSettings(q=200)
    >>> estimate = spsa(lambda: 3 * weight.sum(), [("weight", weight)], settings)
    >>> (weight.grad - 3).abs().max().item() < 1.5  # the exact gradient is [3, 3]
    True
    >>> weight.tolist()
    [1.0, 2.0]
    """
    if not callable(closure):
        raise TypeError(f"closure must be callable, got {type(closure).__name__}")
    s = check_kind("settings", settings or SpsaSettings(), SpsaSettings, "SpsaSettings or None")
    seed, step = check_int("seed", seed), check_int("step", step)
    chosen = perturbed(params)
    draws = Draws(seed, step)
    offsets = (s.epsilon, 0.0 if s.variant == "one-sided" else -s.epsilon)
    around = LossEvaluator(model, seed, step)
    plus, minus = _losses(closure, chosen, draws, s.q, offsets, restore, around)
    width = offsets[0] - offsets[1]
    projected = tuple((high - low) / width for high, low in zip(plus, minus, strict=True))
    factor = mean_factor(chosen.d, s.q) / s.q if s.norm_matched else 1 / s.q
    _write(chosen, draws, [_coefficient(slope, s.variant) * factor for slope in projected])
    length = _clip([t.grad for t in chosen.tensors], s.clip)
    return SpsaEstimate(plus, minus, projected, chosen.d, length)


def _losses(
    closure: Closure,
    chosen: Perturbed,
    draws: Draws,
    q: int,
    offsets: tuple[float, float],
    restore: Restore,
    evaluator: LossEvaluator,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The losses at the two offsets along every direction."""
    plus, minus = [], []
    with walking(chosen.tensors, restore) as walk:
        if offsets[1] == 0:
            # One evaluation serves all queries: they share its random numbers anyway.
            minus = [evaluator.loss(closure)] * q
        for query in range(q):
            direction = partial(chosen.direction, draws, query)
            walk.to(offsets[0], direction)
            plus.append(evaluator.loss(closure))
            if offsets[1] != 0:
                walk.to(offsets[1], direction)
                minus.append(evaluator.loss(closure))
    return tuple(plus), tuple(minus)


def _coefficient(slope: float, variant: Variant) -> float:
    if variant != "sign" or slope == 0:
        return slope
    # The sign of an infinite slope would be a finite number made from a loss that is none.
    return math.copysign(1.0, slope) if math.isfinite(slope) else math.nan


def _write(chosen: Perturbed, draws: Draws, coefficients: Sequence[float]) -> None:
    """``grad = sum_k c_k z_k``, tensor by tensor: half precision is rounded once, at the end."""
    # Through a tensor, because a number beyond the dtype's range is inf there: as Python numbers
    # torch refuses them.
    kinds = {drawing_dtype(tensor.dtype) for tensor in chosen.tensors}
    wide = torch.tensor(coefficients, dtype=torch.float64, device="cpu")
    alphas = {kind: wide.to(kind).tolist() for kind in kinds}
    for index, tensor in enumerate(chosen.tensors):
        work = drawing_dtype(tensor.dtype)
        total = torch.zeros_like(tensor, dtype=work, memory_format=torch.contiguous_format)
        for query, alpha in enumerate(alphas[work]):
            total.add_(chosen.direction(draws, query, index), alpha=alpha)
        tensor.grad = total.to(tensor.dtype)


def _clip(gradients: Sequence[Tensor | None], clip: float | None) -> float:
    """Bound the l2 norm over all gradients; returns the norm before."""
    present = [gradient for gradient in gradients if gradient is not None]
    norms = [norm(g.flatten().to(drawing_dtype(g.dtype))) for g in present]
    # One read for all that lie together: each waits for the device.
    kinds = dict.fromkeys((part.dtype, part.device) for part in norms)
    together = [[part for part in norms if (part.dtype, part.device) == kind] for kind in kinds]
    total = math.hypot(*(length for parts in together for length in torch.stack(parts).tolist()))
    if clip is not None and total > clip:
        # A norm that overflowed would scale finite gradients to zero, and hide what happened.
        scale = clip / total if math.isfinite(total) else math.nan
        for gradient in present:
            gradient.mul_(scale)
    return total
