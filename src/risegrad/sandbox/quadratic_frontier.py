"""Forgetting against progress: the comparison that a smaller step cannot win by being smaller.

At one learning rate the rules differ in mean progress as well as in forgetting. Over a sweep of
learning rates each rule draws a curve in the plane of progress and forgetting, and curves can be
compared at equal progress.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.core.rise_rule import covariance_noise
from risegrad.sandbox.simulate import normals, shaped
from risegrad.sandbox.trajectories import RULES, Path, RuleName, Tasks, follow
from risegrad.theory.calibration import kappa, mean_factor
from risegrad.theory.conditions import quadratic


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
