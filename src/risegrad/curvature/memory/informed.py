"""Steps that know what must be kept: each layer's step, filtered by its memory.

``U -> (D/t_D + rho)^-1 U (S/t_S + rho)^-1``, scaled to the norm it had, layer by layer; then all
layers are lengthened by one factor, to the progress that the plain step would have made. With ``P``
for that filter and ``q`` directions it is randomized in the metric, ``x = kappa^(-1/2) P^(1/2) Z
P^(1/2) g`` scaled so that the mean of ``|x|^2`` is ``|g|^2``: RISE for ``P = I``, the filtered step
at its own norm as q grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, final

from torch import Tensor
from torch.optim import LBFGS, Optimizer

from risegrad.common.checks import check_choice, check_positive_int
from risegrad.core.attachment import On
from risegrad.core.blocks import BlockChoice, listing
from risegrad.core.rise_rule import one_draw_coefficients
from risegrad.core.shapers import BlockDraws, QChoice, Shaper
from risegrad.core.torch_optimizers import is_adaptive
from risegrad.core.whole_steps import Tie, WholeStep, Work
from risegrad.curvature.memory.drawn_steps import DrawnStep
from risegrad.curvature.memory.layer_stacks import Products, Stack, stacks_of
from risegrad.curvature.memory.memory import DAMPING, Memory
from risegrad.curvature.memory.memory_side import check_damping
from risegrad.curvature.memory.parameter_sides import Bound
from risegrad.curvature.memory.progress import Progress

Match = Literal["progress", "norm"]


@final
@dataclass(frozen=True)
class Informed(Shaper):
    """Shapes by what ``memory`` says must be kept; what it does not cover is trained plainly.

    Steps make the progress of plain ones, so the learning rate of plain training is right for them
    too. ``damping`` says how hard they protect: 0.01 hard, 1 softly, far above that is plain
    training. ``q`` adds RISE's randomness in the memory's metric, with one draw per tensor.
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
                "exempt, or take strict=False to leave them as plain training leaves them"
            )

    def ready(self) -> Work:
        self._check_strict()  # one may have been thawed
        damping, q = self.shaper.damping, self.shaper.q
        if q is not None:
            return DrawnStep(self.bound.now(), damping, float(q)).draw  # type: ignore[arg-type]
        filters = [(stack, stack.now(damping)) for stack in self._stacks]

        def turn(step: WholeStep) -> None:
            """Stack after stack, so that one is held in float32 (and whole) at a time."""
            found: list[Products] = []
            for stack, now in filters:
                found += stack.turn(step, now, measured=self.progress is not None)
            if self.progress is not None:
                self.progress.match(step, found)

        return turn

    @cached_property
    def _stacks(self) -> list[Stack]:
        _, params, _ = self._made_of
        return stacks_of(self.bound.ways, params, self.shaper.damping)

    def notes(self) -> list[str]:
        sides = self.bound.now()
        fresh = [n for n, s in sides.items() if s.left.mean == 0 or s.right.mean == 0]
        memory, damping = self.shaper.memory.hash[:8], self.shaper.damping
        found = [f"damping {damping:g}, match {self.shaper.match}, memory {memory}"]
        if fresh:
            found.append(f"one side only, as the other is zero now: {listing(fresh)}")
        if plain := self._trained_plainly():
            found.append(f"not covered, left as plain training leaves it: {listing(plain)}")
        if absent := self.bound.absent:
            found.append(f"remembered, and not among the parameters given: {listing(absent)}")
        return found
