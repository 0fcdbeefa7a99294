"""Many steps, exactly: mean and second moment of the displacement under each rule.

New task ``f(theta) = (theta - s)' A (theta - s) / 2``, historical loss ``L(theta) = theta' H theta
/ 2``, start at the historical optimum ``theta = 0``. A rule replaces the gradient ``g = A e``,
``e = theta - s``, by a random ``x`` whose first two moments given ``g`` are

    E[x | g]    = mean * g
    E[x x' | g] = weight * g g' + diag(spread * |g_b|^2)        (entrywise products; g_b: own block)

Steps are independent, so ``m = E[e]`` and ``S = E[e e']`` obey closed linear recursions under
``e <- e - eta x``. Nothing is approximated; no distribution is assumed beyond these two moments.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from risegrad.sandbox.quadratics import rotated
from risegrad.sandbox.spectra import Spectrum
from risegrad.theory.calibration import mean_factor

RuleName = Literal["fo", "scaled-fo", "rise", "covariance-noise", "raw-zo"]
RULES: tuple[RuleName, ...] = get_args(RuleName)


@dataclass(frozen=True)
class Tasks:
    """A quadratic new task (curvature ``A``, optimum ``shift``) and historical loss (``H``, 0)."""

    A: Tensor
    H: Tensor
    shift: Tensor

    def gradient(self, theta: Tensor) -> Tensor:
        """``A (theta - shift)``, rows of ``theta`` at a time."""
        return (theta - self.shift) @ self.A

    @property
    def start_loss(self) -> float:
        """New-task loss before the first step: progress is measured in units of it."""
        return float(self.shift @ self.A @ self.shift) / 2

    @property
    def full_forgetting(self) -> float:
        """Forgetting at the new task's optimum: forgetting is measured in units of it."""
        return float(self.shift @ self.H @ self.shift) / 2


def make_tasks(spectrum: Spectrum, d: int, draws: torch.Generator) -> Tasks:
    """Two tasks that share half of their curvature: ``A = (H + G) / 2``, ``G`` rotated like ``H``.

    Sharing makes the new task's gradients meet above-average retention curvature, the case in
    which the paper predicts that shaping helps; with nothing shared the local gap would vanish.
    """
    H = rotated(spectrum, d, draws).H
    other = rotated(spectrum, d, draws).H
    shift = torch.randn(d, generator=draws, dtype=torch.float64)
    return Tasks((H + other) / 2, H, shift / shift.norm())


@dataclass(frozen=True)
class RuleMoments:
    """First two moments of a rule given the gradient; see the module's formulas."""

    mean: float
    weight: Tensor
    """(d, d)"""
    spread: float
    block: int


def rule_moments(rule: RuleName, d: int, q: int, block: int | None = None) -> RuleMoments:
    """Moments of each rule, blocks of equal size.

    RISE and covariance noise share them by construction; raw ZO is RISE times ``1/a``, so at the
    learning rate ``eta`` it is RISE at ``eta / a``; scaled FO is FO at ``a eta``.
    """
    size = block or d
    together = torch.ones(d, d, dtype=torch.float64)
    owner = torch.arange(d) // size
    same = (owner[:, None] == owner).to(torch.float64)
    a = mean_factor(size, q)
    if rule == "fo":
        return RuleMoments(1.0, together, 0.0, size)
    if rule == "scaled-fo":
        return RuleMoments(a, a**2 * together, 0.0, size)
    spread = 1 / (q + size + 1)
    if rule == "raw-zo":
        return RuleMoments(1.0, together + same / q, 1 / q, size)
    return RuleMoments(a, a**2 * together + spread * same, spread, size)


@dataclass(frozen=True)
class Path:
    """Exact expectations at steps 0..T (rows) for each learning rate (columns).

    ``forgetting`` and ``loss`` are absolute; ``relative`` gives them in units of the tasks' scales.
    """

    rates: Tensor
    forgetting: Tensor
    loss: Tensor
    mean: Tensor
    """E[displacement] after the last step, (rates, d)"""
    second_moment: Tensor
    """E[displacement displacement'] after the last step, (rates, d, d)"""

    @property
    def covariance(self) -> Tensor:
        """Covariance of the displacement after the last step."""
        return self.second_moment - self.mean[:, :, None] * self.mean[:, None, :]

    def relative(self, tasks: Tasks) -> tuple[Tensor, Tensor]:
        """``(forgetting / full forgetting, fraction of the new-task loss removed)``."""
        return self.forgetting / tasks.full_forgetting, 1 - self.loss / tasks.start_loss


def follow(
    tasks: Tasks, rule: RuleName, q: int, rates: Tensor, steps: int, *, block: int | None = None
) -> Path:
    """Run the recursions for all learning rates at once.

    With ``G = A S A``:  ``m <- m - eta mean (A m)`` and
    ``S <- S - eta mean (A S + S A) + eta^2 (weight * G + diag(spread tr_b G))``.
    """
    d = len(tasks.shift)
    moments = rule_moments(rule, d, q, block)
    eta = rates.to(torch.float64)[:, None, None]
    m = -tasks.shift.expand(len(rates), d)
    S = m[:, :, None] * m[:, None, :]
    seen = [_expectations(tasks, m, S)]
    for _ in range(steps):
        AS = tasks.A @ S
        second = _shaped_second_moment(AS @ tasks.A, moments)
        S = S - eta * moments.mean * (AS + AS.mT) + eta**2 * second
        # AS + AS' equals AS + SA for symmetric S only: a rounding error that is antisymmetric would
        # grow by 1 + eta^2 lam^2 per step and, over hundreds of steps, swamp the rest.
        S = (S + S.mT) / 2
        m = m - eta[:, 0] * moments.mean * (m @ tasks.A)
        seen.append(_expectations(tasks, m, S))
    forgetting, loss = (torch.stack(column) for column in zip(*seen, strict=True))
    return Path(rates, forgetting, loss, m + tasks.shift, _displacement_moment(tasks, m, S))


def _shaped_second_moment(G: Tensor, moments: RuleMoments) -> Tensor:
    """``E[x x']`` from ``G = E[g g']``."""
    energies = G.diagonal(dim1=-2, dim2=-1)
    energy = energies.reshape(len(G), -1, moments.block).sum(-1)
    floor = moments.spread * energy.repeat_interleave(moments.block, dim=-1)
    return moments.weight * G + torch.diag_embed(floor)


def _displacement_moment(tasks: Tasks, m: Tensor, S: Tensor) -> Tensor:
    """``E[theta theta']`` from the moments of ``e = theta - s``."""
    cross = m[:, :, None] * tasks.shift
    return S + cross + cross.mT + torch.outer(tasks.shift, tasks.shift)


def _expectations(tasks: Tasks, m: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """``(E[L], E[f])`` for each learning rate, without forming the displacement's moment.

    ``E[theta' H theta] = tr(H S) + 2 s' H m + s' H s``.
    """
    pull = tasks.H @ tasks.shift
    forgetting = ((S * tasks.H).sum((-2, -1)) + 2 * m @ pull + tasks.shift @ pull) / 2
    return forgetting, (S * tasks.A).sum((-2, -1)) / 2
