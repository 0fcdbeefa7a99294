"""Figures 2 and 4: the closed forms against measurement, on the axes and after a rotation."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from risegrad.sandbox.contraction_panels import OperatorMeasurement
from risegrad.sandbox.damage_panels import Deviation, GapMeasurement
from risegrad.sandbox.figures.figure_style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    VERMILLION,
    label_panels,
    log_axis_labels,
    new_figure,
    power_of_ten,
    query_axis,
)
from risegrad.sandbox.sandbox_run import Results


def draw_validation(results: Results) -> Figure:
    """Figure 2, panels A-D."""
    figure, panels = new_figure(5.4, 2, 2)
    eigenvalue_panel(panels[0], results.operator)
    residual_panel(panels[1], results.operator)
    gap_panel(panels[2], results.gap)
    deviation_panel(panels[3], results.deviations)
    label_panels(panels, _TITLES)
    return figure


def draw_rotated(results: Results) -> Figure:
    """Figure 4: the same spectrum in a random basis; A shows the off-diagonal entries."""
    figure, panels = new_figure(5.4, 2, 2)
    entries_panel(panels[0], results.rotated_operator)
    residual_panel(panels[1], results.rotated_operator)
    gap_panel(panels[2], results.rotated_gap)
    deviation_panel(panels[3], results.rotated_deviations)
    label_panels(panels, ("Entries of the mean curvature", *_TITLES[1:]))
    return figure


_TITLES = (
    "Eigenvalues move to their average",
    "Operator residual",
    "Damage gap as the gradient turns",
    "One-batch deviation",
)


def eigenvalue_panel(panel: Axes, m: OperatorMeasurement) -> None:
    """Eigenvalues of the mean shaped curvature: closed form and measured."""
    d = len(m.eigenvalues)
    rank = torch.arange(1, d + 1)
    # Few enough markers that the right end does not become a bar.
    shown = sorted({round(d ** (step / 15)) - 1 for step in range(16)})
    panel.plot(rank, m.eigenvalues, color=GREY, linestyle="--", label="of $H$ (FO)")
    panel.plot(rank, m.predicted, color=BLUE, label="of $E[P^\\top HP]$, closed form")
    panel.plot(
        rank[shown], m.measured[shown], "o", color=VERMILLION, markerfacecolor="white",
        label=f"measured, {m.sizes[-1]:,} samples",
    )  # fmt: skip
    panel.axhline(float(m.eigenvalues.mean()), color=BLACK, linewidth=0.7, linestyle=":")
    panel.annotate("average $\\bar\\lambda$", (1, float(m.eigenvalues.mean())), (0, -9),
                   textcoords="offset points", fontsize=7.5)  # fmt: skip
    panel.set(xscale="log", yscale="log")
    panel.set_xlabel("rank of the eigenvalue")
    panel.set_ylabel("eigenvalue (average = 1)")
    panel.legend(loc="lower left")


def entries_panel(panel: Axes, m: OperatorMeasurement) -> None:
    """Entries of the mean shaped curvature: measured against the closed form."""
    identity = torch.eye(len(m.expected), dtype=torch.float64)
    # The average curvature is on the diagonal only and would hide everything else by its size.
    expected, average = (x - m.eigenvalues.mean() * identity for x in (m.expected, m.average))
    off = identity == 0
    ends = [float(expected.min()), float(expected.max())]
    panel.plot(ends, ends, color=BLACK, linewidth=0.8, label="equality")
    parts = ((off, GREEN, 1.6, "off the diagonal"), (~off, VERMILLION, 2.6, "on the diagonal"))
    for part, colour, size, name in parts:
        panel.plot(
            expected[part], average[part], "o", color=colour, markersize=size, rasterized=True,
            markeredgewidth=0, label=name,
        )  # fmt: skip
    panel.set_xlabel("closed form, less $\\bar\\lambda$ on the diagonal")
    panel.set_ylabel("measured, likewise")
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.legend(loc="upper left", markerscale=2)


def residual_panel(panel: Axes, m: OperatorMeasurement) -> None:
    """The error of the measured mean over the number of samples."""
    sizes = torch.tensor(m.sizes, dtype=torch.float64)
    mean = m.residuals.log().mean(0).exp()
    guide = (mean * sizes.sqrt()).log().mean().exp() / sizes.sqrt()
    panel.plot(sizes, guide, color=BLUE, label="slope $-1/2$")
    panel.plot(
        sizes, mean, "o", color=VERMILLION, markerfacecolor="white",
        label=f"measured, mean of {len(m.residuals)} runs",
    )  # fmt: skip
    panel.set(xscale="log", yscale="log")
    panel.set_xlabel("samples")
    panel.set_ylabel("relative residual (Frobenius)")
    log_axis_labels(panel)
    slope, spread = float(m.slopes.mean()), float(m.slopes.std())
    panel.text(0.05, 0.08, f"measured slope ${slope:.3f}\\pm{spread:.3f}$",
               transform=panel.transAxes)  # fmt: skip
    panel.legend(loc="upper right")


def gap_panel(panel: Axes, m: GapMeasurement) -> None:
    """The damage gap over the excess curvature along the gradient."""
    _gap_curve(panel, m)
    panel.set_xlabel("excess curvature along $g$, $\\lambda-\\bar\\lambda$")
    panel.set_ylabel("FO damage $-$ mean ZO damage")
    panel.legend(loc="upper left", title=f"$1-R^2={power_of_ten(1 - m.r_squared)}$",
                 title_fontsize=7.5, alignment="left")  # fmt: skip
    low = float(m.excess.min())
    zoom = panel.inset_axes((0.62, 0.11, 0.37, 0.27))
    _gap_curve(zoom, m)
    bottom = float(m.predicted.min())
    zoom.set_xlim(1.2 * low, -0.4 * low)
    zoom.set_ylim(1.3 * bottom, -0.5 * bottom)
    zoom.set_title("FO better: enlarged", fontsize=7, fontweight="normal", loc="center", pad=2)
    zoom.tick_params(labelsize=6.5)


def _gap_curve(panel: Axes, m: GapMeasurement) -> None:
    panel.axhline(0, color=BLACK, linewidth=0.6)
    panel.axvline(0, color=BLACK, linewidth=0.6)
    panel.plot(m.excess, m.predicted, color=BLUE, label="closed form")
    panel.errorbar(
        m.excess, m.measured, 2 * m.standard_error, fmt="o", color=VERMILLION, markersize=3.5,
        markerfacecolor="white", elinewidth=0.8, label="measured, $\\pm$2 standard errors",
    )  # fmt: skip


def deviation_panel(panel: Axes, points: list[Deviation]) -> None:
    """The deviation of one batch over q."""
    blocks = list(dict.fromkeys(point.block for point in points))
    for block, colour, marker in zip(blocks, (BLUE, VERMILLION), "os", strict=False):
        mine = sorted((p for p in points if p.block == block), key=lambda p: p.q)
        drawn = [p for p in mine if p.sampler == "one-draw"]
        name = "global" if block == blocks[0] else f"blocks of {block}"
        panel.plot([p.q for p in drawn], [p.exact for p in drawn], color=colour,
                   label=f"{name}, exact")  # fmt: skip
        _measured(panel, drawn, marker, colour, f"{name}, measured")
        literal = [p for p in mine if p.sampler == "directions"]
        name = "Algorithm 1 literally" if block == blocks[-1] else ""  # once in the legend
        _measured(panel, literal, "x", BLACK, name)
    panel.set_yscale("log")
    query_axis(panel, [p.q for p in points])
    log_axis_labels(panel)
    panel.set_ylabel("standard deviation of the damage")
    panel.legend(loc="upper right", fontsize=7)


def _measured(panel: Axes, points: list[Deviation], marker: str, colour: str, name: str) -> None:
    panel.errorbar(
        [p.q for p in points], [p.measured for p in points],
        [2 * p.standard_error for p in points], fmt=marker, color=colour, markersize=4,
        markerfacecolor="white", elinewidth=0.8, label=name or None,
    )  # fmt: skip
