"""One step of ``keep`` on a quadratic with a slope: shaped, pulled, and both (beyond the paper).

The old loss is ``h'D + D'HD/2`` for a displacement ``D``: ``h`` is its gradient where the step
begins, zero only as long as nothing has drifted. The new task's gradient is ``g``, and ``-g'D`` the
progress. ``P`` is the metric that a memory gives, ``(H + rho I)^(-1)`` where the memory is right.

There is no guarantee where these conditions fail: for an optimizer with momentum or another step
than ``-eta g``, for a memory of another point than where the model is now, for factors that are
estimated, and for a slope that no pull answers. Tests hold a counterexample for each.
"""

from dataclasses import dataclass

from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.theory.conditions import *
from risegrad.theory.informed import ridge_step

__all__ = [
    "BestKeepStep",
    "KeepStep",
    "KeepSteps",
    "best_keep_step",
    "best_pull_strength",
    "keep_steps",
    "old_loss_change",
    "progress_factor",
]


def progress_factor(g: Tensor, step: Tensor, filtered: Tensor, longest: float = 8.0) -> Tensor:
    """``c = g'U/g'U'``, between 1 and ``longest``: ``c U'`` makes the progress of ``U``.

    ``U`` is the plain step (as a direction to go down: ``g'U > 0``), ``U'`` the filtered one. Of a
    step ``U`` along ``g`` and a ``U'`` of equal norm, ``c`` is never below 1 (Cauchy-Schwarz).

    >>> import torch
    >>> g = torch.tensor([3.0, 4.0])
    >>> progress_factor(g, g, torch.tensor([5.0, 0.0])).item()
    1.6666666666666667
    """
    most = check_number("longest", longest, at_least=1)
    slope = check_vector("g", g)
    products = {name: dot(slope, check_vector(name, one))
                for name, one in (("step", step), ("filtered", filtered))}  # fmt: skip
    for name, product in products.items():
        if bool((product <= 0).any()):
            raise ValueError(f"{name} must make progress, got g'{name} = {product.min():.3g}")
    return (products["step"] / products["filtered"]).clamp(1, most)


@dataclass(frozen=True)
class KeepStep:
    """One displacement: its progress, and what it does to the old loss to second order."""

    displacement: Tensor
    progress: Tensor
    """``-g'D``"""
    first_order: Tensor
    """``h'D``: what no curvature sees"""
    damage: Tensor
    """``D'HD/2``"""

    @property
    def change(self) -> Tensor:
        """The change of the old loss: first order and damage."""
        return self.first_order + self.damage


def old_loss_change(H: Tensor, g: Tensor, h: Tensor, displacement: Tensor) -> KeepStep:
    """``h'D + D'HD/2``, part by part, and the progress ``-g'D``.

    >>> import torch
    >>> H, g, h = torch.eye(2), torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.0])
    >>> old_loss_change(H, g, h, torch.tensor([-1.0, 0.0])).change.item()
    0.0
    """
    matrix, slope = check_damage(H, h)
    move, gain = check_vector("displacement", displacement), check_vector("g", g)
    check_matching(matrix, move, ("H", "displacement"))
    check_matching(matrix, gain)
    return KeepStep(move, -dot(gain, move), dot(slope, move), quadratic(matrix, move) / 2)


@dataclass(frozen=True)
class KeepSteps:
    """Plain training's step, each half of ``keep`` alone, and ``keep``."""

    plain: KeepStep
    """``-eta g``"""
    shaped: KeepStep
    """``-eta c P g``, at the progress of the plain one"""
    pulled: KeepStep
    """``-eta G`` with the pull in the gradient, ``G = g + s h``"""
    both: KeepStep
    """``-eta c P G``, as far down ``G`` as the pulled one"""


def keep_steps(
    H: Tensor, P: Tensor, g: Tensor, h: Tensor, strength: float, eta: float = 1.0
) -> KeepSteps:
    """The four steps at one learning rate, as ``keep`` takes them in front of plain descent.

    Shaped steps are scaled to the norm of the plain one, then by ``progress_factor``. Where ``h``
    is zero and ``P`` the ridge metric of ``H``, the shaped one never does more damage than the
    plain one. The pull alone changes the old loss by ``-eta s |h|^2`` to first order, after
    shaping by ``-eta c s h'Ph``: never a rise, whatever ``P`` is.

    >>> import torch
    >>> H, g = torch.diag(torch.tensor([1.0, 4.0])), torch.tensor([1.0, 2.0])
    >>> found = keep_steps(H, torch.linalg.inv(H), g, torch.zeros(2), strength=1.0, eta=0.1)
    >>> round((found.plain.damage / found.shaped.damage).item(), 6)
    1.36
    """
    rate, pull = check_number("eta", eta, above=0), check_number("strength", strength, at_least=0)
    metric, new = check_metric(P, check_nonzero("g", g))
    sum_of_both = check_nonzero("g + strength h", new + pull * check_vector("h", h))

    def shaped(G: Tensor) -> Tensor:
        x = matvec(metric, G)
        x = x * (length(G) / length(x))[..., None]
        return progress_factor(G, G, x)[..., None] * x

    directions = new, shaped(new), sum_of_both, shaped(sum_of_both)
    return KeepSteps(*(old_loss_change(H, g, h, -rate * x) for x in directions))


def best_pull_strength(H: Tensor, P: Tensor, g: Tensor, h: Tensor, progress: float) -> Tensor:
    """The ``s`` of least old loss among steps along ``P(g + s h)`` that make this progress.

    With ``u = Pg``, ``v = Ph - (g'Ph/g'u) u`` (the part of the pull without progress) and
    ``t = progress/g'u`` the step ``-t u - b v`` is best at ``b = (h'v - t v'Hu)/v'Hv``, which is
    ``s = b/(t - b g'Ph/g'u)``. ``P = I`` is the pull alone. Below zero the step itself takes back
    more than the slope asks for, and no pull is best.

    >>> import torch
    >>> H, h = torch.eye(2), torch.tensor([0.0, 0.5])
    >>> best_pull_strength(H, torch.eye(2), torch.tensor([1.0, 0.0]), h, progress=0.25).item()
    4.0
    """
    wanted = check_number("progress", progress, above=0)
    matrix, slope = check_damage(H, check_nonzero("h", h))
    metric, new = check_metric(P, check_nonzero("g", g))
    u, pull = matvec(metric, new), matvec(metric, slope)
    gain = dot(new, u)
    beside = dot(new, pull) / gain
    v = pull - beside[..., None] * u
    bend, t = quadratic(matrix, v), wanted / gain
    if bool((bend <= 1e-12 * quadratic(matrix, pull)).any()):
        raise ValueError("h must differ from g where H has curvature, got a pull along the step")
    b = (dot(slope, v) - t * dot(v, matvec(matrix, u))) / bend
    rest = t - b * beside
    if bool((rest <= 0).any()):
        raise ValueError(f"progress must be more than the pull alone makes, got {wanted:.3g}")
    return b / rest


@dataclass(frozen=True)
class BestKeepStep:
    """The step ``-t (H + rho I)^(-1) (g + s h)`` of ``best_keep_step``."""

    displacement: Tensor
    strength: Tensor
    """``s = 1/t``: the shorter the step, the stronger the pull"""


def best_keep_step(H: Tensor, g: Tensor, h: Tensor, rho: float, progress: float) -> BestKeepStep:
    """No step of this progress has less ``h'D + D'HD/2 + rho |D|^2/2``: the two halves are one.

    It is the ridge step of ``g + s h``, pulled first and then shaped as ``keep`` does it, with
    ``s = 1/t`` and ``t = (progress - g'Ph)/g'Pg`` for ``P = (H + rho I)^(-1)`` (Lagrange).

    >>> import torch
    >>> best = best_keep_step(torch.eye(2), torch.tensor([1.0, 0.0]), torch.tensor([0.0, 0.5]),
    ...                       rho=1.0, progress=0.25)
    >>> best.displacement.tolist(), best.strength.item()
    ([-0.25, -0.25], 2.0)
    """
    wanted, new = check_number("progress", progress, above=0), check_nonzero("g", g)
    down, back = ridge_step(H, g, rho), ridge_step(H, h, rho)
    t = (wanted - dot(new, back)) / dot(new, down)
    if bool((t <= 0).any()):
        raise ValueError(f"progress must be more than the pull alone makes, got {wanted:.3g}")
    return BestKeepStep(-t[..., None] * down - back, 1 / t)
