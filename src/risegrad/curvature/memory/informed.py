"""Steps that know what must be kept: each layer's step, filtered by its memory.

``U -> (D/t_D + rho)^-1 U (S/t_S + rho)^-1``, then scaled to the norm it had. With ``P`` for that
filter and ``q`` directions it is randomized in the metric, ``x = kappa^(-1/2) P^(1/2) Z P^(1/2) g``
scaled so that the mean of ``|x|^2`` is ``|g|^2``: RISE for ``P = I``, the filtered step as q grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.optim import LBFGS, Optimizer

from risegrad.common.checks import check_positive_int
from risegrad.core.attachment import On
from risegrad.core.blocks import BlockChoice, listing
from risegrad.core.rise_rule import one_draw_coefficients
from risegrad.core.shapers import BlockDraws, QChoice, Shaper
from risegrad.core.torch_optimizers import is_adaptive
from risegrad.core.whole_steps import Tie, WholeStep, Work, gathered, put
from risegrad.curvature.memory.memory import DAMPING, Memory
from risegrad.curvature.memory.memory_side import check_damping
from risegrad.curvature.memory.parameter_sides import Bound, ParameterSides

HALF = (torch.float16, torch.bfloat16)
Sides = Mapping[str, ParameterSides]


@final
@dataclass(frozen=True)
class Informed(Shaper):
    """Shapes by what ``memory`` says must be kept; what it does not cover is trained plainly.

    ``damping`` is the one knob: 0.01 protects hard, 1 softly, far above that is plain training.
    ``q`` adds RISE's randomness in the memory's metric, with one draw per tensor.
    """

    q: QChoice | None = field(default=None, kw_only=True)
    """Directions per tensor, or None: nothing is drawn."""
    blocks: BlockChoice = field(default="tensor", kw_only=True)
    """Always ``tensor``: a draw goes through a tensor's two factors."""
    seed: int = field(default=0, kw_only=True)
    exempt: Sequence[str] = field(default=(), kw_only=True)
    memory: Memory
    damping: float = DAMPING
    strict: bool = field(default=False, kw_only=True)
    """Refuse parameters that the memory does not cover, instead of leaving them alone."""

    needs_q: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.memory, Memory):
            raise TypeError(f"memory must be a risegrad.Memory, got {type(self.memory).__name__}")
        check_damping(self.damping)
        if self.q is not None:
            check_positive_int("q", self.q)
        if self.blocks != "tensor":
            raise ValueError(f"blocks must be 'tensor' for Informed, got {self.blocks!r}")

    def coefficients(self, draws: BlockDraws) -> tuple[Tensor, Tensor]:
        """RISE's: in the metric the draw is the same."""
        return one_draw_coefficients(draws.norm, draws.dot, draws.chi2, draws.d, draws.q)

    def tie(self, params: Mapping[str, Tensor], held: Sequence[str]) -> Tie:
        return InformedTie(self, params, held)

    def misplaced(self, optimizer: Optimizer, on: str) -> str | None:
        if on == "update" or not is_adaptive(optimizer):
            return None
        return (
            f"{type(optimizer).__name__} divides each gradient by its own size, which undoes most "
            'of what Informed does to it: attach with on="update"'
        )


def right_place(optimizer: Optimizer) -> On:
    """Where Informed works: the update of adaptive optimizers and of those with a line search."""
    return "update" if is_adaptive(optimizer) or isinstance(optimizer, LBFGS) else "gradient"


class InformedTie(Tie):
    """An informed shaper and the parameters that it knows something of."""

    def __init__(self, shaper: Informed, params: Mapping[str, Tensor], held: Sequence[str]) -> None:
        bound = Bound(shaper.memory, params, held)
        self.shaper, self.bound = shaper, bound
        self.leaves = tuple(bound.uncovered)
        self._made_of = (shaper, params, held)
        self._check_strict()

    def __reduce__(self) -> tuple[Any, ...]:
        # What is bound to tensors does not travel; a copy is bound to the copied ones.
        return InformedTie, self._made_of

    def _trained_plainly(self) -> list[str]:
        """Many give an optimizer all parameters; those that are frozen are not trained at all."""
        _, params, _ = self._made_of
        return [name for name in self.leaves if params[name].requires_grad]

    def _check_strict(self) -> None:
        if self.shaper.strict and (plain := self._trained_plainly()):
            raise ValueError(
                f"strict: the memory does not cover {listing(plain)}; name them in "
                "exempt, or take strict=False to leave them as plain training leaves them"
            )

    def ready(self) -> Work:
        self._check_strict()  # one may have been thawed
        filtering = _Filtering(self.bound.now(), self.shaper.damping, self.shaper.q)
        return filtering.turn if self.shaper.q is None else filtering.draw

    def notes(self) -> list[str]:
        sides = self.bound.now()
        fresh = [n for n, s in sides.items() if s.left.mean == 0 or s.right.mean == 0]
        found = [f"damping {self.shaper.damping:g}, memory {self.shaper.memory.hash[:8]}"]
        if fresh:
            found.append(f"one side only, as the other is zero now: {listing(fresh)}")
        if plain := self._trained_plainly():
            found.append(f"not covered, left as plain training leaves it: {listing(plain)}")
        if absent := self.bound.absent:
            found.append(f"remembered, and not among the parameters given: {listing(absent)}")
        return found


@dataclass(frozen=True)
class _Filtering:
    """The filter of one step: the sides as they were when it began."""

    sides: Sides
    damping: float
    q: QChoice | None

    def turn(self, step: WholeStep) -> None:
        """Group after group, so that one is held in float32 (and whole) at a time."""
        for names in self._groups(step):
            raw = {name: _taken(step, name) for name in names}
            turned = {name: self._filtered(step, name, x, -1.0) for name, x in raw.items()}
            scale = _ratio(_norm(raw.values()), _norm(turned.values()))
            for name, x in turned.items():
                _put(step, name, x * scale)

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
            d, q = x[left_out:].numel() if left_out else x.numel(), float(self.q)  # type: ignore[arg-type]
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


SAFE = (1e-12, 1e15)
"""Norms whose squares, and those of their elements, are well within float32."""


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    """The norm of all together, also where float32 cannot hold the squares.

    An accelerator is not asked whether it can: it would have to finish its work first.
    """
    each = list(tensors)
    found: Tensor = vector_norm(torch.stack([vector_norm(x) for x in each]))
    if found.is_cpu and SAFE[0] < float(found) < SAFE[1]:
        return found
    return _scaled_norm(torch.stack([_scaled_norm(x) for x in each]))


def _scaled_norm(x: Tensor) -> Tensor:
    largest = x.abs().amax()
    unit = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    found: Tensor = vector_norm(x / unit) * unit
    return found


def _unit(raw: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """What to divide a group by: its norm, or 1 if that is zero."""
    found = _norm(raw[name] for name in names)
    return torch.where(found > 0, found, 1.0)


def _ratio(wanted: Tensor, found: Tensor) -> Tensor:
    """What to multiply by; a step of zero stays one."""
    return torch.where(found > 0, wanted / found, 1.0)
