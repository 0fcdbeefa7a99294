"""A plot with its heading, legend, read-out, and the same numbers as a table."""

from __future__ import annotations

from collections.abc import Sequence

from risegrad.lab.report.html_table import html_table
from risegrad.lab.report.markup import Markup, tag
from risegrad.lab.report.plots.canvas import series_class, shape
from risegrad.lab.report.tables import Table

HINT = "Point at a mark, or focus the plot and press the arrow keys."


def figure(
    title: str, plot: Markup, table: Table, identity: str, legend: Sequence[tuple[int, str]] = ()
) -> Markup:
    """``legend`` has the number and the label of each series; clicking one hides the series."""
    entries = tag("div", *map(_entry, legend), class_="legend", role="group", aria_label="Series")
    return tag(
        "figure",
        tag("figcaption", title),
        plot,
        tag("output", HINT, class_="readout", aria_live="polite", data_hint=HINT),
        entries if legend else None,
        tag("details", tag("summary", "Numbers of this plot"), html_table(table, identity)),
        class_="figure",
    )


def _entry(entry: tuple[int, str]) -> Markup:
    index, label = entry
    key = tag(
        "svg",
        shape(8.0, 8.0, index),
        viewBox="0 0 16 16",
        aria_hidden="true",
        class_=f"key {series_class(index)}",
    )
    return tag(
        "button",
        key,
        tag("span", label),
        type="button",
        aria_pressed="true",
        data_toggles=str(index),
    )
