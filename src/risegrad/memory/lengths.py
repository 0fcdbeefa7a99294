"""How long filtered steps become: a few numbers of each, and one small computation for all.

Launching an operation costs more than its work here, so the numbers of many stacks go through it
together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from risegrad.core.shards import Reduction, reduced

KEPT = 0.9
"""How much of the running means a step keeps."""
LONGEST = 8.0
"""A filtered step is never made longer than this many times."""


class Products(NamedTuple):
    """What steps add to the matching of progress."""

    here: Tensor
    """``<g, U>``, ``<g, U'>`` and ``|g|^2``, of sharded gradients this process's part."""
    squares: Tensor
    """``|U|^2``"""
    reduction: Reduction | None = None


def lengths(
    numbers: Tensor, own: bool, reductions: Sequence[Reduction | None] = (None,)
) -> tuple[Tensor, list[Products]]:
    """What to multiply filtered steps by for the norms that they had, layer by layer.

    ``numbers`` (rows, members, layers): the unit that steps are divided by, the size that filters
    leave out, ``|U|``, ``|U'|`` and perhaps ``<g, U>``, ``<g, U'>``, ``|g|``. ``own``: gradients
    are steps themselves, so they are in units, too. ``reductions``: of each member's products. What
    is not finite stays in its own tensor: it has no part in any norm or product.
    """
    unit, size, before, after, *measured = wide(numbers).unbind()
    both = torch.stack([before, after * size])
    sound = both.isfinite().all(0)
    wanted, found = vector_norm(torch.where(sound, both, 0), dim=1)
    # A step of zero stays one.
    scale = torch.where(found > 0, wanted / found, 1) * size * unit
    if not measured:
        return scale, []
    plain, filtered, of_g = measured
    g = unit if own else torch.ones_like(unit)
    each = torch.stack([plain * unit * g, filtered * scale * g, (of_g * g).square()])
    fine = sound & each.isfinite().all(0)
    squares = torch.where(sound, (unit * before).square(), 0).sum(1)
    sums = torch.where(fine, each, 0).sum(2)
    parts = zip(sums.unbind(1), squares.unbind(), reductions, strict=True)
    return scale, [Products(*part) for part in parts]


def wide(x: Tensor) -> Tensor:
    """For products of two numbers that float32 holds; Apple's GPUs have no float64."""
    return x if x.device.type == "mps" else x.double()


class Progress:
    """``c = <g, U> / <g, U'>`` between 1 and ``LONGEST``, from running means of both.

    Each step's pair is divided by ``|g| |U|``, so that neither a loss scale nor a schedule makes
    one step count more than another. Where gradient and step disagree (momentum, a step up) the
    step says nothing and the means stay.
    """

    def __init__(self) -> None:
        self._means = torch.zeros(2, dtype=torch.float64, device="cpu")

    @property
    def numbers(self) -> dict[str, float]:
        """The running means: what is saved."""
        plain, filtered = self._means.tolist()
        return {"plain": plain, "filtered": filtered}

    def restore(self, numbers: Mapping[str, float]) -> None:
        """Go on from running means that were saved."""
        found = [numbers.get(name, 0.0) for name in ("plain", "filtered")]
        self._means = torch.tensor(found, dtype=torch.float64, device="cpu")

    @property
    def factor(self) -> Tensor:
        """``c``, where the last step was; 1 as long as no step said anything."""
        plain, filtered = self._means.unbind()
        return torch.where(filtered > 0, (plain / filtered).clamp(1, LONGEST), 1)

    def follow(self, products: Sequence[Products], against: bool) -> None:
        """Count a step in; ``against``: a step is meant to go against its gradient."""
        if products:
            self._follow(_cosines(products) * (-1 if against else 1))

    def _follow(self, cosines: Tensor) -> None:
        means = self._means.to(cosines, non_blocking=True)
        said = (cosines > 0).all() & cosines.isfinite().all()
        self._means = torch.where(said, torch.lerp(cosines, means, KEPT), means)


def _cosines(found: Sequence[Products]) -> Tensor:
    """``<g, U>`` and ``<g, U'>`` over ``|g| |U|``, shards of other processes included."""
    place = found[0].squares.device
    sums: dict[Reduction | None, Tensor] = {}
    squares = torch.zeros_like(found[0].squares)
    for here, square, reduction in found:
        own = here.to(place, non_blocking=True)
        sums[reduction] = sums[reduction] + own if reduction in sums else own
        squares = squares + square.to(place, non_blocking=True)
    each = [own if over is None else reduced(own, over) for over, own in sums.items()]
    plain, filtered, of_g = torch.stack(each).sum(0).unbind()
    return torch.stack([plain, filtered]) / (of_g.sqrt() * squares.sqrt())
