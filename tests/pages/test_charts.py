"""Charts: valid specifications, axes that fit, marks that differ, labels that do not collide."""

from __future__ import annotations

import json
import math
from itertools import pairwise, product

import pytest

from risegrad.pages import vega_charts
from risegrad.pages.charts import chart_axes, chart_labels
from risegrad.pages.charts.bar_chart import Bar, bars
from risegrad.pages.charts.calibration_chart import CalibrationPoint, calibration
from risegrad.pages.charts.frontier_chart import FrontierBand, FrontierPoint, frontier
from risegrad.pages.charts.matrix_chart import MatrixCell, matrices
from risegrad.pages.charts.stream_chart import StreamPoint, stream
from risegrad.pages.charts.sweep_chart import SweepPoint, sweep
from risegrad.pages.page_blocks import ChartFigure
from risegrad.pages.page_tables import text_table
from risegrad.pages.page_theme import GROUND
from risegrad.pages.palette import COLOURS, Palette

PALETTE = Palette(["FO", "RISE"])
POINTS = [
    FrontierPoint("FO", 80.0, 30.0, "FO, high", "lr 0.1", 1.0, 40.0),
    FrontierPoint("FO", 60.0, 10.0, "FO, low", "lr 0.01", None, None),
    FrontierPoint("RISE", 70.0, 12.0, "RISE", idle=True),
]
CHARTS = {
    "frontier": frontier(POINTS, PALETTE),
    "stream": stream(
        [StreamPoint("FO", "FO", t, 90.0 - t, 12.0, f"{t}") for t in (1, 2, 3)], PALETTE, "accuracy"
    ),
    "matrix": matrices(
        [MatrixCell(row, 1, 1, 50.0, "tip") for row in ("FO", "RISE")], "accuracy (%)"
    ),
    "sweep": sweep(
        [SweepPoint(m, q, 50.0 + q, 1.0, "tip") for m in ("FO", "the paper's") for q in (1, 4)],
        PALETTE, "queries q", "Avg",
    ),
    "bars": bars([Bar("FO", "FO", 2e-5, 1e-5, 3e-5, "tip")], PALETTE, "damage"),
    "calibration": calibration(
        [CalibrationPoint("FO", x, 2 * x, "tip") for x in (-1e-3, 0.0, 1e-5, 0.1)], PALETTE
    ),
}  # fmt: skip


def rows(name: str, data: str = "rows") -> list[dict[str, object]]:
    found: list[dict[str, object]] = CHARTS[name].to_dict()["datasets"][data]
    return found


@pytest.mark.parametrize("name", CHARTS)
def test_specifications_are_valid_vega_lite(name: str) -> None:
    """Altair checks here what it does not check when a page is made."""
    spec = CHARTS[name].to_dict(validate=True)
    assert "url" not in json.dumps(spec["datasets"])
    assert not math.isnan(json.loads(json.dumps(spec, allow_nan=False)).get("width", 0))


@pytest.mark.parametrize("name", CHARTS)
def test_every_mark_says_what_it_shows(name: str) -> None:
    assert all(row["tip"] for row in rows(name))
    assert '"description": {"field": "tip"' in json.dumps(CHARTS[name].to_dict())


@pytest.mark.parametrize(
    ("values", "bounds", "expected"),
    [
        ([99.2, 100.0], (0, 100), (99.1, 100.0)),
        ([3.0, 97.0], (0, 100), (0.0, 100.0)),
        ([0.0, 0.4], (-100, 100), (-0.05, 0.45)),
        ([50.0], (0, 100), (42.5, 57.5)),
        ([], (0, 100), (0.0, 1.25)),
    ],
)
def test_axes_fit_the_data_and_stay_possible(
    values: list[float], bounds: tuple[float, float], expected: tuple[float, float]
) -> None:
    low, high = chart_axes.domain(values, *bounds)
    assert (low, high) == pytest.approx(expected)
    assert all(low <= value <= high for value in values)


def test_forgetting_does_not_start_below_zero_for_a_wide_deviation() -> None:
    """A bar of 30 ± 40 is cut at zero instead of making room for -10."""
    wide = rows("frontier")[0]
    assert (wide["low"], wide["high"]) == (0.0, 70.0)
    layers = CHARTS["frontier"].to_dict()["layer"]
    assert layers[0]["encoding"]["y"]["scale"]["domain"][0] == 0.0
    backward = frontier([FrontierPoint("FO", 50.0, -3.0, "tip")], PALETTE).to_dict()
    assert backward["layer"][0]["encoding"]["y"]["scale"]["domain"][0] < -3


def test_who_learned_nothing_is_pale() -> None:
    assert [row["clear"] for row in rows("frontier")] == [1.0, 1.0, 0.4]


def test_curves_follow_the_order_of_the_sweep_and_end_with_the_name() -> None:
    assert [row["order"] for row in rows("frontier")] == [0, 1, 2]
    found = rows("frontier", "labels")
    assert [row["name"] for row in found if not row["narrow"]] == ["RISE", "FO", "lr 0.1"]
    assert [row["name"] for row in found if row["narrow"]] == ["RISE", "FO"], "on a phone"


def test_bands_stay_on_the_axis_and_say_nothing_where_they_would_fill_it() -> None:
    given = [("FO", 60.0, -9.0, 12.0), ("FO", 70.0, 5.0, 20.0), ("RISE", 60.0, -500.0, 500.0)]
    found = frontier(POINTS, PALETTE, [FrontierBand(*place) for place in given]).to_dict()
    assert found["datasets"]["bands"] == [
        {"method": "FO", "x": 60.0, "low": 0.0, "high": 12.0},
        {"method": "FO", "x": 70.0, "low": 5.0, "high": 20.0},
    ]
    assert "bands" not in CHARTS["frontier"].to_dict()["datasets"]


def test_one_sweep_alone_names_its_settings() -> None:
    found = frontier(POINTS[:2], PALETTE).to_dict()["datasets"]["labels"]
    assert [row["name"] for row in found] == ["lr 0.1", "lr 0.01"]


@pytest.mark.parametrize("width", [chart_axes.WIDTH, chart_labels.NARROW])
def test_labels_do_not_cover_each_other_nor_points(width: int) -> None:
    crowd = [(f"a method of some length {k}", x, y)
             for k, (x, y) in enumerate(product((0.3, 0.35, 0.4), (0.5, 0.52, 0.54)))]  # fmt: skip
    found = chart_labels.places(crowd, [(0.45, 0.5)], width)
    plot = chart_labels._Box(0, 0, width - 30 * (width == chart_axes.WIDTH), 0)
    boxes = [
        chart_labels._label(name, x, y, side, plot)
        for (name, x, y), side in zip(crowd, found, strict=True) if side
    ]  # fmt: skip
    assert 1 <= len(boxes) < len(crowd)
    assert not any(a.meets(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_forty_two_names_have_different_marks_and_keep_them() -> None:
    names = [f"row {k}" for k in range(42)]
    palette = Palette([*names, "row 0"])
    assert len(palette) == 42
    assert len(set(palette.values())) == 42
    assert all(
        palette[a].colour != palette[b].colour and palette[a].shape != palette[b].shape
        for a, b in pairwise(names)
    )


def light(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return sum(v * weight for v, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_have_contrast_on_light_and_on_dark(scheme: str) -> None:
    ground = light(GROUND[scheme])
    for colour in COLOURS:
        bright, dim = sorted((light(colour), ground), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 3


NOT_A_NUMBER = {
    "bars": bars([Bar("FO", "FO", math.nan, math.nan, math.inf, "tip")], PALETTE, "damage"),
    "calibration": calibration([CalibrationPoint("FO", 1.0, math.nan, "tip")], PALETTE),
    "nothing predicted": calibration([], PALETTE),
}


@pytest.mark.parametrize("name", NOT_A_NUMBER)
def test_what_is_no_number_draws_nothing(name: str) -> None:
    """A diverged loss must not stop a page."""
    text = json.dumps(NOT_A_NUMBER[name].to_dict(), allow_nan=False)
    assert vega_charts.svg_of(figure(NOT_A_NUMBER[name])).startswith("<svg")
    assert "Infinity" not in text


def figure(chart: chart_axes.AnyChart) -> ChartFigure:
    return ChartFigure("name", "title", "words", chart, text_table("", ("a",), []))


@pytest.mark.parametrize("name", CHARTS)
def test_charts_can_be_drawn_without_a_browser(name: str) -> None:
    found = vega_charts.svg_of(figure(CHARTS[name]))
    assert found.startswith("<svg")
    assert "aria-label" in found


def test_values_of_a_sweep_are_ticks_in_their_order() -> None:
    axis = CHARTS["sweep"].to_dict()["layer"][0]["encoding"]["x"]["axis"]
    assert axis["values"] == [1, 4]


@pytest.mark.parametrize(
    ("ends", "expected"), [([0, 2e-5], ".1~e"), ([0, 0.5], "~g"), ([-3e7, 0], ".1~e")]
)
def test_ticks_have_few_digits(ends: list[float], expected: str) -> None:
    assert chart_axes.number_format(ends) == expected
