"""Figure 3: how FO, ZO and the isotropic optimum spread their norm, and the blind risk of each.

Lines are closed forms, markers are measured.
"""

from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from risegrad.sandbox.exposure_panel import ExposureMeasurement, ExposurePoint
from risegrad.sandbox.figures.figure_style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    label_panels,
    log_axis_labels,
    new_figure,
    query_axis,
)


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
