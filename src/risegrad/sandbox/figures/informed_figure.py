"""Figure 7: from blind to informed. Damage of one step at equal progress; frontier of many."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from risegrad.sandbox.figures.figure_style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILLION,
    label_panels,
    log_axis_labels,
    new_figure,
)
from risegrad.sandbox.informed_panel import InformedCourse, InformedMeasurement

# Colour, line style and width, in the order of the courses; FO and RISE look as in figure 5.
LOOKS = (
    (BLACK, "-", 2.2),
    (BLUE, "-", 2.2),
    (GREEN, "-", 2.2),
    (ORANGE, "--", 1.6),
    (PURPLE, "-.", 1.6),
    (VERMILLION, ":", 1.8),
)


# Where each name stands: in A beside the left end of its line (points above it), in B at the given
# place (parts of the panel) with a thin line to where its curve has that forgetting.
ABOVE = (-10, 4, -10, 4, 4, 4)
PLACES = ((0.6, 0.95), (0.5, 0.68), (0.99, 0.12), (0.99, 0.19), (0.6, 0.87), (0.5, 0.57))
LEVELS = (0.94, 0.65, 0.2, 0.31, 0.87, 0.55)


def label(course: InformedCourse) -> str:
    """What the legend calls a rule."""
    names = {
        "fo": "FO",
        "rise": "RISE",
        "informed": "informed, exact",
        "informed, wrong": "informed, wrong curvature",
        "informed rise": "informed RISE",
    }
    return names.get(course.name, course.name)


def draw_informed(m: InformedMeasurement, steps: int) -> Figure:
    """Draw Figure 7."""
    figure, panels = new_figure(3.3, 1, 2)
    _one_step(panels[0], m)
    _frontier(panels[1], m)
    titles = "One step: damage at equal progress", f"Frontier over learning rates, {steps} steps"
    label_panels(panels, titles)
    return figure


def _one_step(panel: Axes, m: InformedMeasurement) -> None:
    for course, (colour, line, width), above in zip(m.courses, LOOKS, ABOVE, strict=True):
        panel.plot(m.dampings, course.damage, line, color=colour, linewidth=width)
        panel.annotate(label(course), (m.dampings[0], course.damage[0]), (2, above), color=colour,
                       textcoords="offset points", fontsize=7.5)  # fmt: skip
    panel.set(xscale="log", yscale="log")
    values = [value for course in m.courses for value in course.damage]
    panel.set_ylim(min(values) / 1.4, max(values) * 1.4)  # room for the names at both ends
    panel.minorticks_off()
    log_axis_labels(panel)
    panel.set_xlabel("damping $\\rho$ (1: the average curvature)")
    panel.set_ylabel("mean damage over FO's")


def _frontier(panel: Axes, m: InformedMeasurement) -> None:
    panel.plot(m.least.progress, m.least.forgetting, color=GREY, linewidth=4, alpha=0.35)
    _name(panel, m.least.progress, m.least.forgetting, "least possible", GREY, 0.1, (0.99, 0.05))
    for course, (colour, line, width), level, place in zip(
        m.courses, LOOKS, LEVELS, PLACES, strict=True
    ):
        panel.plot(course.progress, course.forgetting, line, color=colour, linewidth=width)
        _name(panel, course.progress, course.forgetting, label(course), colour, level, place)
    panel.set(xlim=(0.27, 1.02), ylim=(-0.02, 1.02))  # below, all curves lie near zero
    panel.set_xlabel("part of the new-task loss removed")
    panel.set_ylabel("forgetting (1: at the new optimum)")
    panel.text(0.04, 0.48, f"$\\rho={m.frontier_damping:g}$\nlower right is better",
               transform=panel.transAxes, va="top", fontsize=7.5)  # fmt: skip


def _name(
    panel: Axes,
    progress: list[float],
    forgetting: list[float],
    name: str,
    colour: str,
    level: float,
    place: tuple[float, float],
) -> None:
    """Write the name at ``place`` and lead to the curve where its forgetting is ``level``."""
    nearest = min(range(len(forgetting)), key=lambda i: abs(forgetting[i] - level))
    side = float(place[0] < 0.9)  # names at the right edge are left at their beginning
    leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (side, 0.5)}
    panel.annotate(name, (progress[nearest], forgetting[nearest]), place, color=colour,
                   textcoords="axes fraction", ha="right", va="center", fontsize=7.5,
                   arrowprops=leader)  # fmt: skip
