"""Steps that know what must be kept: each layer's step, filtered by its memory.

``U -> (D/t_D + rho)^-1 U (S/t_S + rho)^-1``, scaled to the norm it had, layer by layer; then all
layers are lengthened by one factor, to the progress that the plain step would have made. With ``P``
for that filter and ``q`` directions it is randomized in the metric, ``x = kappa^(-1/2) P^(1/2) Z
P^(1/2) g`` scaled so that the mean of ``|x|^2`` is ``|g|^2``: RISE for ``P = I``, the filtered step
at its own norm as q grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor
from torch.linalg import vector_norm
from torch.optim import LBFGS, Optimizer

from risegrad.common.checks import check_choice, check_positive_int
from risegrad.core.arithmetic import norm
from risegrad.core.attachment import On
from risegrad.core.blocks import BlockChoice, listing
from risegrad.core.optimizers import is_adaptive
from risegrad.core.shapers import BlockDraws, QChoice, Shaper, one_draw_coefficients
from risegrad.core.shards import (
    Tie,
    WholeStep,
    Work,
    displacing,
    gathered,
    put,
)
from risegrad.memory.factor import check_damping
from risegrad.memory.lengths import Progress
from risegrad.memory.memory import DAMPING, Memory
from risegrad.memory.sides import Bound, ParameterSides
from risegrad.memory.stacks import Stacks

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class DrawnStep:
    """The draw of one step: the sides as they were when it began."""

    sides: Mapping[str, ParameterSides]
    damping: float
    q: float

    def draw(self, step: WholeStep) -> None:
        """The tensors of a step, each drawn around what the filter makes of it."""
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


Match = Literal["progress", "norm"]


@final
@dataclass(frozen=True)
class Informed(Shaper):
    """Filters steps by ``memory``; parameters that it does not cover train plainly.

    Steps make the same progress as plain ones, so use the learning rate of plain training.
    ``damping`` sets the protection: 0.01 is strong, 1 weak, and far above 1 it is plain
    training. ``q`` adds RISE's noise in the memory's metric, with one draw per tensor.
    """

    q: QChoice | None = field(default=None, kw_only=True)
    """Directions per tensor, or None: nothing is drawn."""
    blocks: BlockChoice = field(default="tensor", kw_only=True)
    """Always ``tensor``: a draw goes through a tensor's two factors."""
    seed: int = field(default=0, kw_only=True)
    exempt: Sequence[str] = field(default=(), kw_only=True)
    memory: Memory
    damping: float = DAMPING
    match: Match = field(default="progress", kw_only=True)
    """``progress``: the step is as long as it must be to gain what the plain one gains, to first
    order, and decoupled weight decay stays what it is. ``norm``: it is as long as the plain one,
    layer by layer, weight decay included; so is, in the mean, every step with ``q``, because a
    longer one would have more noise."""
    strict: bool = field(default=False, kw_only=True)
    """Refuse parameters that the memory does not cover, instead of leaving them alone."""

    needs_q: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.memory, Memory):
            raise TypeError(f"memory must be a risegrad.Memory, got {type(self.memory).__name__}")
        check_damping(self.damping)
        check_choice("match", self.match, ("progress", "norm"))
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
        matched = shaper.match == "progress" and shaper.q is None
        self.progress = Progress() if matched else None
        self.leaves_decay = matched
        self._check_strict()

    def __reduce__(self) -> tuple[Any, ...]:
        # What is bound to tensors does not travel; a copy is bound to the copied ones.
        return InformedTie, self._made_of, self.carried()

    def __setstate__(self, numbers: Mapping[str, float]) -> None:
        self.carry(numbers)

    @property
    def factor(self) -> float:
        return 1.0 if self.progress is None else float(self.progress.factor)

    def carried(self) -> dict[str, float]:
        return {} if self.progress is None else self.progress.numbers

    def carry(self, numbers: Mapping[str, float]) -> None:
        if self.progress is not None:
            self.progress.restore(numbers)

    def _trained_plainly(self) -> list[str]:
        """Many give an optimizer all parameters; those that are frozen are not trained at all."""
        _, params, _ = self._made_of
        return [name for name in self.leaves if params[name].requires_grad]

    def _check_strict(self) -> None:
        if self.shaper.strict and (plain := self._trained_plainly()):
            raise ValueError(
                f"strict: the memory does not cover {listing(plain)}; name them in "
                "exempt, or pass strict=False to train them plainly"
            )

    def ready(self) -> Work:
        return self.begin(None)

    def begin(self, moving: Mapping[str, Tensor] | None) -> Work:
        self._check_strict()  # one may have been thawed
        if self.shaper.q is not None:
            sides, damping = self.bound.now(), self.shaper.damping
            draw = DrawnStep(sides, damping, float(self.shaper.q)).draw  # type: ignore[arg-type]
            return draw if moving is None else displacing(draw, moving)
        stacks = self._stacks
        begun = stacks.begin(moving)

        def turn(step: WholeStep) -> None:
            stacks.turn(step, begun, self.progress)

        return turn if moving is None else displacing(turn, moving, stacks.large)

    @cached_property
    def _stacks(self) -> Stacks:
        _, params, _ = self._made_of
        return Stacks(self.bound.ways, params, self.shaper.damping)

    def notes(self) -> list[str]:
        sides = self.bound.now()
        fresh = [n for n, s in sides.items() if s.left.mean == 0 or s.right.mean == 0]
        memory, damping = self.shaper.memory.hash[:8], self.shaper.damping
        found = [f"damping {damping:g}, match {self.shaper.match}, memory {memory}"]
        if fresh:
            found.append(f"one side only, as the other is zero now: {listing(fresh)}")
        if plain := self._trained_plainly():
            found.append(f"not covered, trained plainly: {listing(plain)}")
        if absent := self.bound.absent:
            found.append(f"in the memory but not among these parameters: {listing(absent)}")
        return found
