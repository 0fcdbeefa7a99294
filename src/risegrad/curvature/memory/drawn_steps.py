"""Informed steps with randomness: one draw per tensor, in the metric of its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from risegrad.core.reductions import norm
from risegrad.core.whole_steps import WholeStep, gathered, put
from risegrad.curvature.memory.parameter_sides import ParameterSides

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class DrawnStep:
    """The draw of one step: the sides as they were when it began."""

    sides: Mapping[str, ParameterSides]
    damping: float
    q: float

    def draw(self, step: WholeStep) -> None:
        groups = self._groups(step)
        raw = {name: _taken(step, name) for name in step.tensors}
        norms = {name: n for names in groups for n in [_unit(raw, names)] for name in names}
        halfway = {n: self._filtered(step, n, x, -0.5) / norms[n] for n, x in raw.items()}
        scales = {
            name: scale
            for names in groups
            for scale in [self._scale(step, names, halfway)]
            for name in names
        }
        step.draw(halfway)
        for name, x in halfway.items():
            turned = self._filtered(step, name, x, -0.5)
            _put(step, name, turned * (scales[name] * norms[name]))

    def _scale(
        self, step: WholeStep, names: Sequence[str], halfway: Mapping[str, Tensor]
    ) -> Tensor:
        """Such that the mean of ``|x|^2`` over the draws is 1 for a whole group of norm 1."""
        expected = halfway[names[0]].new_zeros(())
        for name in names:
            x = halfway[name]
            whole = _norm([self._filtered(step, name, x, -0.5)]).square()
            left_out = step.left_out.get(name, 0)
            d, q = x[left_out:].numel() if left_out else x.numel(), self.q
            spread = _norm([x]).square() * self._trace(name, left_out)
            expected = expected + ((q + 1) * whole + spread) / (q + d + 1)
        return _ratio(torch.ones_like(expected), expected.sqrt())

    def _filtered(self, step: WholeStep, name: str, x: Tensor, power: float) -> Tensor:
        """Rows that are left out neither give nor take anything: they are zero before and after."""
        turned = self.sides[name].filtered(x, self.damping, power)
        rows = step.left_out.get(name, 0)
        if rows:
            turned[:rows] = 0
        return turned

    def _trace(self, name: str, left_out: int) -> float:
        """``tr P``; with rows left out, of what is left of its root, squared."""
        sides = self.sides[name]
        rows, columns = sides.left, sides.right
        if sides.transposed:
            rows, columns = columns, rows
        across = columns.filter_trace(self.damping)
        if not left_out:
            return across * rows.filter_trace(self.damping)
        eye = torch.eye(rows.dim, dtype=rows.like.dtype, device=rows.like.device)
        root = rows.filtered(eye, self.damping, -0.5)[left_out:, left_out:]
        return across * float(root.double().square().sum())

    def _groups(self, step: WholeStep) -> list[list[str]]:
        """Names that share a norm: the weight and the bias of a layer."""
        found: dict[str, list[str]] = {}
        for name in step.tensors:
            found.setdefault(self.sides[name].group, []).append(name)
        return list(found.values())


def _taken(step: WholeStep, name: str) -> Tensor:
    """A copy in float32 or more of what takes part, with zeros for what does not."""
    whole = gathered(step.tensors[name])
    x = whole.to(torch.float32) if whole.dtype in HALF else whole
    rows = step.left_out.get(name, 0)
    if rows:
        x = x.clone()
        x[:rows] = 0
    return x


def _put(step: WholeStep, name: str, x: Tensor) -> None:
    tensor, rows = step.tensors[name], step.left_out.get(name, 0)
    if rows:
        x[:rows] = gathered(tensor)[:rows]
    put(name, tensor, x)


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of all together, also where float32 cannot hold the squares.

    What is not finite has no part in it: it stays in its own tensor.
    """
    each = torch.stack([_scaled_norm(x) for x in tensors])
    return _scaled_norm(torch.where(each.isfinite(), each, 0))


def _scaled_norm(x: Tensor) -> Tensor:
    largest = vector_norm(x, torch.inf)
    unit = torch.where((largest > 0) & largest.isfinite(), largest, 1)
    return norm((x / unit).flatten()) * unit


def _unit(raw: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """What to divide a group by: its norm, or 1 if that is zero."""
    found = _norm(raw[name] for name in names)
    return torch.where(found > 0, found, 1.0)


def _ratio(wanted: Tensor, found: Tensor) -> Tensor:
    """What to multiply by; a step of zero stays one."""
    return torch.where(found > 0, wanted / found, 1.0)
