"""Steps that make the progress of plain ones: one factor for all layers, from running means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from risegrad.core.shards import Reduction, local_part, reduced
from risegrad.core.whole_steps import WholeStep
from risegrad.curvature.memory.layer_stacks import Products

KEPT = 0.9
"""How much of the running means a step keeps."""
LONGEST = 8.0
"""A filtered step is never made longer than this many times."""


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

    def match(self, step: WholeStep, products: Iterable[Products]) -> None:
        """Lengthen a filtered step, by what its products say, to the plain one's progress."""
        found = list(products)
        if not found:
            return
        self._follow(_cosines(found) * (-1 if step.gradients is not None and step.downhill else 1))
        by_device: dict[torch.device, list[Tensor]] = {}
        for name, tensor in step.tensors.items():
            part = local_part(name, tensor).after(step.left_out.get(name, 0)).tensor
            by_device.setdefault(part.device, []).append(part)
        for device, parts in by_device.items():
            torch._foreach_mul_(parts, self.factor.to(device, torch.float32, non_blocking=True))

    def _follow(self, cosines: Tensor) -> None:
        means = self._means.to(cosines, non_blocking=True)
        said = (cosines > 0).all() & cosines.isfinite().all()
        self._means = torch.where(said, torch.lerp(cosines, means, KEPT), means)


def _cosines(found: list[Products]) -> Tensor:
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
