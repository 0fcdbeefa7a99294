"""The rule as pure functions of one block: ``g -> kappa^(-1/2) Z g``.

``one_draw`` samples the exact law from one normal vector and one chi-square number, so its cost
does not depend on ``q``; ``from_directions`` is Algorithm 1 of the paper taken literally, kept as
the reference. Both are batched over leading dimensions and differ in law by nothing at all.
"""

from typing import Literal

import torch
from torch import Tensor

from risegrad.common.checks import check_choice, check_positive_int
from risegrad.core.reductions import norm
from risegrad.theory.calibration import mean_factor

Sampler = Literal["one-draw", "directions"]
SAMPLERS: tuple[Sampler, ...] = ("one-draw", "directions")


def one_draw_coefficients(
    norm: Tensor, dot: Tensor, chi2: Tensor, d: Tensor | int, q: Tensor | int
) -> tuple[Tensor, Tensor]:
    """``(c1, c2)`` such that ``c1 g + c2 n`` has the law of ``kappa^(-1/2) Z g``.

    Split every direction along and across ``u = g/|g|``: the part along gives ``S ~ chi2(q)``, the
    part across is, given ``S``, normal with variance ``S``. ``norm`` is ``|g|``, ``dot`` is
    ``g . n``. A zero gradient stays zero; a non-finite one makes both coefficients non-finite.
    """
    # 0/0 would turn a zero gradient into NaN; the product with g = 0 is 0 whatever stands here.
    along = torch.where(norm == 0, torch.zeros_like(dot), dot / norm)
    root = chi2.sqrt()
    scale = (q * (q + d + 1)) ** -0.5  # 1 / (q sqrt(kappa))
    return (chi2 - root * along) * scale, norm * root * scale


def one_draw(g: Tensor, normal: Tensor, chi2: Tensor, q: int) -> Tensor:
    """Shape ``g`` (..., d) with given draws: ``normal`` (..., d) and ``chi2`` (...)."""
    length = norm(g).expand(chi2.shape)
    along = (g * normal).sum(-1)
    on_gradient, on_noise = one_draw_coefficients(length, along, chi2, g.shape[-1], q)
    return on_gradient[..., None] * g + on_noise[..., None] * normal


def from_directions(g: Tensor, directions: Tensor) -> Tensor:
    """Algorithm 1, literally: ``directions`` (..., q, d) standard normal, ``g`` (..., d)."""
    q, d = directions.shape[-2:]
    projections = (directions @ g[..., None]).squeeze(-1)
    raw: Tensor = (projections[..., None, :] @ directions).squeeze(-2) / q
    return raw * mean_factor(d, q)


def covariance_noise(g: Tensor, along: Tensor, across: Tensor, q: int) -> Tensor:
    """Normal draws with RISE's mean and covariance ``(g g' + |g|^2 I) / (q + d + 1)``.

    ``g`` (..., d), standard normal ``along`` (...) and ``across`` (..., d). The shaper
    ``CovarianceNoise`` has the same law as two coefficients, which a step in pieces needs.
    """
    d = g.shape[-1]
    noise = along[..., None] * g + norm(g)[..., None] * across
    drawn: Tensor = mean_factor(d, q) * g + noise / (q + d + 1) ** 0.5
    return drawn


def shape(
    g: Tensor,
    q: int = 4,
    generator: torch.Generator | None = None,
    sampler: Sampler = "one-draw",
) -> Tensor:
    """One RISE draw of a gradient, all of it one block; ``g`` itself is left as it was.

    The reductions run in float32 at least; the result has the dtype of ``g``. Without a
    ``generator`` torch's global one is used, as ``torch.randn`` would.

    >>> g = torch.ones(3)
    >>> shape(g, q=4, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3])
    """
    q = check_positive_int("q", q)
    check_sampler(sampler)
    if g.numel() == 0:
        raise ValueError(f"g must have at least one element, got shape {tuple(g.shape)}")
    if not g.is_floating_point():
        raise TypeError(f"g must be a real floating-point tensor, got {g.dtype}")
    work = torch.promote_types(g.dtype, torch.float32)
    flat = g.detach().reshape(-1).to(work)

    def normals(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=work, device=g.device)

    if sampler == "directions":
        shaped = from_directions(flat, normals(q, flat.numel()))
    else:
        # A sum of q squares is a chi-square number from public API alone; it costs q scalars.
        shaped = one_draw(flat, normals(flat.numel()), normals(q).square().sum(), q)
    return shaped.to(g.dtype).view_as(g)


def check_sampler(sampler: str) -> None:
    """Raise an error that lists the samplers if there is none of this name."""
    check_choice("sampler", sampler, SAMPLERS)
