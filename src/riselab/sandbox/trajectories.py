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

from risegrad.common.seeds import generator_for
from risegrad.core.shapers import covariance_noise
from risegrad.theory.calibration import kappa, mean_factor
from risegrad.theory.conditions import quadratic
from riselab.sandbox.quadratics import normals, rotated, shaped
from riselab.sandbox.spectra import Spectrum

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


def draw(
    rule: RuleName, g: Tensor, q: int, draws: torch.Generator, *, block: int | None = None
) -> Tensor:
    """One update direction per row of ``g`` (runs, d)."""
    runs, d = g.shape
    size = block or d
    if rule == "fo":
        return g
    if rule == "scaled-fo":
        return mean_factor(size, q) * g
    if rule == "covariance-noise":
        return _covariance_noise(g, q, size, draws)
    x = shaped(g, q, runs, draws, block=size)
    return x * kappa(size, q) ** 0.5 if rule == "raw-zo" else x


def _covariance_noise(g: Tensor, q: int, size: int, draws: torch.Generator) -> Tensor:
    runs, d = g.shape
    parts = g.reshape(runs, d // size, size)
    along = normals(draws, runs, d // size)
    across = normals(draws, *parts.shape)
    return covariance_noise(parts, along, across, q).reshape(runs, d)


@dataclass(frozen=True)
class Walks:
    """Losses of every simulated run at steps 0..T, shape (steps + 1, runs)."""

    forgetting: Tensor
    loss: Tensor


def walk(
    tasks: Tasks,
    rule: RuleName,
    q: int,
    rate: float,
    steps: int,
    runs: int,
    draws: torch.Generator,
    *,
    block: int | None = None,
) -> Walks:
    """Simulate ``runs`` independent trajectories from the historical optimum."""
    theta = torch.zeros(runs, len(tasks.shift), dtype=torch.float64)
    forgetting, loss = [], []
    for step in range(steps + 1):
        if step:
            theta = theta - rate * draw(rule, tasks.gradient(theta), q, draws, block=block)
        forgetting.append(quadratic(tasks.H, theta) / 2)
        loss.append(quadratic(tasks.A, theta - tasks.shift) / 2)
    return Walks(torch.stack(forgetting), torch.stack(loss))


RATES = 49
COMMON_RATE = 0.5  # in units of 1 / lam_max(A): half of what one FO step needs, far from divergence
RUNS = 400
STEP_LADDER = (8, 16, 32, 64, 128, 256)
EQUAL_PROGRESS = 0.5
GRID, ROUNDS = 12, 3  # each round narrows the bracket of the learning rate by the factor GRID - 1


@dataclass(frozen=True)
class Subject:
    """A rule with its block size (None: one block over everything)."""

    rule: RuleName
    block: int | None = None

    @property
    def name(self) -> str:
        """The rule's name, with its block size if it has one."""
        return self.rule if self.block is None else f"{self.rule}, blocks of {self.block}"


@dataclass(frozen=True)
class Course:
    """One subject at the common learning rate (exact and simulated) and over the sweep."""

    subject: Subject
    path: Path
    walks: Walks
    sweep: Path


def subjects(d: int, block: int) -> list[Subject]:
    """Every rule globally, and RISE in blocks where the block size makes at least two of them."""
    blocked = [Subject("rise", block)] if d % block == 0 and block < d else []
    return [*(Subject(rule) for rule in RULES), *blocked]


def top_curvature(tasks: Tasks) -> float:
    """The largest eigenvalue of the new task's curvature."""
    return float(torch.linalg.eigvalsh(tasks.A)[-1])


def sweep_rates(tasks: Tasks) -> Tensor:
    """Learning rates from a thousandth to ten times ``1 / lam_max(A)``, evenly in the logarithm."""
    return torch.logspace(-3, 1, RATES, dtype=torch.float64) / top_curvature(tasks)


def measure_course(tasks: Tasks, subject: Subject, q: int, steps: int, seed: int) -> Course:
    """Follow one rule at a common learning rate, and over a sweep of rates."""
    rate = COMMON_RATE / top_curvature(tasks)
    rule, block = subject.rule, subject.block
    path = follow(tasks, rule, q, torch.tensor([rate], dtype=torch.float64), steps, block=block)
    draws = generator_for(seed, f"walk/{subject.name}")
    walks = walk(tasks, rule, q, rate, steps, RUNS, draws, block=block)
    sweep = follow(tasks, rule, q, sweep_rates(tasks), steps, block=block)
    return Course(subject, path, walks, sweep)


def efficient_part(tasks: Tasks, sweep: Path) -> tuple[Tensor, Tensor, Tensor]:
    """``(rates, forgetting, progress)`` up to the learning rate of the most progress.

    Larger learning rates lose progress to noise or diverge: no one would choose them.
    """
    forgetting, progress = (values[-1] for values in sweep.relative(tasks))
    usable = torch.where(torch.isfinite(progress), progress, -torch.inf)
    end = int(usable.argmax()) + 1
    return sweep.rates[:end], forgetting[:end], progress[:end]


def forgetting_at_progress(
    tasks: Tasks, subject: Subject, q: int, steps: int, target: float
) -> float | None:
    """Expected forgetting at the smallest learning rate that reaches the target; None if none does.

    Progress rises with the learning rate up to its maximum, so a grid brackets the crossing, and
    finer grids inside the bracket narrow it; the last bracket is interpolated.
    """
    rates = torch.logspace(-3, 1, GRID, dtype=torch.float64) / top_curvature(tasks)
    for last in [False] * (ROUNDS - 1) + [True]:
        path = follow(tasks, subject.rule, q, rates, steps, block=subject.block)
        rates, forgetting, progress = efficient_part(tasks, path)
        above = int((progress < target).sum())
        if not 0 < above < len(rates):
            return None
        if last:
            low, high = progress[above - 1], progress[above]
            share = (target - low) / (high - low)
            return float(torch.lerp(forgetting[above - 1], forgetting[above], share))
        low, high = rates[above - 1].log(), rates[above].log()
        rates = torch.lerp(low, high, torch.linspace(0, 1, GRID, dtype=torch.float64)).exp()
    raise AssertionError("the last round returns")


@dataclass(frozen=True)
class EqualProgress:
    """Forgetting at equal progress over the number of steps, and the excess over FO."""

    subject: Subject
    steps: list[int]
    forgetting: list[float | None]
    excess: list[float | None]
    """forgetting / FO's forgetting - 1"""


def measure_equal_progress(tasks: Tasks, q: int, block: int) -> list[EqualProgress]:
    """FO, RISE, and RISE in blocks over the ladder of steps.

    The other rules share the curve of one of these: scaled FO has FO's, covariance noise and
    raw ZO have RISE's, at other learning rates (see ``rule_moments``).
    """
    chosen = [s for s in subjects(len(tasks.shift), block) if s.rule in ("fo", "rise")]
    found = {
        s: [forgetting_at_progress(tasks, s, q, n, EQUAL_PROGRESS) for n in STEP_LADDER]
        for s in chosen
    }
    reference = found[Subject("fo")]
    return [
        EqualProgress(s, list(STEP_LADDER), mine, [*map(_excess, mine, reference)])
        for s, mine in found.items()
    ]


def _excess(mine: float | None, reference: float | None) -> float | None:
    return None if mine is None or reference is None else mine / reference - 1
