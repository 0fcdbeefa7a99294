"""Progress per damage: what one step can gain by knowing the curvature (beyond the paper).

A step ``theta <- theta - eta x`` makes the progress ``eta g'x`` on the new task and does the damage
``(eta^2/2) x'Hx`` to the old one. Their ratio ``e(x)`` is free of the step size, so two rules are
compared at equal progress by their efficiencies: the damage is inversely proportional to them.
"""

import torch
from torch import Tensor

from risegrad.theory.conditions import *

__all__ = [
    "best_efficiency",
    "best_gain",
    "best_step",
    "efficiency",
    "efficiency_gain",
    "kantorovich_bound",
]


def efficiency(H: Tensor, g: Tensor, x: Tensor) -> Tensor:
    """``e(x) = (g'x)^2 / x'Hx``: progress squared per damage, whatever the length of ``x``.

    It belongs to the line through ``x``: a step of negative progress ``g'x`` has that of ``-x``.
    ``x`` must meet curvature, because a step that does no damage has no efficiency.

    >>> H, g = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])
    >>> efficiency(H, g, torch.tensor([1.0, 0.0])).item(), efficiency(H, g, 3 * g).item()
    (1.0, 1.4705882352941178)
    """
    matrix, vector = check_damage(H, g)
    return _efficiency(matrix, vector, x, "x")


def efficiency_gain(H: Tensor, g: Tensor, x: Tensor, against: Tensor | None = None) -> Tensor:
    """``Gamma = e(x)/e(g)``: FO's damage over that of ``x`` at equal progress.

    ``against`` takes another step than FO as the reference. Below 1 the step loses: that happens to
    steps made from a wrong curvature, and ``Gamma`` costs two products with the true one.

    >>> H, g = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])
    >>> round(efficiency_gain(H, g, torch.tensor([2.0, 1.0])).item(), 9)
    1.36
    """
    matrix, vector = check_damage(H, check_nonzero("g", g))
    reference = vector if against is None else against
    name = "g" if against is None else "against"
    return _efficiency(matrix, vector, x, "x") / _efficiency(matrix, vector, reference, name)


def _efficiency(H: Tensor, g: Tensor, x: Tensor, name: str) -> Tensor:
    step = check_vector(name, x)
    check_matching(H, step, ("H", name))
    damage = quadratic(H, step)
    rounding = torch.finfo(torch.float64).eps * top_eigenvalue(H) * dot(step, step)
    if bool((damage <= rounding).any()):
        least = damage.min()
        raise ValueError(f"{name} must meet positive curvature {name}'H{name}, got {least:.3g}")
    return dot(g, step) ** 2 / damage


def best_step(H: Tensor, g: Tensor) -> Tensor:
    """``H^+ g``: no step makes more progress per damage.

    ``g`` must be in the range of ``H``: along the rest of it progress costs no damage at all, no
    step is best and the efficiency has no upper bound.

    >>> best_step(torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    matrix, vector = check_damage(H, g)
    values, vectors = torch.linalg.eigh(matrix)
    positive = values > _least_positive(values, H)
    seen = matvec(vectors.mT, vector)
    outside = length(torch.where(positive, 0.0, seen))
    if bool((outside > tolerance(g) * length(vector)).any()):
        part = (outside / length(vector)).max()
        raise ValueError(f"g must be in the range of H, got a part {part:.3g} of |g| outside it")
    return matvec(vectors, torch.where(positive, seen / values, 0.0))


def best_efficiency(H: Tensor, g: Tensor) -> Tensor:
    """``e* = g'H^+g``, the largest efficiency of all steps (Cauchy-Schwarz).

    >>> best_efficiency(torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])).item()
    2.0
    """
    return dot(check_vector("g", g), best_step(H, g))


def best_gain(H: Tensor, g: Tensor) -> Tensor:
    """``Gamma* = (g'Hg)(g'H^+g)/|g|^4 >= 1``: the most that knowing ``H`` can gain over FO.

    It is 1 exactly where ``g`` sees one eigenvalue only.

    >>> H, g = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])
    >>> round(best_gain(H, g).item(), 9)
    1.36
    """
    check_nonzero("g", g)
    return efficiency_gain(H, g, best_step(H, g))  # as they came: rounding is forgiven by dtype


def kantorovich_bound(H: Tensor) -> Tensor:
    """``Gamma* <= (l_max + l_min)^2/(4 l_max l_min)`` for every ``g`` in the range of ``H``.

    ``l_min`` is the least *positive* eigenvalue; a ``g`` with equal parts of the two ends of the
    spectrum attains the bound.

    >>> kantorovich_bound(torch.diag(torch.tensor([0.0, 1.0, 4.0]))).item()
    1.5625
    """
    values = torch.linalg.eigvalsh(check_psd("H", H))
    high = values[..., -1]
    if bool((high <= 0).any()):
        raise ValueError("H must be nonzero, got a zero matrix")
    positive = values > _least_positive(values, H)
    low: Tensor = torch.where(positive, values, torch.inf).amin(-1)
    bound: Tensor = (high + low) ** 2 / (4 * high * low)
    return bound


def _least_positive(values: Tensor, H: Tensor) -> Tensor:
    """What a zero eigenvalue may round to, in the precision that ``H`` came in; (..., 1)."""
    return values.shape[-1] * torch.finfo(H.dtype).eps * values[..., -1:].clamp_min(0)
