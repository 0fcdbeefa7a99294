"""Two-point estimates of a gradient: SPSA with q queries (the paper, equation 6).

    g_hat = (1/q) sum_k p_k z_k,      p_k = (f(theta + eps z_k) - f(theta - eps z_k)) / (2 eps)

with standard normal ``z_k`` over all perturbed parameters at once, so one number ``p_k`` is shared
by all of them. For small ``eps`` this is the raw shape ``Z g``, and on a quadratic exactly that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_choice, check_int, check_number, check_positive_int
from risegrad.core.draws import Draws, drawing_dtype
from risegrad.core.parameter_names import Named
from risegrad.core.reductions import norm
from risegrad.core.undisturbed import Closure, LossEvaluator
from risegrad.theory.calibration import mean_factor
from risegrad.zeroth_order.line_walk import Restore, walking
from risegrad.zeroth_order.perturbed import Perturbed, perturbed

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
        _check_choices(self.variant, self.norm_matched)


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
    s = _check_call(closure, settings)
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
    for index, tensor in enumerate(chosen.tensors):
        work = drawing_dtype(tensor.dtype)
        total = torch.zeros_like(tensor, dtype=work, memory_format=torch.contiguous_format)
        for query, coefficient in enumerate(coefficients):
            # Through a tensor, because a number beyond the dtype's range is inf there: as Python
            # numbers torch refuses them.
            alpha = torch.tensor(coefficient, dtype=torch.float64).to(work).item()
            total.add_(chosen.direction(draws, query, index), alpha=alpha)
        tensor.grad = total.to(tensor.dtype)


def _clip(gradients: Sequence[Tensor | None], clip: float | None) -> float:
    """Bound the l2 norm over all gradients; returns the norm before."""
    present = [gradient for gradient in gradients if gradient is not None]
    norms = [norm(g.flatten().to(drawing_dtype(g.dtype))) for g in present]
    total = math.hypot(*(part.item() for part in norms))
    if clip is not None and total > clip:
        # A norm that overflowed would scale finite gradients to zero, and hide what happened.
        scale = clip / total if math.isfinite(total) else math.nan
        for gradient in present:
            gradient.mul_(scale)
    return total


def _check_call(closure: object, settings: object) -> SpsaSettings:
    if not callable(closure):
        raise TypeError(f"closure must be callable, got {type(closure).__name__}")
    if not isinstance(settings, SpsaSettings | None):
        raise TypeError(f"settings must be SpsaSettings or None, got {type(settings).__name__}")
    return settings or SpsaSettings()


def _check_choices(variant: str, norm_matched: object) -> None:
    check_choice("variant", variant, VARIANTS)
    if not isinstance(norm_matched, bool):
        raise TypeError(f"norm_matched must be True or False, got {norm_matched!r}")
    if norm_matched and variant == "sign":
        raise ValueError(
            "norm_matched must be False with variant 'sign': without the slopes there is no "
            "norm of a gradient to match; got True"
        )
