"""What one sandbox run is asked to do, and every measurement, each from its own random numbers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from risegrad.common.seeds import generator_for
from riselab.common.settings import Checked, Limits
from riselab.sandbox import panels, trajectories
from riselab.sandbox.informed import InformedMeasurement, measure_informed
from riselab.sandbox.quadratics import DEFAULT_SPECTRUM, Quadratic, Spectrum, diagonal, rotated
from riselab.sandbox.trajectories import EQUAL_PROGRESS

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
STAGES = 7

Tick = Callable[[str], None]
"""Called before each of the ``STAGES`` stages with a few words about it."""


@dataclass(frozen=True)
class Validation:
    """Panels A to D of one curvature."""

    operator: panels.OperatorMeasurement
    gap: panels.GapMeasurement
    deviations: list[panels.Batch]


@dataclass(frozen=True)
class Results:
    """Everything that was measured; figures and the table are made from this alone."""

    settings: SandboxSettings
    plain: Validation
    rotated: Validation
    exposure: panels.ExposureMeasurement
    sweep: list[panels.Batch]
    courses: list[trajectories.Curve]
    equal_progress: list[trajectories.EqualProgress]
    informed: InformedMeasurement


def run(settings: SandboxSettings, tick: Tick = lambda words: None) -> Results:
    """Measure everything that ``settings`` ask for."""
    s, spectrum = settings, Spectrum.parse(settings.spectrum)
    draws = {name: generator_for(s.seed, name) for name in ("rotation", "large rotation", "tasks")}
    tasks = trajectories.make_tasks(spectrum, min(s.d, TRAJECTORY_D), draws["tasks"])
    tick("panels A to D: mean and deviation")
    small, large = diagonal(spectrum, s.d), diagonal(spectrum, s.large_d)
    plain = _validation(s, (small, large), panels.QUERIES, "")
    tick("exposure")
    exposure = panels.measure_exposure(s.d, sorted({*panels.QUERIES, s.q}), s.samples, s.seed)
    tick("signal and deviation")
    sweep = panels.measure_sweep(spectrum, s.large_d, s.q, s.samples // 8, s.seed)
    tick("panels A to D, rotated")
    small = rotated(spectrum, s.d, draws["rotation"])
    large = rotated(spectrum, s.large_d, draws["large rotation"])
    turned = _validation(s, (small, large), panels.ROTATED_QUERIES, "rotated ")
    tick("trajectory: recursions and walks")
    subjects = trajectories.subjects(len(tasks.shift), s.block)
    courses = [trajectories.measure_curve(tasks, one, s.q, s.steps, s.seed) for one in subjects]
    tick("trajectory: equal progress")
    equal = trajectories.measure_equal_progress(tasks, s.q, s.block)
    tick("from blind to informed")
    informed = measure_informed(tasks, s.q, s.steps, s.seed)
    return Results(s, plain, turned, exposure, sweep, courses, equal, informed)


def _validation(
    s: SandboxSettings, problems: tuple[Quadratic, Quadratic],
    queries: tuple[int, ...], purpose: str,
) -> Validation:  # fmt: skip
    small, large = problems
    swept = sorted({*queries, s.q})
    return Validation(
        panels.measure_operator(small, s.q, s.samples, s.seed, f"{purpose}operator"),
        panels.measure_gap(small, s.q, s.samples, s.seed, f"{purpose}gap"),
        panels.measure_deviations(large, s.block, swept, s.samples, s.seed, f"{purpose}deviation"),
    )


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
    s, operator = results.settings, results.plain.operator
    errors, slopes = operator.eigenvalue_errors, operator.slopes
    ratio, error, exact = deviation_ratio(results.plain.deviations, COMPARED_QUERIES)
    eigen = f"relative eigenvalue error at {s.samples:,} samples"
    deviation = f"blockwise / global deviation at q={COMPARED_QUERIES}"
    slope = float(slopes.mean()), float(slopes.std())
    rows = [
        Comparison(eigen, float(errors[0]), float(errors.std()), 1.17e-2),
        Comparison("R^2 of the damage gap", results.plain.gap.r_squared, None, 0.9999, 1.0),
        Comparison(deviation, ratio, error, 0.79, exact),
        Comparison("slope of the operator residual", *slope, None, -0.5),
    ]
    words = f"forgetting over FO's at {EQUAL_PROGRESS:.0%} progress"
    for row in results.equal_progress:
        if row.excess:
            steps, most = row.excess[-1]
            rows.append(Comparison(f"{words}, {steps} steps: {row.subject.name}", 1 + most))
    fo, *others = results.informed.curves
    for curve in others:
        if curve.at_progress is not None and fo.at_progress:
            ours = curve.at_progress / fo.at_progress
            rows.append(Comparison(f"{words}, {s.steps} steps: {curve.name}", ours))
    for curve in others:
        if curve.at_rate and fo.at_rate:
            pairs = zip(curve.at_rate, fo.at_rate, strict=True)
            lost, learned = (mine / plain for mine, plain in pairs)
            at = f"over FO's at FO's rate, {s.steps} steps: {curve.name}"
            rows += [Comparison(f"forgetting {at}", lost), Comparison(f"progress {at}", learned)]
    return rows


def deviation_ratio(deviations: list[panels.Batch], q: int) -> tuple[float, float, float]:
    """Blockwise over global standard deviation at ``q``: measured, standard error, exact."""
    found = [row.deviation for row in deviations if row.q == q and row.kind == "one-draw"]
    wide, narrow = found[0], found[-1]
    ratio = narrow.value / wide.value
    relative = [one.error / one.value for one in (wide, narrow)]
    return ratio, ratio * sum(r**2 for r in relative) ** 0.5, narrow.exact / wide.exact
