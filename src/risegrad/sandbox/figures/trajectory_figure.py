"""Figure 5: many steps. At one learning rate; over learning rates; at equal progress over steps."""

import torch
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
    new_figure,
)
from risegrad.sandbox.quadratic_frontier import (
    EQUAL_PROGRESS,
    Course,
    EqualProgress,
    Subject,
    efficient_part,
)
from risegrad.sandbox.sandbox_run import Results
from risegrad.sandbox.trajectories import RuleName, Tasks

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
