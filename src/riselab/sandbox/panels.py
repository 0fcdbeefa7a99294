"""What the figures of one step show: measured with the algorithm, beside the closed forms.

Sample averages over 2^k groups of one run give the residual at several sample sizes without drawing
anything twice. Blocks are laid on curvature along the axes, where each holds neighbours of the
spectrum, and on the same spectrum rotated, where each holds a bit of every direction.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from risegrad.core.shapers import Sampler
from risegrad.theory.blockwise import blockwise_moments
from risegrad.theory.calibration import tau
from risegrad.theory.conditions import quadratic, trace
from risegrad.theory.deviation import damage_moments
from risegrad.theory.exposure import (
    blind_minimax_risk,
    fo_exposure,
    isotropic_exposure,
    worst_case_risk,
    zo_exposure,
)
from risegrad.theory.identities import damage_gap, expected_curvature, spectral_equalization
from riselab.sandbox.quadratics import (
    Quadratic,
    damages,
    diagonal,
    leaning_gradient,
    normals,
    operator_sum,
    rotated,
    second_moment,
)
from riselab.sandbox.spectra import Spectrum

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
    expected = expected_curvature(problem.H, q)
    predicted = spectral_equalization(problem.eigenvalues, q)
    runs = [
        _ladder(problem.H, expected, q, samples, generator_for(seed, f"{purpose}/{repeat}"))
        for repeat in range(REPEATS)
    ]
    averages = torch.stack([average for average, _ in runs])
    in_basis = (problem.basis * (averages @ problem.basis)).sum(-2)
    # The spectrum of a symmetric matrix is sorted; the contraction keeps the order of H's.
    ordered = torch.linalg.eigvalsh((averages + averages.mT) / 2).flip(-1)
    return OperatorMeasurement(
        eigenvalues=problem.eigenvalues,
        predicted=predicted,
        measured=in_basis[0],
        average=averages[0],
        expected=expected,
        eigenvalue_errors=(ordered - predicted).norm(dim=-1) / predicted.norm(),
        sizes=_sizes(samples),
        residuals=torch.tensor([residuals for _, residuals in runs], dtype=torch.float64),
    )


def _sizes(samples: int) -> list[int]:
    """The ladder; its top rung is all samples, also those that fill no whole group."""
    base = samples // 2 ** (RUNGS - 1)
    return [base * 2**rung for rung in range(RUNGS - 1)] + [samples]


def _ladder(
    H: Tensor, expected: Tensor, q: int, samples: int, draws: torch.Generator
) -> tuple[Tensor, list[float]]:
    """The average over all samples, and the residual of group averages at each rung.

    Only one running sum per rung is held: memory does not grow with the number of groups.
    """
    sizes = _sizes(samples)
    total = torch.zeros_like(H)
    open_sums = [torch.zeros_like(H) for _ in sizes[:-1]]
    squares: list[list[float]] = [[] for _ in sizes[:-1]]
    for group in range(1, 2 ** (RUNGS - 1) + 1):
        part = operator_sum(H, q, sizes[0], draws)
        total += part
        for rung, size in enumerate(sizes[:-1]):
            open_sums[rung] += part
            if group % 2**rung == 0:
                squares[rung].append(_residual(open_sums[rung] / size, expected) ** 2)
                open_sums[rung].zero_()
    rest = samples - sizes[0] * 2 ** (RUNGS - 1)
    if rest:
        total += operator_sum(H, q, rest, draws)
    average = total / samples
    below = [math.sqrt(sum(group) / len(group)) for group in squares]
    return average, [*below, _residual(average, expected)]


def _residual(average: Tensor, expected: Tensor) -> float:
    return float((average - expected).norm() / expected.norm())


BELOW, ABOVE = 7, 14  # gradients with below-average and with above-average curvature
QUERIES = (1, 2, 4, 8, 16, 32, 64)
ROTATED_QUERIES = (1, 2, 4, 16, 64)  # enough to see the same curve again
LITERAL_QUERIES = (1, 2, 4, 8)  # Algorithm 1 beside the one-draw points where it is affordable


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

    @property
    def worst_error(self) -> float:
        """The largest error in standard errors."""
        return float(((self.measured - self.predicted) / self.standard_error).abs().max())


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
    gradients = turning_gradients(problem)
    found = []
    for index, g in enumerate(gradients):
        draws = generator_for(seed, f"{purpose}/{index}")
        mean = damages(problem.H, g, q, samples, draws, sampler="directions").mean()
        found.append(quadratic(problem.H, g) / 2 - mean)
    variance = damage_moments(problem.H, gradients, q).variance
    return GapMeasurement(
        excess=quadratic(problem.H, gradients) - problem.eigenvalues.mean(),
        predicted=damage_gap(problem.H, gradients, q),
        measured=torch.stack(found),
        standard_error=(variance / samples).sqrt(),
    )


@dataclass(frozen=True)
class Deviation:
    """Standard deviation of the one-batch damage: measured, its standard error, and exact."""

    q: int
    block: int
    """block size; the whole dimension for global shaping"""
    sampler: Sampler
    samples: int
    measured: float
    standard_error: float
    exact: float


def measure_deviation(
    problem: Quadratic,
    g: Tensor,
    q: int,
    block: int,
    samples: int,
    draws: torch.Generator,
    sampler: Sampler = "one-draw",
) -> Deviation:
    """One point of panel D."""
    found = damages(problem.H, g, q, samples, draws, block=block, sampler=sampler)
    std, error = std_with_error(found)
    exact = float(exact_moments(problem, g, q, block)[1]) ** 0.5
    return Deviation(q, block, sampler, samples, std, error, exact)


def exact_moments(problem: Quadratic, g: Tensor, q: int, block: int) -> tuple[Tensor, Tensor]:
    """Mean and variance of the damage by the closed forms, global when the block is everything."""
    if block == problem.d:
        return damage_moments(problem.H, g, q)
    return blockwise_moments(problem.H, g, [block] * (problem.d // block), q)


def std_with_error(values: Tensor) -> tuple[float, float]:
    """Standard deviation and its standard error, ``sqrt((m4 - s^4) / n) / (2 s)``."""
    centered = values - values.mean()
    variance, fourth = centered.square().mean(), centered.pow(4).mean()
    error = ((fourth - variance**2) / len(values)).sqrt() / (2 * variance.sqrt())
    return float(values.std()), float(error)


AVERAGE_CURVATURE = 1.0  # the sandbox's spectra average one


@dataclass(frozen=True)
class Exposure:
    """One second moment: its share along ``g``, across it (per direction), and its blind risk."""

    along: float
    across: float
    risk: float


@dataclass(frozen=True)
class ExposurePoint:
    """Measured and exact exposure of norm-matched ZO at one query count."""

    q: int
    measured: Exposure
    exact: Exposure
    closed: float
    """measured fraction of the way from FO's risk to the optimum"""
    tau: float
    """its exact value"""


@dataclass(frozen=True)
class ExposureMeasurement:
    """The exposures of all rules in one dimension."""

    d: int
    fo: Exposure
    isotropic: Exposure
    zo: list[ExposurePoint]


def describe(M: Tensor, g: Tensor) -> Exposure:
    """Read one second moment, with ``|g| = 1``."""
    along = quadratic(M, g)
    across = (trace(M) - along) / (len(g) - 1)
    return Exposure(float(along), float(across), float(worst_case_risk(M, AVERAGE_CURVATURE)))


def measure_exposure(
    d: int, queries: Sequence[int], samples: int, seed: int
) -> ExposureMeasurement:
    """Exposure over query counts; only the law of ``P g`` enters, so one draw per sample."""
    g = torch.nn.functional.normalize(normals(generator_for(seed, "exposure/gradient"), d), dim=0)
    fo = describe(fo_exposure(g), g)
    best = float(blind_minimax_risk(g, AVERAGE_CURVATURE))
    points = []
    for q in queries:
        measured = describe(second_moment(g, q, samples, generator_for(seed, f"exposure/{q}")), g)
        closed = (fo.risk - measured.risk) / (fo.risk - best)
        exact = describe(zo_exposure(g, q), g)
        points.append(ExposurePoint(q, measured, exact, closed, tau(d, q)))
    return ExposureMeasurement(d, fo, describe(isotropic_exposure(g), g), points)


Course = Literal["dimensions", "blocks", "rotated blocks"]
COURSES: tuple[Course, ...] = ("dimensions", "blocks", "rotated blocks")
HALVINGS = 4  # of the dimension and of the block; the exact variance looks at all pairs of blocks
SWEPT_QUERIES = (1, 4, 16)


@dataclass(frozen=True)
class PanelPoint:
    """Signal and deviation of one setting: measured, their standard errors, and exact."""

    course: Course
    d: int
    block: int
    q: int
    samples: int
    signal: float
    signal_error: float
    signal_exact: float
    deviation: float
    deviation_error: float
    deviation_exact: float

    @property
    def size(self) -> int:
        """What the course goes over."""
        return self.d if self.course == "dimensions" else self.block

    @property
    def ratio(self) -> float:
        """Measured signal over deviation."""
        return self.signal / self.deviation

    @property
    def ratio_exact(self) -> float:
        """Signal over deviation, both exact."""
        return self.signal_exact / self.deviation_exact


def measure_sweep(spectrum: Spectrum, d: int, q: int, samples: int, seed: int) -> list[PanelPoint]:
    """Every point of the three courses; ``d`` is the largest dimension and that of the blocks."""
    found = []
    for course, problem, block in _plan(spectrum, d, seed):
        g = leaning_gradient(problem, generator_for(seed, f"sweep/gradient/{problem.d}"))
        for queries in sorted({*SWEPT_QUERIES, q}):
            draws = generator_for(seed, f"sweep/{course}/{problem.d}/{block}/{queries}")
            found.append(measure_point(course, problem, g, queries, block, samples, draws))
    return found


def measure_point(
    course: Course,
    problem: Quadratic,
    g: Tensor,
    q: int,
    block: int,
    samples: int,
    draws: torch.Generator,
) -> PanelPoint:
    """One setting; only the law of the shaped gradient enters, so one draw per sample."""
    fo = float(quadratic(problem.H, g)) / 2
    values = damages(problem.H, g, q, samples, draws, block=block)
    deviation, error = std_with_error(values)
    mean, variance = exact_moments(problem, g, q, block)
    return PanelPoint(
        course=course,
        d=problem.d,
        block=block,
        q=q,
        samples=samples,
        signal=fo - float(values.mean()),
        signal_error=deviation / samples**0.5,
        signal_exact=fo - float(mean),
        deviation=deviation,
        deviation_error=error,
        deviation_exact=float(variance) ** 0.5,
    )


def _plan(spectrum: Spectrum, d: int, seed: int) -> Iterator[tuple[Course, Quadratic, int]]:
    for size in halved(d):
        if spectrum.fits(size):
            yield "dimensions", diagonal(spectrum, size), size
    plain, turned = (
        diagonal(spectrum, d),
        rotated(spectrum, d, generator_for(seed, "sweep/rotation")),
    )
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
