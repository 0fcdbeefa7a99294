"""Many steps, exactly: mean and second moment of the displacement under each rule.

New task ``f(theta) = (theta - s)' A (theta - s) / 2``, historical loss ``L(theta) = theta' H theta
/ 2``, start at the historical optimum ``theta = 0``. A rule replaces the gradient ``g = A e``,
``e = theta - s``, by a random ``x`` whose first two moments given ``g`` are

    E[x | g]    = mean * g
    E[x x' | g] = weight * g g' + diag(spread * |g_b|^2)        (entrywise products; g_b: own block)

Steps are independent, so ``m = E[e]`` and ``S = E[e e']`` obey closed linear recursions under
``e <- e - eta x``. Nothing is approximated; no distribution is assumed beyond these two moments.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.core.shapers import covariance_noise
from risegrad.theory.calibration import kappa, mean_factor
from risegrad.theory.conditions import outer, quadratic
from riselab.sandbox import quadratics
from riselab.sandbox.quadratics import Spectrum, symmetric

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

    @property
    def top(self) -> float:
        """The largest eigenvalue of the new task's curvature."""
        return float(torch.linalg.eigvalsh(self.A)[-1])


def make_tasks(spectrum: Spectrum, d: int, draws: torch.Generator) -> Tasks:
    """Two tasks that share half of their curvature: ``A = (H + G) / 2``, ``G`` rotated like ``H``.

    Sharing makes the new task's gradients meet above-average retention curvature, the case in
    which the paper predicts that shaping helps; with nothing shared the local gap would vanish.
    """
    H = quadratics.rotated(spectrum, d, draws).H
    other = quadratics.rotated(spectrum, d, draws).H
    shift = torch.randn(d, generator=draws, dtype=torch.float64)
    return Tasks((H + other) / 2, H, shift / shift.norm())


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
class RuleMoments:
    """First two moments of a rule given the gradient; see the module's formulas."""

    mean: float
    weight: Tensor
    """(d, d)"""
    spread: float
    block: int

    @staticmethod
    def of(subject: Subject, d: int, q: int) -> "RuleMoments":
        """RISE and covariance noise share them; raw ZO is RISE at ``eta / a``, scaled FO is FO at
        ``a eta``."""
        rule, size = subject.rule, subject.block or d
        together = torch.ones(d, d, dtype=torch.float64)
        owner = torch.arange(d) // size
        same = (owner[:, None] == owner).to(torch.float64)
        a, spread = mean_factor(size, q), 1 / (q + size + 1)
        if rule in ("fo", "scaled-fo"):
            a = 1.0 if rule == "fo" else a
            return RuleMoments(a, a**2 * together, 0.0, size)
        if rule == "raw-zo":
            return RuleMoments(1.0, together + same / q, 1 / q, size)
        return RuleMoments(a, a**2 * together + spread * same, spread, size)

    def second(self, G: Tensor) -> Tensor:
        """``E[x x']`` from ``G = E[g g']``."""
        energies = G.diagonal(dim1=-2, dim2=-1)
        energy = energies.reshape(len(G), -1, self.block).sum(-1)
        floor = self.spread * energy.repeat_interleave(self.block, dim=-1)
        return self.weight * G + torch.diag_embed(floor)


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

    def relative(self, tasks: Tasks) -> tuple[Tensor, Tensor]:
        """``(forgetting / full forgetting, fraction of the new-task loss removed)``."""
        return self.forgetting / tasks.full_forgetting, 1 - self.loss / tasks.start_loss


def follow(tasks: Tasks, subject: Subject, q: int, steps: int, rates: Tensor) -> Path:
    """Run the recursions for all learning rates at once.

    With ``G = A S A``:  ``m <- m - eta mean (A m)`` and
    ``S <- S - eta mean (A S + S A) + eta^2 (weight * G + diag(spread tr_b G))``.
    """
    moments = RuleMoments.of(subject, len(tasks.shift), q)
    eta, pull = rates.to(torch.float64)[:, None, None], tasks.H @ tasks.shift

    def expectations() -> tuple[Tensor, Tensor]:
        """``(E[L], E[f])``, from ``E[theta' H theta] = tr(H S) + 2 s' H m + s' H s``."""
        forgetting = ((S * tasks.H).sum((-2, -1)) + 2 * m @ pull + tasks.shift @ pull) / 2
        return forgetting, (S * tasks.A).sum((-2, -1)) / 2

    m = -tasks.shift.expand(len(rates), -1)
    S = outer(m)
    seen = [expectations()]
    for _ in range(steps):
        AS = tasks.A @ S
        S = S - eta * moments.mean * (AS + AS.mT) + eta**2 * moments.second(AS @ tasks.A)
        # AS + AS' equals AS + SA for symmetric S only: a rounding error that is antisymmetric would
        # grow by 1 + eta^2 lam^2 per step and, over hundreds of steps, swamp the rest.
        S = symmetric(S)
        m = m - eta[:, 0] * moments.mean * (m @ tasks.A)
        seen.append(expectations())
    forgetting, loss = (torch.stack(column) for column in zip(*seen, strict=True))
    cross = m[:, :, None] * tasks.shift
    second = S + cross + cross.mT + outer(tasks.shift)
    return Path(rates, forgetting, loss, m + tasks.shift, second)


def draw(subject: Subject, g: Tensor, q: int, draws: torch.Generator) -> Tensor:
    """One update direction per row of ``g`` (runs, d)."""
    runs, d = g.shape
    size = subject.block or d
    if subject.rule in ("fo", "scaled-fo"):
        return g if subject.rule == "fo" else mean_factor(size, q) * g
    if subject.rule == "covariance-noise":
        parts = g.reshape(runs, d // size, size)
        along, across = (
            quadratics.normals(draws, runs, d // size),
            quadratics.normals(draws, *parts.shape),
        )
        return covariance_noise(parts, along, across, q).reshape(runs, d)
    x = quadratics.shaped(g, q, runs, draws, block=size)
    return x * kappa(size, q) ** 0.5 if subject.rule == "raw-zo" else x


Step = Callable[[Tensor], Tensor]
"""From gradients (runs, d) to directions."""


def walk(tasks: Tasks, step: Step, rates: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Losses ``(L, f)`` at steps 0..T of simulated runs, (steps + 1, runs), a rate for each."""
    theta = torch.zeros(len(rates), len(tasks.shift), dtype=torch.float64)
    found = []
    for taken in range(steps + 1):
        if taken:
            theta = theta - rates[:, None] * step(tasks.gradient(theta))
        found.append((quadratic(tasks.H, theta) / 2, quadratic(tasks.A, theta - tasks.shift) / 2))
    forgetting, loss = (torch.stack(column) for column in zip(*found, strict=True))
    return forgetting, loss


RATES = 49
COMMON_RATE = 0.5  # in units of 1 / lam_max(A): half of what one FO step needs, far from divergence
RUNS = 400
STEP_LADDER = (8, 16, 32, 64, 128, 256)
EQUAL_PROGRESS = 0.5
GRID, ROUNDS = 12, 3  # each round narrows the bracket of the learning rate by the factor GRID - 1


@dataclass(frozen=True)
class Curve:
    """A subject's expected forgetting and progress, in units of the tasks' scales."""

    subject: Subject
    forgetting: Tensor
    """at each step at the common learning rate"""
    progress: Tensor
    simulated: tuple[Tensor, Tensor]
    """both again, means of ``RUNS`` runs"""
    sweep: tuple[Tensor, Tensor]
    """both after the last step, for each of the sweep's learning rates that is drawn"""


def subjects(d: int, block: int) -> list[Subject]:
    """Every rule globally, and RISE in blocks where the block size makes at least two of them."""
    blocked = [Subject("rise", block)] if d % block == 0 and block < d else []
    return [*(Subject(rule) for rule in RULES), *blocked]


def sweep_rates(tasks: Tasks, count: int = RATES) -> Tensor:
    """Learning rates from a thousandth to ten times ``1 / lam_max(A)``, evenly in the logarithm."""
    return torch.logspace(-3, 1, count, dtype=torch.float64) / tasks.top


def measure_curve(tasks: Tasks, subject: Subject, q: int, steps: int, seed: int) -> Curve:
    """Follow one rule at a common learning rate, and over a sweep of rates."""
    rate = COMMON_RATE / tasks.top
    descend = partial(follow, tasks, subject, q, steps)
    path = descend(torch.tensor([rate], dtype=torch.float64))
    draws = generator_for(seed, f"walk/{subject.name}")
    rates = torch.full((RUNS,), rate, dtype=torch.float64)
    lost, left = walk(tasks, lambda g: draw(subject, g, q, draws), rates, steps)
    simulated = lost.mean(1) / tasks.full_forgetting, 1 - left.mean(1) / tasks.start_loss
    sweep = descend(sweep_rates(tasks))
    # Up to the most progress, and on to the marker where that lies beyond.
    seen = sweep.rates <= max(float(efficient_part(tasks, sweep)[0][-1]), 1.1 * rate)
    forgetting, progress = path.relative(tasks)
    swept = (values[-1][seen] for values in sweep.relative(tasks))
    return Curve(subject, forgetting[:, 0], progress[:, 0], simulated, (*swept,))  # type: ignore[arg-type]


def efficient_part(tasks: Tasks, sweep: Path) -> tuple[Tensor, Tensor, Tensor]:
    """``(rates, forgetting, progress)`` up to the learning rate of the most progress.

    Larger learning rates lose progress to noise or diverge: no one would choose them.
    """
    forgetting, progress = (values[-1] for values in sweep.relative(tasks))
    usable = torch.where(torch.isfinite(progress), progress, -torch.inf)
    end = int(usable.argmax()) + 1
    return sweep.rates[:end], forgetting[:end], progress[:end]


def forgetting_at_progress(
    tasks: Tasks, descend: Callable[[Tensor], Path], target: float = EQUAL_PROGRESS
) -> float | None:
    """Expected forgetting at the smallest learning rate that reaches the target; None if none does.

    Progress rises with the learning rate up to its maximum, so a grid brackets the crossing, and
    finer grids inside the bracket narrow it; the last bracket is interpolated.
    """
    rates = sweep_rates(tasks, GRID)
    for last in [False] * (ROUNDS - 1) + [True]:
        rates, forgetting, progress = efficient_part(tasks, descend(rates))
        above = int((progress < target).sum())
        if not 0 < above < len(rates):
            return None
        if last:
            break
        low, high = rates[above - 1].log(), rates[above].log()
        rates = torch.lerp(low, high, torch.linspace(0, 1, GRID, dtype=torch.float64)).exp()
    low, high = progress[above - 1], progress[above]
    share = (target - low) / (high - low)
    return float(torch.lerp(forgetting[above - 1], forgetting[above], share))


@dataclass(frozen=True)
class EqualProgress:
    """How much more than FO a subject forgets at equal progress, by the number of steps."""

    subject: Subject
    excess: list[tuple[int, float]]
    """steps, and forgetting / FO's forgetting - 1"""


def measure_equal_progress(tasks: Tasks, q: int, block: int) -> list[EqualProgress]:
    """RISE, and RISE in blocks, over the ladder of steps.

    The other rules share the curve of one of these or of FO: scaled FO has FO's, covariance noise
    and raw ZO have RISE's, at other learning rates (see ``RuleMoments``).
    """

    def along(subject: Subject) -> list[float | None]:
        walks = (partial(follow, tasks, subject, q, steps) for steps in STEP_LADDER)
        return [forgetting_at_progress(tasks, descend) for descend in walks]

    plain = along(Subject("fo"))
    found = []
    for subject in subjects(len(tasks.shift), block):
        if subject.rule == "rise":
            pairs = zip(STEP_LADDER, along(subject), plain, strict=True)
            excess = [(n, mine / fo - 1) for n, mine, fo in pairs if mine is not None and fo]
            found.append(EqualProgress(subject, excess))
    return found
