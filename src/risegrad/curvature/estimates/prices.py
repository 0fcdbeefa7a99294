"""The price of progress of a rule, ``x'Hx/(g'x)^2``, beside that of FO, with errors.

``theory.efficiency`` is its inverse, and ``Gamma`` the quotient of two prices. Errors come from
leaving out one draw after the other, and one batch after the other from both rules alike: a batch
that is hard on every rule tells nothing about which of them is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.curvature.estimates.estimated import Estimate

Kept = Tensor
"""Which batches, or which draws, are counted (bool)."""


@dataclass(frozen=True)
class Bends:
    """``x'Hx`` by batches and draws (P, K), and the progress ``g'x`` that belongs to it (P, K)."""

    bends: Tensor
    gains: Tensor

    @staticmethod
    def of(bends: Tensor, gains: Tensor) -> Bends:
        """With one progress per draw (K), the same for all batches."""
        return Bends(bends, gains.double().cpu().expand_as(bends))

    @property
    def draws(self) -> int:
        """How many draws there are; a rule without randomness has one."""
        return self.bends.shape[1]

    def price(self, parts: Kept, draws: Kept) -> Tensor:
        """``sum_p mean_k x'H_p x/(mean_k g'x)^2``; twice the damage of one unit of progress."""
        bends = self.bends[parts][:, draws].mean(1)
        gains = self.gains[parts][:, draws].mean(1)
        return (bends / gains.square()).sum()


@dataclass(frozen=True)
class Priced:
    """One rule beside FO."""

    efficiency: Estimate
    """``e = (g'x)^2/x'Hx``"""
    gain: Estimate
    """``Gamma = e(x)/e(g)``: FO's damage over this rule's at equal progress"""
    share: Estimate
    """``1/Gamma``: this rule's damage in parts of FO's at equal progress"""


def priced(rule: Bends, fo: Bends) -> Priced:
    """A rule and FO over the same batches; as many draws of both belong together in pairs."""

    def share(parts: Kept, draws: Kept) -> Tensor:
        paired = draws if rule.draws == fo.draws else _all(fo.draws)
        return rule.price(parts, draws) / fo.price(parts, paired)

    return Priced(
        efficiency=_estimate(rule, lambda parts, draws: 1 / _whole(rule, parts, draws)),
        gain=_estimate(rule, lambda parts, draws: 1 / share(parts, draws)),
        share=_estimate(rule, share),
    )


def _whole(rule: Bends, parts: Kept, draws: Kept) -> Tensor:
    """The price as if the batches that are counted were all."""
    return rule.price(parts, draws) * len(parts) / parts.sum()


def _estimate(rule: Bends, value: Callable[[Kept, Kept], Tensor]) -> Estimate:
    parts, draws = _all(len(rule.bends)), _all(rule.draws)
    square = torch.zeros((), dtype=torch.float64)
    for left in (
        [value(kept, draws) for kept in _without_one(parts)],
        [value(parts, kept) for kept in _without_one(draws)],
    ):
        if len(left) > 1:
            found, n = torch.stack(left), len(left)
            square += (n - 1) / n * (found - found.mean()).square().sum()
    return Estimate(value(parts, draws).item(), square.sqrt().item(), rule.draws)


def _all(count: int) -> Kept:
    return torch.ones(count, dtype=torch.bool)


def _without_one(everyone: Kept) -> Iterator[Kept]:
    for number in range(len(everyone) if len(everyone) > 1 else 0):
        kept = everyone.clone()
        kept[number] = False
        yield kept
