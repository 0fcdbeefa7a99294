"""All figures of one run, drawn and written."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from risegrad.sandbox.figures.curvature_figure import draw_curvature
from risegrad.sandbox.figures.exposure_figure import draw_exposure
from risegrad.sandbox.figures.figure_style import save, style
from risegrad.sandbox.figures.informed_figure import draw_informed
from risegrad.sandbox.figures.sweep_figure import draw_sweep
from risegrad.sandbox.figures.trajectory_figure import draw_trajectory
from risegrad.sandbox.figures.validation_figures import draw_rotated, draw_validation
from risegrad.sandbox.sandbox_run import Results

FIGURES: dict[str, Callable[[Results], Figure]] = {
    "figure-1-curvature": lambda results: draw_curvature(),
    "figure-2-validation": draw_validation,
    "figure-3-exposure": lambda results: draw_exposure(results.exposure),
    "figure-4-rotated": draw_rotated,
    "figure-5-trajectory": draw_trajectory,
    "figure-6-sweep": draw_sweep,
    "figure-7-informed": lambda results: draw_informed(results.informed, results.settings.steps),
}


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Write every figure as PNG and SVG into ``folder``; the paths, in order."""
    written = []
    with style():
        for name, draw in FIGURES.items():
            written += save(draw(results), folder, name)
    return written
