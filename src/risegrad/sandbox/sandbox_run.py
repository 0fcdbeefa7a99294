"""One sandbox run: every measurement, one after the other, each from its own random numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from risegrad.common.seeds import generator_for
from risegrad.core.rise_rule import Sampler
from risegrad.sandbox.contraction_panels import OperatorMeasurement, measure_operator
from risegrad.sandbox.damage_panels import (
    LITERAL_QUERIES,
    QUERIES,
    ROTATED_QUERIES,
    Deviation,
    GapMeasurement,
    measure_deviation,
    measure_gap,
)
from risegrad.sandbox.exposure_panel import ExposureMeasurement, measure_exposure
from risegrad.sandbox.informed_panel import InformedMeasurement, measure_informed
from risegrad.sandbox.quadratic_frontier import (
    Course,
    EqualProgress,
    measure_course,
    measure_equal_progress,
    subjects,
)
from risegrad.sandbox.quadratics import Quadratic, diagonal, even_gradient, rotated
from risegrad.sandbox.sandbox_settings import SandboxSettings
from risegrad.sandbox.side_checks import (
    Speed,
    closed_form_errors,
    measure_speed,
    ratio_by_gradient,
)
from risegrad.sandbox.spectra import Spectrum
from risegrad.sandbox.sweep_panel import PanelPoint, measure_sweep
from risegrad.sandbox.trajectories import Tasks, make_tasks

TRAJECTORY_D = 64  # the recursions cost d^3 per step and learning rate
SPEED_QUERIES = (1, 4, 16, 64)
COMPARED_QUERIES = 2  # the query count at which the paper gives the blockwise ratio
STAGES = 13

Tick = Callable[[str], None]
"""Called before each of the ``STAGES`` stages with a few words about it."""


@dataclass(frozen=True)
class Results:
    """Everything that was measured; figures and record are made from this alone."""

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
    closed_forms: dict[str, float]
    ratio_by_gradient: dict[str, float]
    """exact blockwise / global deviation at the paper's query count"""
    speed: list[Speed]


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
    wide = diagonal(spectrum, s.large_d)
    deviations = _deviations(wide, s, QUERIES, "deviation")
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
    courses = _courses(tasks, s)
    tick("trajectory: equal progress")
    equal = measure_equal_progress(tasks, s.q, s.block)
    tick("from blind to informed")
    informed = measure_informed(tasks, s.q, s.steps, s.seed)
    tick("closed forms")
    closed_forms = closed_form_errors(turned, s.q, s.block, tasks)
    tick("speed of the samplers")
    return Results(
        settings=s,
        operator=operator,
        gap=gap,
        deviations=deviations,
        exposure=exposure,
        sweep=sweep,
        rotated_operator=rotated_operator,
        rotated_gap=rotated_gap,
        rotated_deviations=rotated_deviations,
        tasks=tasks,
        courses=courses,
        equal_progress=equal,
        informed=informed,
        closed_forms=closed_forms,
        ratio_by_gradient=ratio_by_gradient(wide, COMPARED_QUERIES, s.block, s.seed),
        speed=[measure_speed(s.large_d, q, s.seed) for q in SPEED_QUERIES],
    )


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


def _courses(tasks: Tasks, s: SandboxSettings) -> list[Course]:
    """One trajectory per rule, and one of RISE in blocks."""
    return [
        measure_course(tasks, subject, s.q, s.steps, s.seed)
        for subject in subjects(len(tasks.shift), s.block)
    ]
