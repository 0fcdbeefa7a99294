"""Update rules: where a group's gradient comes from and how it is shaped.

``fo`` is the exact gradient, ``zo`` a two-point estimate of it, and the others shape the exact one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from torch.nn import Parameter
from torch.optim import Optimizer

from risegrad.attachment import Attachment, attach
from risegrad.checks import check_choice, check_number
from risegrad.shapers import CovarianceNoise, IsotropicNoise, Rise, ScaledFO, Shaper

RULES: dict[str, str] = {
    "fo": "the exact gradient",
    "zo": "SPSA: two evaluations per query, no gradient",
    "rise": "the exact gradient, shaped blockwise by RISE",
    "mean-matched": "control: RISE's mean, nothing random (a smaller step, block by block)",
    "isotropic-noise": "control: the exact gradient plus isotropic noise of RISE's total variance",
    "covariance-noise": "control: Gaussian noise with RISE's own mean and covariance",
}
SHAPERS: dict[str, Callable[..., Shaper]] = {
    "rise": Rise,
    "mean-matched": ScaledFO,
    "isotropic-noise": IsotropicNoise,
    "covariance-noise": CovarianceNoise,
}
BLOCKS = ("tensor", "module", "whole")


@dataclass(frozen=True)
class Rule:
    """One update rule with its settings; those of other rules are ignored."""

    name: str = ""
    """See ``RULES``; empty means the host's own: ``fo`` for most, ``zo`` for ZO-FC."""
    q: int = 4
    """Directions per block of RISE and the controls; queries of ``zo``."""
    blocks: Literal["tensor", "module", "whole"] = "tensor"
    chunk: int = 0
    """Block size in elements, cut from each tensor; 0 takes ``blocks`` as they are."""
    on: Literal["gradient", "update"] = "gradient"
    """Shape the gradient before the optimizer (the paper), or the optimizer's displacement."""
    mean: Literal["", "exact", "scaled"] = ""
    """Mean of the noise controls; empty means the control's own."""
    epsilon: float = 1e-3
    """Distance of the evaluations of ``zo``."""
    variant: Literal["two-sided", "one-sided", "sign"] = "two-sided"
    norm_matched: bool = False
    """Whether ``zo`` is scaled to the norm of the gradient."""

    def __post_init__(self) -> None:
        check_choice("name", self.name, ["", *RULES])
        check_choice("blocks", self.blocks, BLOCKS)
        check_choice("on", self.on, ("gradient", "update"))
        check_choice("mean", self.mean, ("", "exact", "scaled"))
        check_choice("variant", self.variant, ("two-sided", "one-sided", "sign"))
        check_number("q", self.q, at_least=1, whole=True)
        check_number("chunk", self.chunk, at_least=0, whole=True)
        check_number("epsilon", self.epsilon, above=0)

    @property
    def exact(self) -> bool:
        """Whether it needs the gradient by backpropagation."""
        return self.name != "zo"

    def shaper(self, seed: int) -> Shaper | None:
        """What stands in front of the optimizer; None for ``fo`` and ``zo``."""
        make = SHAPERS.get(self.name)
        if make is None:
            return None
        mean = {"mean": self.mean} if self.mean and self.name.endswith("noise") else {}
        return make(q=self.q, blocks=self.chunk or self.blocks, seed=seed, **mean)

    def attach(
        self, optimizer: Optimizer, parameters: Mapping[str, Parameter], seed: int
    ) -> Attachment | None:
        shaper = self.shaper(seed)
        if shaper is None:
            return None
        return attach(optimizer, shaper, params=list(parameters.items()), on=self.on)


def head_rule_of(rule: Rule, choice: Literal["same", "fo"]) -> Rule:
    """The rule of a head beside adapters that follow ``rule``."""
    return rule if choice == "same" else replace(rule, name="fo")
