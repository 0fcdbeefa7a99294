"""All seven figures: those of many steps, 5 and 7, here; and what writes them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from riselab.sandbox import figure_style as kit
from riselab.sandbox import one_step_figures as one_step
from riselab.sandbox import trajectories
from riselab.sandbox.informed import DAMPINGS, FRONTIER_DAMPING, InformedMeasurement
from riselab.sandbox.run import Results
from riselab.sandbox.trajectories import EQUAL_PROGRESS, EqualProgress, Subject


class Look(NamedTuple):
    """How a rule is drawn; rules that share a curve are drawn wide under narrow."""

    name: str
    colour: str
    line: str
    marker: str
    width: float


LOOKS = {
    "fo": Look("FO", kit.BLACK, "-", "o", 2.6),
    "scaled-fo": Look("scaled FO", kit.ORANGE, "--", "^", 1.3),
    "rise": Look("RISE", kit.BLUE, "-", "s", 2.6),
    "covariance-noise": Look("covariance noise", kit.PURPLE, "--", "D", 1.3),
    "raw-zo": Look("raw ZO", kit.GREEN, ":", "v", 1.6),
}


def look(subject: Subject) -> Look:
    """What a figure calls a rule and its blocks, and how it draws them."""
    if subject.block is None:
        return LOOKS[subject.rule]
    name = f"{LOOKS[subject.rule].name}, blocks of {subject.block}"
    return Look(name, kit.VERMILLION, "-.", "P", 1.4)


FORGETTING = "forgetting (1: at the new optimum)"
LEARNED = "part of the new-task loss removed"


def draw_trajectory(results: Results) -> Figure:
    """Draw Figure 5."""
    figure, panels = kit.new_figure(5.9, 2, 2)
    for curve in results.courses:
        how, at = look(curve.subject), (curve.forgetting, curve.progress)
        rise = curve.subject.rule == "rise"  # its markers are seen around covariance noise's
        for panel, exact, simulated in zip(panels[:2], at, curve.simulated, strict=True):
            _over_steps(panel, exact, simulated, how, 5.5 if rise else 3.5)
        forgetting, progress = curve.sweep
        panels[2].plot(progress, forgetting, linestyle=how.line, color=how.colour,
                       linewidth=how.width)  # fmt: skip
        ends = curve.progress[-1], curve.forgetting[-1]
        kit.markers(panels[2], *ends, how.marker, how.colour, 8 if rise else 5, markeredgewidth=1.3)
    panels[0].set_ylabel(FORGETTING)
    panels[1].set_ylabel(LEARNED)
    panels[2].set(xlabel=LEARNED, ylabel=FORGETTING)
    panels[2].text(0.04, 0.93, "markers: the learning rate of A, B\nlower right is better",
                   transform=panels[2].transAxes, va="top", fontsize=7.5)  # fmt: skip
    _equal_progress(panels[3], results.equal_progress)
    kit.label_panels(panels, (
        "Forgetting at one learning rate",
        "Progress at the same learning rate",
        f"Frontier over learning rates, {results.settings.steps} steps",
        f"Price of the noise at {EQUAL_PROGRESS:.0%} progress",
    ))  # fmt: skip
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=3)
    return figure


def _over_steps(panel: Axes, exact: Tensor, simulated: Tensor, how: Look, size: float) -> None:
    panel.plot(exact, linestyle=how.line, color=how.colour, linewidth=how.width, label=how.name)
    at = torch.arange(0, len(simulated), max(1, len(simulated) // 8))
    kit.markers(panel, at, simulated[at], how.marker, how.colour, size)
    panel.set_xlabel("step (lines exact, markers simulated)")


def _equal_progress(panel: Axes, rows: Sequence[EqualProgress]) -> None:
    ladder = trajectories.STEP_LADDER
    for row in rows:
        how, (steps, excess) = look(row.subject), zip(*row.excess, strict=True)
        panel.plot(steps, excess, linestyle=how.line, marker=how.marker, color=how.colour,
                   markerfacecolor="white", label=how.name)  # fmt: skip
        guide = [excess[-1] * steps[-1] / n for n in ladder]
        panel.plot(ladder, guide, color=kit.GREY, linewidth=0.7, linestyle=":", zorder=1,
                   label="one over steps" if row is rows[-1] else None)  # fmt: skip
    panel.set_yscale("log")
    kit.log_axis(panel, ladder, "steps")
    panel.set_ylabel("relative excess forgetting over FO")
    panel.legend(loc="lower left")


class Told(NamedTuple):
    """How figure 7 draws a rule: its name is at the left end of its line in A (kit.points
    above it), and in B at a place (parts of the panel), led to where its forgetting is ``level``.
    """

    name: str
    colour: str
    line: str
    width: float
    above: int
    place: tuple[float, float]
    level: float


TOLD = (
    Told("FO", kit.BLACK, "-", 2.2, -10, (0.6, 0.95), 0.94),
    Told("RISE", kit.BLUE, "-", 2.2, 4, (0.5, 0.68), 0.65),
    Told("informed, exact", kit.GREEN, "-", 2.2, -10, (0.99, 0.12), 0.2),
    Told("informed, top", kit.ORANGE, "--", 1.6, 4, (0.99, 0.19), 0.31),
    Told("informed, wrong curvature", kit.PURPLE, "-.", 1.6, 4, (0.6, 0.87), 0.87),
    Told("informed RISE", kit.VERMILLION, ":", 1.8, 4, (0.5, 0.57), 0.55),
)


def draw_informed(m: InformedMeasurement, steps: int) -> Figure:
    """Draw Figure 7."""
    figure, (one, many) = kit.new_figure(3.3, 1, 2)
    *curves, matched = m.curves
    many.plot(m.least[1], m.least[0], color=kit.GREY, linewidth=4, alpha=0.35)
    _lead(many, m.least, "least possible", kit.GREY, 0.1, (0.99, 0.05))
    for curve, how in zip(curves, TOLD, strict=True):
        name = curve.name if how.name == "informed, top" else how.name
        one.plot(DAMPINGS, curve.damage, how.line, color=how.colour, linewidth=how.width)
        kit.beside(one, name, (DAMPINGS[0], curve.damage[0]), (2, how.above), how.colour)
        drawn = curve.forgetting, curve.progress
        many.plot(curve.progress, curve.forgetting, how.line, color=how.colour, linewidth=how.width)
        _lead(many, drawn, name, how.colour, how.level, how.place)
    many.plot(matched.progress, matched.forgetting, "--", color=kit.SKY, linewidth=1.6)
    drawn = matched.forgetting, matched.progress
    _lead(many, drawn, "informed, matched", kit.SKY, 0.77, (0.5, 0.78))
    for curve, colour in ((curves[0], kit.BLACK), (matched, kit.SKY)):
        if curve.at_rate is not None:
            kit.markers(many, *curve.at_rate[::-1], "o", colour, 5, markeredgewidth=1.3)
    damages = [value for curve in curves for value in curve.damage]
    # Room for the names at both ends.
    one.set(xscale="log", yscale="log", ylim=(min(damages) / 1.4, max(damages) * 1.4))
    one.minorticks_off()
    kit.log_axis_labels(one)
    one.set(xlabel="damping $\\rho$ (1: the average curvature)", ylabel="mean damage over FO's")
    many.set(xlim=(0.27, 1.02), ylim=(-0.02, 1.02))  # below, all curves lie near zero
    many.set(xlabel=LEARNED, ylabel=FORGETTING)
    words = f"$\\rho={FRONTIER_DAMPING:g}$\nlower right is better\nrings: one learning rate"
    many.text(0.04, 0.48, words, transform=many.transAxes, va="top", fontsize=7.5)
    titles = "One step: damage at equal progress", f"Frontier over learning rates, {steps} steps"
    kit.label_panels((one, many), titles)
    return figure


def _lead(
    panel: Axes, drawn: tuple[list[float], list[float]], name: str, colour: str, level: float,
    place: tuple[float, float],
) -> None:  # fmt: skip
    """Write the name at ``place`` and lead to the curve where its forgetting is ``level``."""
    forgetting, progress = drawn
    nearest = min(range(len(forgetting)), key=lambda i: abs(forgetting[i] - level))
    side = float(place[0] < 0.9)  # names at the right edge are left at their beginning
    leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "relpos": (side, 0.5)}
    panel.annotate(name, (progress[nearest], forgetting[nearest]), place, color=colour,
                   textcoords="axes fraction", ha="right", va="center", fontsize=7.5,
                   arrowprops=leader)  # fmt: skip


FIGURES: dict[str, Callable[[Results], Figure]] = {
    "figure-1-curvature": lambda results: one_step.draw_curvature(),
    "figure-2-validation": one_step.draw_validation,
    "figure-3-exposure": lambda results: one_step.draw_exposure(results.exposure),
    "figure-4-rotated": one_step.draw_rotated,
    "figure-5-trajectory": draw_trajectory,
    "figure-6-sweep": one_step.draw_sweep,
    "figure-7-informed": lambda results: draw_informed(results.informed, results.settings.steps),
}


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Write every figure as PNG and SVG into ``folder``; the paths, in order."""
    written = []
    with kit.style():
        for name, draw in FIGURES.items():
            written += kit.save(draw(results), folder, name)
    return written
