"""All seven figures: those of many steps, 5 and 7, here; and what writes them."""

from collections.abc import Callable
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from riselab.sandbox.figure_style import (
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
    save,
    style,
)
from riselab.sandbox.informed import InformedCourse, InformedMeasurement
from riselab.sandbox.one_step_figures import (
    draw_curvature,
    draw_exposure,
    draw_rotated,
    draw_sweep,
    draw_validation,
)
from riselab.sandbox.run import Results
from riselab.sandbox.trajectories import (
    EQUAL_PROGRESS,
    Course,
    EqualProgress,
    RuleName,
    Subject,
    Tasks,
    efficient_part,
)

LABELS: dict[RuleName, str] = {
    "fo": "FO",
    "scaled-fo": "scaled FO",
    "rise": "RISE",
    "covariance-noise": "covariance noise",
    "raw-zo": "raw ZO",
}
# Colour, line style, marker, line width; rules that share a curve are drawn wide under narrow.
LOOKS: dict[RuleName, tuple[str, str, str, float]] = {
    "fo": (BLACK, "-", "o", 2.6),
    "scaled-fo": (ORANGE, "--", "^", 1.3),
    "rise": (BLUE, "-", "s", 2.6),
    "covariance-noise": (PURPLE, "--", "D", 1.3),
    "raw-zo": (GREEN, ":", "v", 1.6),
}
BLOCK_LOOK = (VERMILLION, "-.", "P", 1.4)


def label(subject: Subject) -> str:
    """What the legend calls a rule and its blocks."""
    name = LABELS[subject.rule]
    return name if subject.block is None else f"{name}, blocks of {subject.block}"


def look(subject: Subject) -> tuple[str, str, str, float]:
    """Colour, line, marker and width of a rule."""
    return LOOKS[subject.rule] if subject.block is None else BLOCK_LOOK


def draw_trajectory(results: Results) -> Figure:
    """Draw Figure 5."""
    figure, panels = new_figure(5.9, 2, 2)
    _over_steps(panels[0], results.tasks, results.courses, "forgetting")
    _over_steps(panels[1], results.tasks, results.courses, "progress")
    _frontier(panels[2], results.tasks, results.courses)
    _equal_progress(panels[3], results.equal_progress)
    titles = (
        "Forgetting at one learning rate",
        "Progress at the same learning rate",
        f"Frontier over learning rates, {results.settings.steps} steps",
        f"Price of the noise at {EQUAL_PROGRESS:.0%} progress",
    )
    label_panels(panels, titles)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


def _over_steps(panel: Axes, tasks: Tasks, courses: list[Course], what: str) -> None:
    for course in courses:
        colour, line, marker, width = look(course.subject)
        forgetting, progress = course.path.relative(tasks)
        walks = course.walks
        if what == "forgetting":
            exact, simulated = forgetting, walks.forgetting.mean(1) / tasks.full_forgetting
        else:
            exact, simulated = progress, 1 - walks.loss.mean(1) / tasks.start_loss
        panel.plot(exact[:, 0], linestyle=line, color=colour, linewidth=width,
                   label=label(course.subject))  # fmt: skip
        at = torch.arange(0, len(simulated), max(1, len(simulated) // 8))
        size = 5.5 if course.subject.rule == "rise" else 3.5  # seen around covariance noise's
        panel.plot(at, simulated[at], marker, color=colour, markersize=size,
                   markerfacecolor="white")  # fmt: skip
    panel.set_xlabel("step (lines exact, markers simulated)")
    units = {
        "forgetting": "forgetting (1: at the new optimum)",
        "progress": "part of the new-task loss removed",
    }
    panel.set_ylabel(units[what])


def _frontier(panel: Axes, tasks: Tasks, courses: list[Course]) -> None:
    for course in courses:
        colour, line, marker, width = look(course.subject)
        forgetting, progress = (values[-1] for values in course.sweep.relative(tasks))
        # Up to the most progress, and on to the marker where that lies beyond.
        best = efficient_part(tasks, course.sweep)[0][-1]
        seen = int((course.sweep.rates <= max(best, 1.1 * course.path.rates[0])).sum())
        panel.plot(
            progress[:seen], forgetting[:seen], linestyle=line, color=colour, linewidth=width
        )
        at_forgetting, at_progress = course.path.relative(tasks)
        size = 8 if course.subject.rule == "rise" else 5
        panel.plot(at_progress[-1], at_forgetting[-1], marker, color=colour, markersize=size,
                   markerfacecolor="white", markeredgewidth=1.3)  # fmt: skip
    panel.set_xlabel("part of the new-task loss removed")
    panel.set_ylabel("forgetting (1: at the new optimum)")
    panel.text(0.04, 0.93, "markers: the learning rate of A, B\nlower right is better",
               transform=panel.transAxes, va="top", fontsize=7.5)  # fmt: skip


def _equal_progress(panel: Axes, rows: list[EqualProgress]) -> None:
    drawn = [row for row in rows if row.subject.rule != "fo"]
    for row in drawn:
        colour, line, marker, _ = look(row.subject)
        pairs = [(n, e) for n, e in zip(row.steps, row.excess, strict=True) if e is not None]
        panel.plot(*zip(*pairs, strict=True), linestyle=line, marker=marker, color=colour,
                   markerfacecolor="white", label=label(row.subject))  # fmt: skip
        last_steps, last = pairs[-1]
        guide = [last * last_steps / n for n in row.steps]
        panel.plot(row.steps, guide, color=GREY, linewidth=0.7, linestyle=":", zorder=1,
                   label="one over steps" if row is drawn[-1] else None)  # fmt: skip
    panel.set(xscale="log", yscale="log")
    steps = rows[0].steps
    panel.set_xticks(steps, [str(n) for n in steps])
    panel.minorticks_off()
    panel.set_xlabel("steps")
    panel.set_ylabel("relative excess forgetting over FO")
    panel.legend(loc="lower left")


# Colour, line style and width, in the order of the courses; FO and RISE look as in figure 5.
INFORMED_LOOKS = (
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


def _rule_name(course: InformedCourse) -> str:
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
    _informed_frontier(panels[1], m)
    titles = "One step: damage at equal progress", f"Frontier over learning rates, {steps} steps"
    label_panels(panels, titles)
    return figure


def _one_step(panel: Axes, m: InformedMeasurement) -> None:
    for course, (colour, line, width), above in zip(m.courses, INFORMED_LOOKS, ABOVE, strict=True):
        panel.plot(m.dampings, course.damage, line, color=colour, linewidth=width)
        start = m.dampings[0], course.damage[0]
        panel.annotate(_rule_name(course), start, (2, above), color=colour,
                       textcoords="offset points", fontsize=7.5)  # fmt: skip
    panel.set(xscale="log", yscale="log")
    values = [value for course in m.courses for value in course.damage]
    panel.set_ylim(min(values) / 1.4, max(values) * 1.4)  # room for the names at both ends
    panel.minorticks_off()
    log_axis_labels(panel)
    panel.set_xlabel("damping $\\rho$ (1: the average curvature)")
    panel.set_ylabel("mean damage over FO's")


def _informed_frontier(panel: Axes, m: InformedMeasurement) -> None:
    panel.plot(m.least.progress, m.least.forgetting, color=GREY, linewidth=4, alpha=0.35)
    _name(panel, m.least.progress, m.least.forgetting, "least possible", GREY, 0.1, (0.99, 0.05))
    for course, (colour, line, width), level, place in zip(
        m.courses, INFORMED_LOOKS, LEVELS, PLACES, strict=True
    ):
        panel.plot(course.progress, course.forgetting, line, color=colour, linewidth=width)
        _name(panel, course.progress, course.forgetting, _rule_name(course), colour, level, place)
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
