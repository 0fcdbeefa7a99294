"""Figures 1 to 4 and 6: one step. Lines are closed forms, markers are measured.

Figure 1 is an illustration in two dimensions: ``d = 2`` and ``q = 1`` give ``tau = 1/2``, so the
middle panel stands halfway between its neighbours.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from risegrad.theory.calibration import tau
from risegrad.theory.conditions import quadratic
from risegrad.theory.identities import average_curvature, expected_curvature
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
    power_of_ten,
    query_axis,
)
from riselab.sandbox.panels import (
    COURSES,
    Deviation,
    ExposureMeasurement,
    ExposurePoint,
    GapMeasurement,
    OperatorMeasurement,
    PanelPoint,
)
from riselab.sandbox.run import Results

EIGENVALUES = (3.6, 0.4)
ANGLE = math.radians(35)  # of the most curved direction
QUERIES = 1
LEVELS = [0.25, 0.75, 1.5, 2.5, 4.0, 6.0, 8.5]
REACH = 2.0


def curvatures() -> list[tuple[str, Tensor]]:
    """The three matrices, with the formula of each."""
    turn = torch.tensor(
        [[math.cos(ANGLE), -math.sin(ANGLE)], [math.sin(ANGLE), math.cos(ANGLE)]],
        dtype=torch.float64,
    )
    H = turn @ torch.diag(torch.tensor(EIGENVALUES, dtype=torch.float64)) @ turn.T
    floor = average_curvature(H) * torch.eye(2, dtype=torch.float64)
    shaped = expected_curvature(H, QUERIES)
    mixing = tau(2, QUERIES)
    return [
        ("FO: $H=\\bar\\lambda I+R$", H),
        (f"ZO, $\\tau={mixing:g}$: $\\bar\\lambda I+(1-\\tau)R$", shaped),
        ("Blind endpoint: $\\bar\\lambda I$", floor),
    ]


def draw_curvature() -> Figure:
    """Draw Figure 1."""
    figure, axes = new_figure(2.35, 1, 3)
    for letter, panel, (title, matrix) in zip("ABC", axes, curvatures(), strict=True):
        filled = _contours(panel, matrix)
        panel.set_title(f"{letter}  {title}", fontsize=7.8)
        panel.set_xlabel("displacement, axis 1")
    axes[0].set_ylabel("displacement, axis 2")
    bar = figure.colorbar(filled, ax=list(axes), ticks=LEVELS, pad=0.02, format="%g")
    bar.set_label("quadratic damage")
    bar.outline.set_linewidth(0.5)
    return figure


def _contours(panel: Axes, matrix: Tensor) -> QuadContourSet:
    side = torch.linspace(-REACH, REACH, 81, dtype=torch.float64)
    points = torch.cartesian_prod(side, side)
    damage = (quadratic(matrix, points) / 2).reshape(81, 81).T.numpy()
    x = side.numpy()
    filled = panel.contourf(x, x, damage, levels=[0, *LEVELS], cmap="Blues", extend="max")
    panel.contour(x, x, damage, levels=LEVELS, colors=BLACK, linewidths=0.4, alpha=0.6)
    g = (1.35 * math.cos(ANGLE), 1.35 * math.sin(ANGLE))
    arrow = {"arrowstyle": "-|>", "color": VERMILLION, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
    panel.annotate("", xy=g, xytext=(0, 0), arrowprops=arrow)
    panel.text(g[0] + 0.1, g[1] + 0.08, "$g$", color=VERMILLION, fontsize=10, fontweight="bold")
    panel.set_aspect("equal")
    panel.grid(False)
    panel.set_xticks([-2, -1, 0, 1, 2])
    panel.set_yticks([-2, -1, 0, 1, 2])
    return filled


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


def draw_exposure(m: ExposureMeasurement) -> Figure:
    """Draw Figure 3."""
    figure, panels = new_figure(2.9, 1, 2)
    _shares(panels[0], m)
    _risk(panels[1], m)
    label_panels(panels, ("Where the squared norm goes", "Worst damage over unknown curvature"))
    return figure


def _shares(panel: Axes, m: ExposureMeasurement) -> None:
    for part, colour, marker in (("along", BLUE, "o"), ("across", ORANGE, "s")):
        _zo(panel, m, part, colour, marker)
    middle = m.zo[len(m.zo) // 2]
    _reference(panel, m.fo.along, "--", BLACK, "FO, along $g$ (nothing across)", above=False)
    _reference(panel, m.isotropic.along, ":", GREEN, "isotropic, every direction", above=True)
    _name(panel, middle, middle.exact.along, "ZO, along $g$", BLUE, (-6, 7), "right")
    _name(panel, middle, middle.exact.across, "ZO, each across $g$", ORANGE, (0, -13), "center")
    panel.set_yscale("log")
    panel.set_ylim(m.zo[-1].exact.across / 2, 2)
    panel.set_ylabel("share of $E|x|^2$ per direction")
    query_axis(panel, [point.q for point in m.zo])


def _risk(panel: Axes, m: ExposureMeasurement) -> None:
    _zo(panel, m, "risk", BLUE, "o")
    _reference(panel, m.fo.risk, "--", BLACK, "FO", above=False)
    _reference(panel, m.isotropic.risk, ":", GREEN, "isotropic (blind optimum)", above=True)
    for point in m.zo:
        panel.annotate(f"{point.tau:.0%}", (point.q, point.exact.risk), (0, 6),
                       textcoords="offset points", ha="center", fontsize=7)  # fmt: skip
    panel.set_yscale("log")
    panel.set_ylim(m.isotropic.risk / 1.6, m.fo.risk * 1.6)
    log_axis_labels(panel)
    panel.set_ylabel("worst damage ($\\bar\\lambda=1$)")
    query_axis(panel, [point.q for point in m.zo])
    panel.text(0.97, 0.2, "ZO; percent: $\\tau$, the part of the\nway from FO to the optimum",
               transform=panel.transAxes, ha="right", color=BLUE, fontsize=7.5)  # fmt: skip


def _zo(panel: Axes, m: ExposureMeasurement, part: str, colour: str, marker: str) -> None:
    q = [point.q for point in m.zo]
    panel.plot(q, [getattr(point.exact, part) for point in m.zo], color=colour)
    panel.plot(q, [getattr(point.measured, part) for point in m.zo], marker, color=colour,
               markerfacecolor="white")  # fmt: skip


def _reference(
    panel: Axes, value: float, line: str, colour: str, name: str, *, above: bool
) -> None:
    panel.axhline(value, color=colour, linestyle=line, linewidth=1.2)
    panel.annotate(name, (0, value), (4, 3 if above else -10), color=colour, fontsize=7.5,
                   xycoords=panel.get_yaxis_transform(), textcoords="offset points")  # fmt: skip


def _name(
    panel: Axes,
    point: ExposurePoint,
    value: float,
    name: str,
    colour: str,
    offset: tuple[int, int],
    side: Literal["right", "center"],
) -> None:
    panel.annotate(name, (point.q, value), offset, textcoords="offset points", color=colour,
                   ha=side, fontsize=7.5)  # fmt: skip


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
