"""Figure 6: the mean signal beside the one-batch deviation, over dimensions and block sizes.

Lines are exact, markers are measured.
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from risegrad.sandbox.figures.figure_style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILLION,
    label_panels,
    new_figure,
)
from risegrad.sandbox.sandbox_run import Results
from risegrad.sandbox.sweep_panel import COURSES, PanelPoint

COLOURS, MARKERS = (BLUE, VERMILLION, GREEN, PURPLE), "os^D"


def draw_sweep(results: Results) -> Figure:
    """Above, signal and deviation at the run's q; below, their ratio for several q."""
    figure, panels = new_figure(4.8, 2, len(COURSES))
    for place, course in enumerate(COURSES):
        points = [point for point in results.sweep if point.course == course]
        above, below = panels[place], panels[len(COURSES) + place]
        _both(above, [point for point in points if point.q == results.settings.q])
        _ratios(below, points)
        for panel in (above, below):
            name = "dimension $d$, one block" if course == "dimensions" else "block size"
            _size_axis(panel, [point.size for point in points], name)
    panels[0].set_ylabel(f"damage at $q={results.settings.q}$")
    panels[len(COURSES)].set_ylabel("signal / deviation")
    panels[0].legend(loc="best", fontsize=7)
    panels[len(COURSES)].legend(loc="best", fontsize=7)
    large = results.settings.large_d
    titles = ("Dimensions", f"Blocks of $d={large}$", "Blocks, rotated")
    label_panels(panels, (*titles, *(f"{title}, ratio" for title in titles)))
    return figure


def _both(panel: Axes, points: Sequence[PanelPoint]) -> None:
    for part, name, colour, marker in (
        ("signal", "signal $G_q$", BLUE, "o"),
        ("deviation", "deviation", ORANGE, "s"),
    ):
        x = [point.size for point in points]
        errors = [2 * getattr(p, f"{part}_error") for p in points]
        panel.plot(x, [getattr(p, f"{part}_exact") for p in points], color=colour, label=name)
        panel.errorbar(
            x, [getattr(p, part) for p in points], errors, fmt=marker, color=colour, markersize=4,
            markerfacecolor="white", elinewidth=0.8,
        )  # fmt: skip
    panel.set_ylim(bottom=0)


def _ratios(panel: Axes, points: Sequence[PanelPoint]) -> None:
    queries = sorted({point.q for point in points})
    for q, colour, marker in zip(queries, COLOURS, MARKERS, strict=False):
        mine = [point for point in points if point.q == q]
        x = [point.size for point in mine]
        panel.plot(x, [point.ratio_exact for point in mine], color=colour)
        panel.plot(x, [point.ratio for point in mine], marker, color=colour, markersize=4,
                   markerfacecolor="white", label=f"$q={q}$")  # fmt: skip
    panel.axhline(1, color=BLACK, linewidth=0.7, linestyle=":")
    panel.set_ylim(bottom=0)


def _size_axis(panel: Axes, sizes: Sequence[int], name: str) -> None:
    panel.set_xscale("log")
    ticks = sorted(set(sizes))
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel(name)
