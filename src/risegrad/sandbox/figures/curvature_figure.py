"""Figure 1: the curvature that FO, norm-matched ZO and the blind endpoint read, in a plane.

An illustration in two dimensions, all closed form: ``d = 2`` and ``q = 1`` give ``tau = 1/2``, so
the middle panel stands halfway between its neighbours.
"""

import math

import torch
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from torch import Tensor

from risegrad.sandbox.figures.figure_style import BLACK, VERMILLION, new_figure
from risegrad.theory.calibration import tau
from risegrad.theory.conditions import quadratic
from risegrad.theory.identities import average_curvature, expected_curvature

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
