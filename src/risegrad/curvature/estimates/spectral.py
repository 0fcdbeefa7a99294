"""The largest eigenvalue, and solutions of damped systems, from products alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from risegrad.common.checks import check_number, check_positive_int
from risegrad.core.draws import numbered_generator
from risegrad.curvature.estimates.estimated import Estimate


class Multiplies(Protocol):
    """A square operator: ``@`` on a vector (d,) or on columns (d, K)."""

    def __matmul__(self, v: Tensor, /) -> Tensor: ...


def top_eigenvalue(operator: Multiplies, d: int, products: int = 20, seed: int = 0) -> Estimate:
    """The largest eigenvalue of a symmetric operator, by Lanczos with full reorthogonalization.

    ``error`` is the residual ``|Hv - theta v|``: an eigenvalue lies at most that far away, and none
    that the start vector sees lies above ``theta`` by much more. Memory: ``products`` vectors.
    """
    steps = min(check_positive_int("products", products), d)
    v = torch.randn(d, 1, generator=numbered_generator(seed, 0), dtype=torch.float64)[:, 0]
    basis, diagonal, beside = [v / v.norm()], [], [0.0]
    for _ in range(steps):
        w = (operator @ basis[-1]).double().cpu()
        diagonal.append((basis[-1] @ w).item())
        for _ in range(2):  # once leaves what rounding left; twice is enough
            for known in basis:
                w = w - (known @ w) * known
        beside.append(w.norm().item())
        scale = max(abs(value) for value in (*diagonal, *beside))
        if beside[-1] <= 1e-12 * scale or len(diagonal) == d:
            break
        basis.append(w / beside[-1])
    spent = len(diagonal)
    inner = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    off = torch.tensor(beside[1:spent], dtype=torch.float64)
    inner = inner + torch.diag(off, 1) + torch.diag(off, -1)
    values, vectors = torch.linalg.eigh(inner)
    # All of the space, or all that the start vector reaches, leaves no residual.
    last = 0.0 if spent == d else beside[spent]
    return Estimate(values[-1].item(), abs(last * vectors[-1, -1].item()), spent)


@dataclass(frozen=True)
class Bounds:
    """A number between ``lower`` and ``upper`` (infinite where nothing is known)."""

    lower: float
    upper: float
    products: int = 0


def first_step_bounds(g2: float, ghg: float, hg2: float, rho: float) -> Bounds:
    """``R = g'(H + rho I)^(-1) g`` after one step of conjugate gradients, for ``H >= 0``.

    One step needs ``g'Hg`` and ``|Hg|^2`` only: ``lower = |g|^4/(g'Hg + rho |g|^2)``, and the
    residual ``r`` bounds what is missing, ``r'(H + rho I)^(-1) r <= |r|^2/rho``.
    """
    if g2 == 0:
        return Bounds(0.0, 0.0)
    damped = ghg + rho * g2
    if damped <= 0:
        raise ValueError(
            f"H_bb + rho I must be positive definite, got g'(H + rho I)g = {damped:.3g}"
        )
    lower = g2**2 / damped
    step = g2 / damped
    residual = step**2 * (hg2 + 2 * rho * ghg + rho**2 * g2) - g2
    return Bounds(lower, lower + max(residual, 0.0) / rho)


def flat_signal(
    operator: Multiplies, g: Tensor, rho: float, products: int = 20, tolerance: float = 0.01
) -> Bounds:
    """``R(rho) = g'(H + rho I)^(-1) g`` by conjugate gradients, for ``H >= 0`` and ``rho > 0``.

    After ``k`` steps ``g'x_k`` is a lower bound that grows, and ``|r_k|^2/rho`` more is an upper
    one. Stops when the two are within ``tolerance`` of each other, relatively.
    """
    check_number("rho", rho, above=0)
    budget = check_positive_int("products", products)
    b = g.double().cpu()
    x, r = torch.zeros_like(b), b.clone()
    p, size = r.clone(), float(r @ r)
    if size == 0:
        return Bounds(0.0, 0.0)
    bounds = Bounds(0.0, size / rho)
    for spent in range(1, budget + 1):
        hp = (operator @ p).double().cpu() + rho * p
        bend = float(p @ hp)
        if bend <= 0:
            raise ValueError(
                f"H_bb + rho I must be positive definite, got p'(H + rho I)p = {bend:.3g} at "
                f"rho = {rho:.3g}: use the ggn, or a larger rho"
            )
        step = size / bend
        x, r = x + step * p, r - step * hp
        found, rest = float(b @ x), float(r @ r)
        bounds = Bounds(found, found + rest / rho, spent)
        if rest / rho <= tolerance * found or math.isclose(rest, 0.0, abs_tol=1e-300):
            break
        p, size = r + (rest / size) * p, rest
    return bounds
