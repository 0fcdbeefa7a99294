"""What the figures of one step show: measured with the algorithm, beside the closed forms.

Blocks are laid on curvature along the axes, where each holds neighbours of the spectrum, and on the
same spectrum rotated, where each holds a bit of every direction.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from risegrad import theory
from risegrad.common.seeds import generator_for
from risegrad.core.shapers import Sampler
from risegrad.theory.calibration import tau
from risegrad.theory.conditions import quadratic, trace
from riselab.sandbox import quadratics
from riselab.sandbox.quadratics import Quadratic, Spectrum

RUNGS = 7  # sample sizes N / 64, N / 32, ..., N
REPEATS = 8  # independent repetitions of the whole measurement, for its spread


@dataclass(frozen=True)
class OperatorMeasurement:
    """What panels A and B show; the first repetition is the headline, all give the spread."""

    eigenvalues: Tensor
    """of H, large to small"""
    predicted: Tensor
    """of the mean shaped curvature, by the closed form"""
    measured: Tensor
    """diagonal of the first repetition's average in the eigenbasis of H (unbiased)"""
    average: Tensor
    """the first repetition's average of P'HP, d x d"""
    expected: Tensor
    """its closed form, d x d"""
    eigenvalue_errors: Tensor
    """per repetition: |sorted eigenvalues of the average - predicted| / |predicted|"""
    sizes: list[int]
    residuals: Tensor
    """(repetitions, rungs): root mean square of |average - expected|_F / |expected|_F"""

    @property
    def slopes(self) -> Tensor:
        """Per repetition, the slope of log residual over log sample size; -1/2 is expected."""
        x = torch.tensor(self.sizes, dtype=torch.float64).log()
        centered = x - x.mean()
        return (self.residuals.log() @ centered) / centered.square().sum()


def measure_operator(
    problem: Quadratic, q: int, samples: int, seed: int, purpose: str
) -> OperatorMeasurement:
    """Measure ``E[P'HP]`` from ``samples`` literal shapes, ``REPEATS`` times over."""
    expected = theory.expected_curvature(problem.H, q)
    predicted = theory.spectral_equalization(problem.eigenvalues, q)
    base = samples // 2 ** (RUNGS - 1)
    # The top rung is all samples, also those that fill no whole group.
    sizes = [base * 2**rung for rung in range(RUNGS - 1)] + [samples]
    draws = (generator_for(seed, f"{purpose}/{repeat}") for repeat in range(REPEATS))
    runs = [_ladder(problem.H, expected, q, sizes, own) for own in draws]
    averages = torch.stack([average for average, _ in runs])
    in_basis = (problem.basis * (averages @ problem.basis)).sum(-2)
    # The spectrum of a symmetric matrix is sorted; the contraction keeps the order of H's.
    ordered = torch.linalg.eigvalsh((averages + averages.mT) / 2).flip(-1)
    errors = (ordered - predicted).norm(dim=-1) / predicted.norm()
    residuals = torch.tensor([residuals for _, residuals in runs], dtype=torch.float64)
    return OperatorMeasurement(
        problem.eigenvalues, predicted, in_basis[0], averages[0], expected, errors, sizes, residuals
    )


def _ladder(
    H: Tensor, expected: Tensor, q: int, sizes: Sequence[int], draws: torch.Generator
) -> tuple[Tensor, list[float]]:
    """The average over all samples, and the residual of group averages at each rung.

    Only one running sum per rung is held: memory does not grow with the number of groups.
    """

    def residual(average: Tensor) -> float:
        return float((average - expected).norm() / expected.norm())

    total, groups = torch.zeros_like(H), 2 ** (RUNGS - 1)
    open_sums = [torch.zeros_like(H) for _ in sizes[:-1]]
    squares: list[list[float]] = [[] for _ in sizes[:-1]]
    for group in range(1, groups + 1):
        part = quadratics.operator_sum(H, q, sizes[0], draws)
        total += part
        for rung, size in enumerate(sizes[:-1]):
            open_sums[rung] += part
            if group % 2**rung == 0:
                squares[rung].append(residual(open_sums[rung] / size) ** 2)
                open_sums[rung].zero_()
    if rest := sizes[-1] - sizes[0] * groups:
        total += quadratics.operator_sum(H, q, rest, draws)
    average = total / sizes[-1]
    return average, [*(math.sqrt(sum(s) / len(s)) for s in squares), residual(average)]


BELOW, ABOVE = 7, 14  # gradients with below-average and with above-average curvature


@dataclass(frozen=True)
class GapMeasurement:
    """Panel C: one entry per gradient, from below- to above-average curvature."""

    excess: Tensor
    """directional minus average curvature"""
    predicted: Tensor
    measured: Tensor
    standard_error: Tensor
    """of the measured gap, from the exact variance"""

    @property
    def r_squared(self) -> float:
        """``1 - |measured - predicted|^2 / |measured - mean|^2``: the line is not fitted."""
        left = (self.measured - self.predicted).square().sum()
        return float(1 - left / (self.measured - self.measured.mean()).square().sum())


def turning_gradients(problem: Quadratic) -> Tensor:
    """Unit gradients (n, d) whose excess curvature is negative, then zero, then positive."""
    low, high = float(problem.eigenvalues[-1]), float(problem.eigenvalues[0])
    average = float(problem.eigenvalues.mean())
    below = torch.linspace(low, average, BELOW + 1, dtype=torch.float64)[:-1]
    above = torch.linspace(average, high, ABOVE + 1, dtype=torch.float64)
    curvatures = torch.cat([below, above]).tolist()
    return torch.stack([problem.gradient_with_curvature(value) for value in curvatures])


def measure_gap(
    problem: Quadratic, q: int, samples: int, seed: int, purpose: str
) -> GapMeasurement:
    """``Q_FO - mean Q`` over literal shapes, for gradients that turn through the average."""
    H, gradients = problem.H, turning_gradients(problem)
    found = []
    for index, g in enumerate(gradients):
        draws = generator_for(seed, f"{purpose}/{index}")
        values = quadratics.damages(H, g, q, samples, draws, sampler="directions")
        found.append(quadratic(H, g) / 2 - values.mean())
    excess = quadratic(H, gradients) - problem.eigenvalues.mean()
    error = (theory.damage_moments(H, gradients, q).variance / samples).sqrt()
    return GapMeasurement(excess, theory.damage_gap(H, gradients, q), torch.stack(found), error)


class Measured(NamedTuple):
    """A number, its standard error, and the closed form."""

    value: float
    error: float
    exact: float


@dataclass(frozen=True)
class Batch:
    """One-batch damage in one setting: what it gains over FO in the mean, and its deviation."""

    kind: str
    """course of figure 6, or the sampler of panel D"""
    d: int
    block: int
    """block size; the whole dimension for global shaping"""
    q: int
    signal: Measured
    deviation: Measured

    @property
    def size(self) -> int:
        """What a course of figure 6 goes over."""
        return self.d if self.kind == "dimensions" else self.block


def measure_batch(
    kind: str, problem: Quadratic, g: Tensor, q: int, block: int, samples: int,
    draws: torch.Generator, sampler: Sampler = "one-draw",
) -> Batch:  # fmt: skip
    """Signal and deviation of one-batch damages, beside the closed forms."""
    values = quadratics.damages(problem.H, g, q, samples, draws, block=block, sampler=sampler)
    if block == problem.d:
        mean, variance = theory.damage_moments(problem.H, g, q)
    else:
        sizes = [block] * (problem.d // block)
        mean, variance = theory.blockwise_moments(problem.H, g, sizes, q)
    fo, (deviation, error) = float(quadratic(problem.H, g)) / 2, std_with_error(values)
    return Batch(
        kind, problem.d, block, q,
        Measured(fo - float(values.mean()), deviation / samples**0.5, fo - float(mean)),
        Measured(deviation, error, float(variance) ** 0.5),
    )  # fmt: skip


def std_with_error(values: Tensor) -> tuple[float, float]:
    """Standard deviation and its standard error, ``sqrt((m4 - s^4) / n) / (2 s)``."""
    centered = values - values.mean()
    variance, fourth = centered.square().mean(), centered.pow(4).mean()
    error = ((fourth - variance**2) / len(values)).sqrt() / (2 * variance.sqrt())
    return float(values.std()), float(error)


QUERIES = (1, 2, 4, 8, 16, 32, 64)
ROTATED_QUERIES = (1, 2, 4, 16, 64)  # enough to see the same curve again
LITERAL_QUERIES = (1, 2, 4, 8)  # Algorithm 1 beside the one-draw points where it is affordable


def measure_deviations(
    problem: Quadratic, block: int, queries: Sequence[int], samples: int, seed: int, purpose: str
) -> list[Batch]:
    """Panel D: global and blockwise, by one draw at every q, by Algorithm 1 at the small ones."""
    g = quadratics.even_gradient(problem.d, generator_for(seed, f"{purpose}/gradient"))
    plan: list[tuple[int, Sampler, int]] = [(q, "one-draw", samples) for q in queries]
    plan += [(q, "directions", samples // 8) for q in LITERAL_QUERIES]
    found = []
    for size in dict.fromkeys((problem.d, block)):
        for q, sampler, count in plan:
            draws = generator_for(seed, f"{purpose}/{size}/{q}/{sampler}")
            found.append(measure_batch(sampler, problem, g, q, size, count, draws, sampler))
    return found


class Exposure(NamedTuple):
    """One second moment: its share along ``g``, across it (per direction), and its blind risk."""

    along: float
    across: float
    risk: float

    @staticmethod
    def of(M: Tensor, g: Tensor) -> "Exposure":
        """Read a second moment, with ``|g| = 1`` and an average curvature of one."""
        along = quadratic(M, g)
        across = (trace(M) - along) / (len(g) - 1)
        return Exposure(float(along), float(across), float(theory.worst_case_risk(M, 1.0)))


class ExposurePoint(NamedTuple):
    """Measured and exact exposure of norm-matched ZO at one query count."""

    q: int
    measured: Exposure
    exact: Exposure
    tau: float
    """the part of the way from FO's risk to the optimum that is closed"""


@dataclass(frozen=True)
class ExposureMeasurement:
    """The exposures of all rules in one dimension."""

    fo: Exposure
    isotropic: Exposure
    zo: list[ExposurePoint]


def measure_exposure(
    d: int, queries: Sequence[int], samples: int, seed: int
) -> ExposureMeasurement:
    """Exposure over query counts; only the law of ``P g`` enters, so one draw per sample."""
    draws = generator_for(seed, "exposure/gradient")
    g = torch.nn.functional.normalize(quadratics.normals(draws, d), dim=0)
    points = []
    for q in queries:
        M = quadratics.second_moment(g, q, samples, generator_for(seed, f"exposure/{q}"))
        exact = Exposure.of(theory.zo_exposure(g, q), g)
        points.append(ExposurePoint(q, Exposure.of(M, g), exact, tau(d, q)))
    fo, isotropic = theory.fo_exposure(g), theory.isotropic_exposure(g)
    return ExposureMeasurement(Exposure.of(fo, g), Exposure.of(isotropic, g), points)


Course = Literal["dimensions", "blocks", "rotated blocks"]
COURSES: tuple[Course, ...] = ("dimensions", "blocks", "rotated blocks")
HALVINGS = 4  # of the dimension and of the block; the exact variance looks at all pairs of blocks
SWEPT_QUERIES = (1, 4, 16)


def measure_sweep(spectrum: Spectrum, d: int, q: int, samples: int, seed: int) -> list[Batch]:
    """Every point of the three courses; ``d`` is the largest dimension and that of the blocks."""
    found = []
    for course, problem, block in _plan(spectrum, d, seed):
        g = quadratics.leaning_gradient(problem, generator_for(seed, f"sweep/gradient/{problem.d}"))
        for queries in sorted({*SWEPT_QUERIES, q}):
            draws = generator_for(seed, f"sweep/{course}/{problem.d}/{block}/{queries}")
            found.append(measure_batch(course, problem, g, queries, block, samples, draws))
    return found


def _plan(spectrum: Spectrum, d: int, seed: int) -> Iterator[tuple[Course, Quadratic, int]]:
    for size in halved(d):
        try:
            problem = quadratics.diagonal(spectrum, size)
        except ValueError:  # K spikes need more than K dimensions
            continue
        yield "dimensions", problem, size
    plain = quadratics.diagonal(spectrum, d)
    turned = quadratics.rotated(spectrum, d, generator_for(seed, "sweep/rotation"))
    for block in halved(d):
        yield "blocks", plain, block
        yield "rotated blocks", turned, block


def halved(size: int) -> list[int]:
    """A size and its halves, small to large, as long as they are whole and at least 2.

    >>> halved(24), halved(256)
    ([3, 6, 12, 24], [16, 32, 64, 128, 256])
    """
    found = [size]
    while len(found) <= HALVINGS and found[-1] % 2 == 0 and found[-1] >= 4:
        found.append(found[-1] // 2)
    return found[::-1]
