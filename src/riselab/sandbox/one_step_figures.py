"""Figures 1 to 4 and 6: one step. Lines are closed forms, markers are measured.

Figure 1 is an illustration in two dimensions: ``d = 2`` and ``q = 1`` give ``tau = 1/2``, so the
middle panel stands halfway between its neighbours.
"""

import math
from collections.abc import Callable, Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from risegrad.theory import average_curvature, expected_curvature
from risegrad.theory.calibration import tau
from risegrad.theory.conditions import quadratic
from riselab.sandbox import figure_style as kit
from riselab.sandbox import panels as measured
from riselab.sandbox.panels import Batch, ExposureMeasurement, GapMeasurement
from riselab.sandbox.run import Results, Validation

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
    mixed = f"ZO, $\\tau={tau(2, QUERIES):g}$: $\\bar\\lambda I+(1-\\tau)R$"
    return [
        ("FO: $H=\\bar\\lambda I+R$", H),
        (mixed, expected_curvature(H, QUERIES)),
        ("Blind endpoint: $\\bar\\lambda I$", floor),
    ]


def draw_curvature() -> Figure:
    """Draw Figure 1."""
    figure, axes = kit.new_figure(2.35, 1, 3)
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
    grid = torch.cartesian_prod(side, side)
    damage = (quadratic(matrix, grid) / 2).reshape(81, 81).T.numpy()
    x = side.numpy()
    filled = panel.contourf(x, x, damage, levels=[0, *LEVELS], cmap="Blues", extend="max")
    panel.contour(x, x, damage, levels=LEVELS, colors=kit.BLACK, linewidths=0.4, alpha=0.6)
    g = (1.35 * math.cos(ANGLE), 1.35 * math.sin(ANGLE))
    red = kit.VERMILLION
    arrow = {"arrowstyle": "-|>", "color": red, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
    panel.annotate("", xy=g, xytext=(0, 0), arrowprops=arrow)
    panel.text(g[0] + 0.1, g[1] + 0.08, "$g$", color=red, fontsize=10, fontweight="bold")
    panel.set_aspect("equal")
    panel.grid(False)
    panel.set_xticks([-2, -1, 0, 1, 2])
    panel.set_yticks([-2, -1, 0, 1, 2])
    return filled


def draw_validation(results: Results) -> Figure:
    """Figure 2, panels A-D."""
    return _four(results.plain, _eigenvalues, "Eigenvalues move to their average")


def draw_rotated(results: Results) -> Figure:
    """Figure 4: the same spectrum in a random basis; A shows the off-diagonal entries."""
    return _four(results.rotated, _entries, "Entries of the mean curvature")


First = Callable[[Axes, measured.OperatorMeasurement], None]


def _four(m: Validation, first: First, title: str) -> Figure:
    figure, panels = kit.new_figure(5.4, 2, 2)
    first(panels[0], m.operator)
    _residual(panels[1], m.operator)
    _gap(panels[2], m.gap)
    _deviation(panels[3], m.deviations)
    others = "Operator residual", "Damage gap as the gradient turns", "One-batch deviation"
    kit.label_panels(panels, (title, *others))
    return figure


def _eigenvalues(panel: Axes, m: measured.OperatorMeasurement) -> None:
    d, average = len(m.eigenvalues), float(m.eigenvalues.mean())
    rank = torch.arange(1, d + 1)
    # Few enough markers that the right end does not become a bar.
    shown = sorted({round(d ** (step / 15)) - 1 for step in range(16)})
    panel.plot(rank, m.eigenvalues, color=kit.GREY, linestyle="--", label="of $H$ (FO)")
    panel.plot(rank, m.predicted, color=kit.BLUE, label="of $E[P^\\top HP]$, closed form")
    name = f"measured, {m.sizes[-1]:,} samples"
    kit.markers(panel, rank[shown], m.measured[shown], "o", kit.VERMILLION, label=name)
    panel.axhline(average, color=kit.BLACK, linewidth=0.7, linestyle=":")
    kit.beside(panel, "average $\\bar\\lambda$", (1, average), (0, -9), kit.BLACK)
    panel.set(xscale="log", yscale="log", xlabel="rank of the eigenvalue",
              ylabel="eigenvalue (average = 1)")  # fmt: skip
    panel.legend(loc="lower left")


def _entries(panel: Axes, m: measured.OperatorMeasurement) -> None:
    identity = torch.eye(len(m.expected), dtype=torch.float64)
    # The average curvature is on the diagonal only and would hide everything else by its size.
    expected, average = (x - m.eigenvalues.mean() * identity for x in (m.expected, m.average))
    off = identity == 0
    ends = [float(expected.min()), float(expected.max())]
    panel.plot(ends, ends, color=kit.BLACK, linewidth=0.8, label="equality")
    parts = (
        (off, kit.GREEN, 1.6, "off the diagonal"),
        (~off, kit.VERMILLION, 2.6, "on the diagonal"),
    )
    for part, colour, size, name in parts:
        panel.plot(
            expected[part], average[part], "o", color=colour, markersize=size, rasterized=True,
            markeredgewidth=0, label=name,
        )  # fmt: skip
    panel.set(xlabel="closed form, less $\\bar\\lambda$ on the diagonal",
              ylabel="measured, likewise")  # fmt: skip
    panel.xaxis.set_major_locator(MaxNLocator(5))
    panel.legend(loc="upper left", markerscale=2)


def _residual(panel: Axes, m: measured.OperatorMeasurement) -> None:
    sizes = torch.tensor(m.sizes, dtype=torch.float64)
    mean = m.residuals.log().mean(0).exp()
    guide = (mean * sizes.sqrt()).log().mean().exp() / sizes.sqrt()
    panel.plot(sizes, guide, color=kit.BLUE, label="slope $-1/2$")
    name = f"measured, mean of {len(m.residuals)} runs"
    kit.markers(panel, sizes, mean, "o", kit.VERMILLION, label=name)
    panel.set(xscale="log", yscale="log", xlabel="samples", ylabel="relative residual (Frobenius)")
    kit.log_axis_labels(panel)
    slope, spread = float(m.slopes.mean()), float(m.slopes.std())
    panel.text(0.05, 0.08, f"measured slope ${slope:.3f}\\pm{spread:.3f}$",
               transform=panel.transAxes)  # fmt: skip
    panel.legend(loc="upper right")


def _gap(panel: Axes, m: GapMeasurement) -> None:
    _gap_curve(panel, m)
    panel.set(xlabel="excess curvature along $g$, $\\lambda-\\bar\\lambda$",
              ylabel="FO damage $-$ mean ZO damage")  # fmt: skip
    panel.legend(loc="upper left", title=f"$1-R^2={kit.power_of_ten(1 - m.r_squared)}$",
                 title_fontsize=7.5, alignment="left")  # fmt: skip
    low, bottom = float(m.excess.min()), float(m.predicted.min())
    zoom = panel.inset_axes((0.62, 0.11, 0.37, 0.27))
    _gap_curve(zoom, m)
    zoom.set(xlim=(1.2 * low, -0.4 * low), ylim=(1.3 * bottom, -0.5 * bottom))
    zoom.set_title("FO better: enlarged", fontsize=7, fontweight="normal", loc="center", pad=2)
    zoom.tick_params(labelsize=6.5)


def _gap_curve(panel: Axes, m: GapMeasurement) -> None:
    panel.axhline(0, color=kit.BLACK, linewidth=0.6)
    panel.axvline(0, color=kit.BLACK, linewidth=0.6)
    panel.plot(m.excess, m.predicted, color=kit.BLUE, label="closed form")
    panel.errorbar(
        m.excess, m.measured, 2 * m.standard_error, fmt="o", color=kit.VERMILLION, markersize=3.5,
        markerfacecolor="white", elinewidth=0.8, label="measured, $\\pm$2 standard errors",
    )  # fmt: skip


def _deviation(panel: Axes, rows: Sequence[Batch]) -> None:
    blocks = list(dict.fromkeys(row.block for row in rows))
    for block, colour, marker in zip(blocks, (kit.BLUE, kit.VERMILLION), "os", strict=False):
        mine = sorted((row for row in rows if row.block == block), key=lambda row: row.q)
        name = "global" if block == blocks[0] else f"blocks of {block}"
        drawn = [row for row in mine if row.kind == "one-draw"]
        queries = [row.q for row in drawn]
        panel.plot(queries, [row.deviation.exact for row in drawn], color=colour,
                   label=f"{name}, exact")  # fmt: skip
        deviations = [row.deviation for row in drawn]
        kit.points(panel, queries, deviations, marker, colour, f"{name}, measured")
        literal = [row for row in mine if row.kind == "directions"]
        once = "Algorithm 1 literally" if block == blocks[-1] else None
        deviations = [row.deviation for row in literal]
        kit.points(panel, [row.q for row in literal], deviations, "x", kit.BLACK, once)
    panel.set_yscale("log")
    kit.query_axis(panel, [row.q for row in rows])
    kit.log_axis_labels(panel)
    panel.set_ylabel("standard deviation of the damage")
    panel.legend(loc="upper right", fontsize=7)


def draw_exposure(m: ExposureMeasurement) -> Figure:
    """Draw Figure 3."""
    figure, (shares, risk) = kit.new_figure(2.9, 1, 2)
    for part, colour, marker in (("along", kit.BLUE, "o"), ("across", kit.ORANGE, "s")):
        _zo(shares, m, part, colour, marker)
    _reference(shares, m.fo.along, "--", kit.BLACK, "FO, along $g$ (nothing across)")
    _reference(shares, m.isotropic.along, ":", kit.GREEN, "isotropic, every direction")
    middle = m.zo[len(m.zo) // 2]
    place = middle.q, middle.exact.along
    kit.beside(shares, "ZO, along $g$", place, (-6, 7), kit.BLUE, ha="right")
    place = middle.q, middle.exact.across
    kit.beside(shares, "ZO, each across $g$", place, (0, -13), kit.ORANGE, ha="center")
    shares.set(yscale="log", ylim=(m.zo[-1].exact.across / 2, 2))
    shares.set_ylabel("share of $E|x|^2$ per direction")
    _zo(risk, m, "risk", kit.BLUE, "o")
    _reference(risk, m.fo.risk, "--", kit.BLACK, "FO")
    _reference(risk, m.isotropic.risk, ":", kit.GREEN, "isotropic (blind optimum)")
    for point in m.zo:
        place = point.q, point.exact.risk
        kit.beside(risk, f"{point.tau:.0%}", place, (0, 6), kit.BLACK, ha="center", fontsize=7)
    risk.set(yscale="log", ylim=(m.isotropic.risk / 1.6, m.fo.risk * 1.6))
    kit.log_axis_labels(risk)
    risk.set_ylabel("worst damage ($\\bar\\lambda=1$)")
    risk.text(0.97, 0.2, "ZO; percent: $\\tau$, the part of the\nway from FO to the optimum",
              transform=risk.transAxes, ha="right", color=kit.BLUE, fontsize=7.5)  # fmt: skip
    for panel in (shares, risk):
        kit.query_axis(panel, [point.q for point in m.zo])
    titles = "Where the squared norm goes", "Worst damage over unknown curvature"
    kit.label_panels((shares, risk), titles)
    return figure


def _zo(panel: Axes, m: ExposureMeasurement, part: str, colour: str, marker: str) -> None:
    q = [point.q for point in m.zo]
    panel.plot(q, [getattr(point.exact, part) for point in m.zo], color=colour)
    kit.markers(panel, q, [getattr(point.measured, part) for point in m.zo], marker, colour)


def _reference(panel: Axes, value: float, line: str, colour: str, name: str) -> None:
    """FO's name below its line, the optimum's above."""
    panel.axhline(value, color=colour, linestyle=line, linewidth=1.2)
    offset = 4, 3 if line == ":" else -10
    kit.beside(panel, name, (0, value), offset, colour, xycoords=panel.get_yaxis_transform())


def draw_sweep(results: Results) -> Figure:
    """Figure 6. Above, signal and deviation at the run's q; below, their ratio for several q."""
    settings = results.settings
    colours = kit.BLUE, kit.VERMILLION, kit.GREEN, kit.PURPLE
    figure, panels = kit.new_figure(4.8, 2, len(measured.COURSES))
    for above, below, course in zip(panels[:3], panels[3:], measured.COURSES, strict=True):
        rows = [row for row in results.sweep if row.kind == course]
        for part, name, colour, marker in (
            ("signal", "signal $G_q$", kit.BLUE, "o"),
            ("deviation", "deviation", kit.ORANGE, "s"),
        ):
            found = {row.size: getattr(row, part) for row in rows if row.q == settings.q}
            exact = [one.exact for one in found.values()]
            above.plot([*found], exact, color=colour, label=name)
            kit.points(above, [*found], [*found.values()], marker, colour)
        queries = sorted({row.q for row in rows})
        for q, colour, marker in zip(queries, colours, "os^D", strict=False):
            mine = [row for row in rows if row.q == q]
            x = [row.size for row in mine]
            below.plot(x, [row.signal.exact / row.deviation.exact for row in mine], color=colour)
            ratios = [row.signal.value / row.deviation.value for row in mine]
            kit.markers(below, x, ratios, marker, colour, label=f"$q={q}$")
        below.axhline(1, color=kit.BLACK, linewidth=0.7, linestyle=":")
        for panel in (above, below):
            panel.set_ylim(bottom=0)
            name = "dimension $d$, one block" if course == "dimensions" else "block size"
            kit.log_axis(panel, [row.size for row in rows], name)
    panels[0].set_ylabel(f"damage at $q={settings.q}$")
    panels[3].set_ylabel("signal / deviation")
    panels[0].legend(loc="best", fontsize=7)
    panels[3].legend(loc="best", fontsize=7)
    titles = ("Dimensions", f"Blocks of $d={settings.large_d}$", "Blocks, rotated")
    kit.label_panels(panels, (*titles, *(f"{title}, ratio" for title in titles)))
    return figure
