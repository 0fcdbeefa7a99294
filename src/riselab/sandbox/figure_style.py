"""One look for all figures, without pyplot and without lasting changes to matplotlib's settings.

Colours are Okabe and Ito's, which people with any common colour blindness can tell apart; every
series also differs in marker or line style, so that a grey print can be read.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from risegrad.common.files import replacing

BLACK, GREY = "#000000", "#767676"
BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
ORANGE, PURPLE, SKY = "#E69F00", "#CC79A7", "#56B4E9"

WIDTH = 7.0  # inches: the text width of a page; half of it is a column
DPI = 200
STYLE: Any = {  # matplotlib types its keys one by one, differently in each version
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 7.5,
    "legend.frameon": True,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.85,
    "legend.borderpad": 0.2,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "mathtext.fontset": "dejavusans",
    "svg.hashsalt": "risegrad",  # the same results give the same bytes
    "svg.fonttype": "path",  # looks the same where the font is missing
}


def style() -> AbstractContextManager[None]:
    """The look of the figures, for the length of a ``with``; afterwards all is as it was."""
    return matplotlib.rc_context(STYLE)


def new_figure(height: float, rows: int = 1, columns: int = 1) -> tuple[Figure, Sequence[Axes]]:
    """A figure without pyplot and without a global backend, and its axes in order."""
    layout = ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.05, wspace=0.03)
    figure = Figure(figsize=(WIDTH, height), layout=layout)
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, list(axes.flat)


def log_axis(panel: Axes, values: Sequence[int], name: str) -> None:
    """A logarithmic axis with a tick at each value and no others."""
    panel.set_xscale("log")
    ticks = sorted(set(values))
    panel.set_xticks(ticks, [str(tick) for tick in ticks])
    panel.minorticks_off()
    panel.set_xlabel(name)


def query_axis(panel: Axes, queries: Sequence[int]) -> None:
    """The axis over query counts that three panels share: powers of two."""
    log_axis(panel, [q for q in queries if q & (q - 1) == 0], "directions $q$")


def points(
    panel: Axes, x: Sequence[float], measured: Sequence[tuple[float, float, float]],
    marker: str, colour: str, label: str | None = None,
) -> None:  # fmt: skip
    """Open markers with two standard errors, of numbers beside their errors and closed forms."""
    panel.errorbar(
        x, [value for value, _, _ in measured], [2 * error for _, error, _ in measured],
        fmt=marker, color=colour, markersize=4, markerfacecolor="white", elinewidth=0.8,
        label=label,
    )  # fmt: skip


def markers(
    panel: Axes, x: Any, y: Any, marker: str, colour: str, size: float = 4, **more: Any
) -> None:
    """Open markers, so that a line or another marker is seen through them."""
    panel.plot(x, y, marker, color=colour, markersize=size, markerfacecolor="white", **more)


def beside(
    panel: Axes, text: str, xy: tuple[float, float], offset: tuple[float, float], colour: str,
    **more: Any,
) -> None:  # fmt: skip
    """A small text some points away from a place."""
    panel.annotate(
        text, xy, offset, textcoords="offset points", color=colour, **{"fontsize": 7.5} | more
    )


def log_axis_labels(panel: Axes) -> None:
    """Plain numbers at 1, 2 and 5 of every decade: less than a decade would get no label at all."""
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())


def power_of_ten(value: float) -> str:
    """``3.0e-06`` as mathematics.

    >>> power_of_ten(3.04e-6)
    '3.0\\\\times10^{-6}'
    """
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}\\times10^{{{int(exponent)}}}"


def label_panels(panels: Sequence[Axes], titles: Sequence[str]) -> None:
    """A letter and a title above each panel."""
    letters = ascii_uppercase[: len(titles)]
    for panel, letter, title in zip(panels, letters, titles, strict=True):
        panel.set_title(f"{letter}  {title}")


def _shrink(png: Path) -> None:
    """A palette of 256 colours: a third of the bytes, and no difference that an eye could see."""
    with Image.open(png) as image:
        small = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(png, format="PNG", compress_level=9)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write PNG and SVG; no dates inside, so that equal results are equal files."""
    png, svg = folder / f"{name}.png", folder / f"{name}.svg"
    with replacing(png) as temporary:
        FigureCanvasAgg(figure)
        figure.savefig(temporary, dpi=DPI)
        _shrink(temporary)
    with replacing(svg) as temporary:
        FigureCanvasSVG(figure)
        figure.set_layout_engine("none")  # what the PNG arrived at; solving it again takes as long
        figure.savefig(temporary, metadata={"Date": None})
    return [png, svg]
