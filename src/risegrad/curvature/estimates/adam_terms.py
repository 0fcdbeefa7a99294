"""What Adam changes: the historical loss sees Adam's displacement, not the gradient.

Adam divides by the root of its second moment. In front of it a constant factor does nothing, so
scaled FO fed to Adam is plain Adam; and a shaped gradient has nearly the same second
moment in every coordinate, ``v_i = (1 - tau) g_i^2 + tau |g|^2/d``, so that Adam stops adapting.

Compared is the price of progress ``E[u'Hu] / (E[g'u])^2`` of a displacement ``-eta u``: twice the
damage of the step that makes one unit of first-order progress. It does not depend on ``eta``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.core.draws import mix, numbered_generator
from risegrad.core.rise_rule import shape
from risegrad.curvature.estimates.estimated import Estimate
from risegrad.curvature.estimates.gradient_terms import Tick
from risegrad.curvature.operators.parameter_space import Space
from risegrad.curvature.operators.products import Operator

EPSILON = 1e-8


@dataclass(frozen=True)
class AdamView:
    """Prices of progress, and how even the second moments are (1: alike in every coordinate)."""

    plain: Estimate
    """Adam on the exact gradient, its second moment settled at ``g^2``"""
    shaped_gradient: Estimate
    """RISE in front of Adam (``on="gradient"``), the second moment settled at ``v``"""
    shaped_update: Estimate
    """RISE on Adam's own displacement (``on="update"``)"""
    evenness_plain: float
    evenness_shaped: float


def signs(g: Tensor) -> Tensor:
    """The first step of Adam, and every one whose second moment has settled at the gradient's."""
    return g / (g.abs() + EPSILON)


def adam_view(operator: Operator, g: Tensor, draws: int, seed: int, tick: Tick) -> AdamView:
    """One product for plain Adam and ``draws`` for each of the other two."""
    space = operator.space
    sign, settled = signs(g), shaped_second_moment(space, g)
    scale = 1 / (settled.sqrt() + EPSILON)
    plain = _price(operator, g, [sign], tick)

    def shaped(vector: Tensor, stream: int) -> list[Tensor]:
        return [rise_draw(space, vector, mix(seed, stream, draw)) for draw in range(draws)]

    return AdamView(
        plain=plain,
        shaped_gradient=_price(operator, g, [scale * x for x in shaped(g, 1)], tick),
        shaped_update=_price(operator, g, shaped(sign, 2), tick),
        evenness_plain=_evenness(space, g.square()),
        evenness_shaped=_evenness(space, settled),
    )


def shaped_second_moment(space: Space, g: Tensor) -> Tensor:
    """``E[x_i^2] = (1 - tau) g_i^2 + tau |g|^2/d`` of RISE, coordinate by coordinate."""
    tau, d = space.numbers("tau"), space.numbers("d")
    floor = tau * space.block_dots(g, g) / d
    return space.spread(1 - tau) * g.square() + space.spread(floor)


def rise_draw(space: Space, g: Tensor, seed: int) -> Tensor:
    """One RISE draw of a flat gradient, block by block."""
    parts = []
    for number, block in enumerate(space.blocks):
        generator = numbered_generator(seed, number, g.device)
        parts.append(shape(g[block.at], block.q, generator))
    return torch.cat(parts)


def _price(operator: Operator, g: Tensor, draws: list[Tensor], tick: Tick) -> Estimate:
    bends, gains = [], []
    for u in draws:
        product = operator @ u
        tick(1)
        bends.append(torch.dot(u.double(), product.double()).item())
        gains.append(torch.dot(g.double(), u.double()).item())
    return ratio_estimate(bends, gains)


def ratio_estimate(bends: list[float], gains: list[float]) -> Estimate:
    """``mean(bends) / mean(gains)^2`` with its jackknife error."""
    count = len(bends)
    value = _ratio(bends, gains)
    if count < 2:
        return Estimate(value, 0.0, count)
    left = torch.tensor(
        [_ratio(bends[:k] + bends[k + 1 :], gains[:k] + gains[k + 1 :]) for k in range(count)],
        dtype=torch.float64,
    )
    error = ((count - 1) / count * (left - left.mean()).square().sum()).sqrt().item()
    return Estimate(value, error, count)


def _ratio(bends: list[float], gains: list[float]) -> float:
    count, gain = len(bends), sum(gains)
    return sum(bends) * count / gain**2 if gain else float("nan")


def _evenness(space: Space, second: Tensor) -> float:
    """``(sum v)^2 / (d sum v^2)`` of each block, averaged over coordinates."""
    ones = torch.ones_like(second)
    totals, squares = space.block_dots(second, ones), space.block_dots(second, second)
    filled = squares > 0
    shares = totals[filled].square() / squares[filled]
    d = space.numbers("d")[filled]
    return float(shares.sum() / d.sum()) if len(d) else float("nan")
