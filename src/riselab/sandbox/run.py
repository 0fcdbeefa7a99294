"""What one sandbox run is asked to do, and every measurement, each from its own random numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from risegrad.common.seeds import generator_for
from risegrad.common.settings import Checked, Limits
from risegrad.core.shapers import Sampler
from riselab.sandbox.informed import InformedMeasurement, measure_informed
from riselab.sandbox.panels import (
    LITERAL_QUERIES,
    QUERIES,
    ROTATED_QUERIES,
    Deviation,
    ExposureMeasurement,
    GapMeasurement,
    OperatorMeasurement,
    PanelPoint,
    measure_deviation,
    measure_exposure,
    measure_gap,
    measure_operator,
    measure_sweep,
)
from riselab.sandbox.quadratics import Quadratic, diagonal, even_gradient, rotated
from riselab.sandbox.spectra import DEFAULT_SPECTRUM, Spectrum
from riselab.sandbox.trajectories import (
    EQUAL_PROGRESS,
    Course,
    EqualProgress,
    Tasks,
    make_tasks,
    measure_course,
    measure_equal_progress,
    subjects,
)

# Dense d x d curvature and one batch of q directions must fit in memory with room to spare.
LARGEST = 4096
FEWEST_SAMPLES = 640  # the ladder of sample sizes has 7 rungs; the lowest then holds 10 samples


Dimension = Annotated[int, Limits(at_least=2, at_most=LARGEST)]
SmallCount = Annotated[int, Limits(at_least=1, at_most=LARGEST)]


@dataclass(frozen=True)
class SandboxSettings(Checked):
    """The arguments of ``rise sandbox``; the defaults are the paper's where it gives them.

    >>> SandboxSettings(q=0)
    Traceback (most recent call last):
    ValueError: q must be an integer >= 1 and <= 4096, got 0
    """

    d: Dimension = 64
    """dimension of panels A-C, exposure and the rotated repeat"""
    q: SmallCount = 4
    """random directions per shape"""
    samples: Annotated[int, Limits(at_least=FEWEST_SAMPLES, at_most=10**9)] = 24_000
    """Monte Carlo samples per measured point"""
    seed: Annotated[int, Limits(at_least=0, at_most=2**63 - 1)] = 0
    spectrum: str = DEFAULT_SPECTRUM
    large_d: Dimension = 256
    """dimension of panel D"""
    block: SmallCount = 16
    """block size of panel D; divides ``large_d``"""
    steps: Annotated[int, Limits(at_least=1, at_most=10_000)] = 40
    """steps of the trajectory"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.large_d % self.block:
            raise ValueError(
                f"block must divide large_d={self.large_d} without remainder, got {self.block}"
            )
        curvature = Spectrum.parse(self.spectrum)
        for d in (self.d, self.large_d):
            curvature.values(d)


TRAJECTORY_D = 64  # the recursions cost d^3 per step and learning rate
COMPARED_QUERIES = 2  # the query count at which the paper gives the blockwise ratio
STAGES = 11

Tick = Callable[[str], None]
"""Called before each of the ``STAGES`` stages with a few words about it."""


@dataclass(frozen=True)
class Results:
    """Everything that was measured; figures and the table are made from this alone."""

    settings: SandboxSettings
    operator: OperatorMeasurement
    gap: GapMeasurement
    deviations: list[Deviation]
    exposure: ExposureMeasurement
    sweep: list[PanelPoint]
    rotated_operator: OperatorMeasurement
    rotated_gap: GapMeasurement
    rotated_deviations: list[Deviation]
    tasks: Tasks
    courses: list[Course]
    equal_progress: list[EqualProgress]
    informed: InformedMeasurement


def run(settings: SandboxSettings, tick: Tick = lambda words: None) -> Results:
    """Measure everything that ``settings`` ask for."""
    s, spectrum = settings, Spectrum.parse(settings.spectrum)
    plain = diagonal(spectrum, s.d)
    turned = rotated(spectrum, s.d, generator_for(s.seed, "rotation"))
    tasks = make_tasks(spectrum, min(s.d, TRAJECTORY_D), generator_for(s.seed, "tasks"))
    tick("panels A, B: mean curvature")
    operator = measure_operator(plain, s.q, s.samples, s.seed, "operator")
    tick("panel C: damage gap")
    gap = measure_gap(plain, s.q, s.samples, s.seed, "gap")
    tick("panel D: deviation")
    deviations = _deviations(diagonal(spectrum, s.large_d), s, QUERIES, "deviation")
    tick("exposure")
    exposure = measure_exposure(s.d, sorted({*QUERIES, s.q}), s.samples, s.seed)
    tick("signal and deviation")
    sweep = measure_sweep(spectrum, s.large_d, s.q, s.samples // 8, s.seed)
    tick("rotated: mean curvature")
    rotated_operator = measure_operator(turned, s.q, s.samples, s.seed, "rotated operator")
    tick("rotated: damage gap")
    rotated_gap = measure_gap(turned, s.q, s.samples, s.seed, "rotated gap")
    tick("rotated: deviation")
    large = rotated(spectrum, s.large_d, generator_for(s.seed, "large rotation"))
    rotated_deviations = _deviations(large, s, ROTATED_QUERIES, "rotated deviation")
    tick("trajectory: recursions and walks")
    courses = [
        measure_course(tasks, subject, s.q, s.steps, s.seed)
        for subject in subjects(len(tasks.shift), s.block)
    ]
    tick("trajectory: equal progress")
    equal = measure_equal_progress(tasks, s.q, s.block)
    tick("from blind to informed")
    informed = measure_informed(tasks, s.q, s.steps, s.seed)
    return Results(
        s, operator, gap, deviations, exposure, sweep, rotated_operator, rotated_gap,
        rotated_deviations, tasks, courses, equal, informed,
    )  # fmt: skip


def _deviations(
    problem: Quadratic, s: SandboxSettings, queries: tuple[int, ...], purpose: str
) -> list[Deviation]:
    """Global and blockwise, by one draw at every q and by Algorithm 1 at the small ones."""
    g = even_gradient(problem.d, generator_for(s.seed, f"{purpose}/gradient"))
    swept = sorted({*queries, s.q})
    plan: list[tuple[int, Sampler, int]] = [(q, "one-draw", s.samples) for q in swept]
    plan += [(q, "directions", s.samples // 8) for q in LITERAL_QUERIES]
    found = []
    for block in dict.fromkeys((problem.d, s.block)):
        for q, sampler, samples in plan:
            draws = generator_for(s.seed, f"{purpose}/{block}/{q}/{sampler}")
            found.append(measure_deviation(problem, g, q, block, samples, draws, sampler))
    return found


@dataclass(frozen=True)
class Comparison:
    """One number of ours beside the paper's; ``exact`` is theory where it says one."""

    what: str
    ours: float
    spread: float | None = None
    """standard deviation of ours over repetitions, or its standard error"""
    paper: float | None = None
    exact: float | None = None


def comparisons(results: Results) -> list[Comparison]:
    """What the paper reports of its sandbox, the slope that it describes, and where it ends.

    The last rows are forgetting at equal progress, over FO's: noise has a price that falls with the
    number of steps, and what knows the curvature forgets less.
    """
    samples, operator = results.settings.samples, results.operator
    errors, slopes = operator.eigenvalue_errors, operator.slopes
    ratio, error, exact = deviation_ratio(results.deviations, COMPARED_QUERIES)
    eigen, deviation = "relative eigenvalue error at", "blockwise / global deviation at"
    rows = [
        Comparison(f"{eigen} {samples:,} samples", float(errors[0]), float(errors.std()), 1.17e-2),
        Comparison("R^2 of the damage gap", results.gap.r_squared, None, 0.9999, 1.0),
        Comparison(f"{deviation} q={COMPARED_QUERIES}", ratio, error, 0.79, exact),
        Comparison(
            "slope of the operator residual", float(slopes.mean()), float(slopes.std()), None, -0.5
        ),
    ]
    words = f"forgetting over FO's at {EQUAL_PROGRESS:.0%} progress"
    fo = next(row for row in results.equal_progress if row.subject.rule == "fo")
    for row in results.equal_progress:
        excess = [(n, e) for n, e in zip(row.steps, row.excess, strict=True) if e is not None]
        if row is not fo and excess:
            steps, most = excess[-1]
            rows.append(Comparison(f"{words}, {steps} steps: {row.subject.name}", 1 + most))
    plain, *others = ((course.name, course.at_progress[0]) for course in results.informed.courses)
    for name, found in others:
        if found is not None and plain[1]:
            rows.append(
                Comparison(f"{words}, {results.settings.steps} steps: {name}", found / plain[1])
            )
    return rows


def deviation_ratio(deviations: list[Deviation], q: int) -> tuple[float, float, float]:
    """Blockwise over global standard deviation at ``q``: measured, standard error, exact."""
    found = [d for d in deviations if d.q == q and d.sampler == "one-draw"]
    wide, narrow = found[0], found[-1]
    ratio = narrow.measured / wide.measured
    relative = [d.standard_error / d.measured for d in (wide, narrow)]
    return ratio, ratio * sum(r**2 for r in relative) ** 0.5, narrow.exact / wide.exact
