"""Hard projection: no step moves a layer along directions that its memory holds.

Informed steps turn such directions down by how much they matter; here they are cut off. With inputs
only this is Adam-NSCL and OWM; with both sides a step also keeps off the outputs that mattered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from risegrad.memory.factor import Diagonal, Factor, Side
from risegrad.memory.layers import role_of
from risegrad.memory.sides import Bound, ParameterSides
from riselab.common.settings import Limits
from riselab.continual.additions.addition import AdditionSettings, Training
from riselab.continual.additions.memory import WithMemory, grown, module_names

Cut = Callable[[Tensor], Tensor]
"""Takes protected directions out of the columns of a matrix."""


@dataclass(frozen=True)
class NullSpaceSettings(AdditionSettings):
    """How much is protected, and on which sides; ``memory`` says what is remembered."""

    name: str = "null-space"
    share: Annotated[float, Limits(above=0, at_most=1)] = 0.97
    """Of each factor's trace: as few of its largest eigenvectors as hold it are protected."""
    sides: Literal["both", "inputs"] = "both"
    """``(I - P_D) U (I - P_S)`` for a layer's step ``U``, or ``U (I - P_S)``."""
    summary: ClassVar[str] = "steps without the directions that a memory holds: Adam-NSCL, OWM"

    def make(self, seed: int) -> NullSpace:
        """The projection with these settings; it draws nothing."""
        return NullSpace(self)


class NullSpace(WithMemory):
    """Projects what an optimizer did, so it works with any optimizer.

    Parameters whose input is always one (biases, norms) stop after the first session.
    """

    name = "null-space"

    def __init__(self, settings: NullSpaceSettings) -> None:
        self.settings = settings

    def begin(self, training: Training) -> None:
        if self.memory is None:
            return
        session = training.session
        memory = grown(self.memory, session.module)
        own = {
            name: session.parameters[full]
            for full, name in module_names(session).items()
            if role_of(name).layer in memory
        }
        bound = Bound(memory, session.module, own)
        for optimizer in dict.fromkeys(training.optimizers.values()):
            ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
            held = {n: own[n] for n in bound.covered if id(own[n]) in ids}
            if held:
                _Projection(bound, held, self.settings).put_on(optimizer)


class _Projection:
    """Remembers where a step began, and takes what is protected out of it."""

    def __init__(
        self, bound: Bound, held: Mapping[str, Parameter], settings: NullSpaceSettings
    ) -> None:
        self._bound, self._held, self._settings = bound, held, settings
        self._began: dict[str, tuple[Tensor, ParameterSides]] = {}
        self._fixed = {id(s) for way in bound.ways.values() for s in (way.left, way.right)}
        self._cuts: dict[int, Cut] = {}

    def put_on(self, optimizer: Optimizer) -> None:
        """From now on, around every step."""
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _before(self, *_: Any) -> None:
        # A LoRA's sides follow its values: those of the beginning of a step are meant.
        self._began = {
            name: (p.detach().clone(), self._bound.of(name))
            for name, p in self._held.items()
            if p.grad is not None
        }

    @torch.no_grad()
    def _after(self, *_: Any) -> None:
        for name, (then, sides) in self._began.items():
            parameter = self._held[name]
            move = sides.matrix(parameter - then)
            move = self._cut(sides.right)(move.T).T
            if self._settings.sides == "both":
                move = self._cut(sides.left)(move)
            parameter.copy_(then + sides.restored(move, parameter.shape))
        self._began = {}

    def _cut(self, side: Side) -> Cut:
        """Those of factors that never change are made once."""
        if id(side) not in self._fixed:
            return cut_of(side, self._settings.share)
        if id(side) not in self._cuts:
            self._cuts[id(side)] = cut_of(side, self._settings.share)
        return self._cuts[id(side)]


def cut_of(side: Side, share: float) -> Cut:
    """Cuts off as few of a factor's largest eigenvectors as hold ``share`` of its trace."""
    if isinstance(side, Diagonal):
        order = side.values.argsort(descending=True)
        free = torch.ones_like(side.values)
        free[order[: _count(side.values[order], side.trace, share)]] = 0
        return lambda x: free.to(x)[:, None] * x
    assert isinstance(side, Factor)
    vectors, values, _ = side.eigen
    basis = vectors[:, : _count(values, side.trace, share)]
    return lambda x: x - (basis @ (basis.T @ x.to(basis))).to(x)


ROUNDING = 1e-6
"""Eigenvalues below this share of the trace are rounding: a step along them harms nothing."""


def _count(values: Tensor, trace: float, share: float) -> int:
    """How many of the values, largest first, hold the share; all of them if they never do."""
    if trace <= 0:
        return 0
    reached = values.double().cumsum(0) / trace
    meant = int((values.double() > ROUNDING * trace).sum())
    return min(int((reached < share * (1 - 1e-9)).sum()) + 1, meant)
