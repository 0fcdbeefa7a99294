"""Charts: valid specifications, axes that fit, marks that differ, labels that do not collide."""

from __future__ import annotations

import json
import math
from itertools import combinations, pairwise

import pytest

from riselab.pages import charts
from riselab.pages.charts import (
    COLOURS,
    GROUND,
    MatrixCell,
    Palette,
    SeriesPoint,
    matrices,
    stream,
)
from riselab.pages.frontier_chart import FrontierBand, FrontierPoint, frontier
from riselab.pages.page import ChartFigure, svg_of
from riselab.pages.tables import text_table

PALETTE = Palette(["FO", "RISE"])
POINTS = [
    FrontierPoint("FO", 80.0, 30.0, "FO, high", "lr 0.1", 1.0, 40.0),
    FrontierPoint("FO", 60.0, 10.0, "FO, low", "lr 0.01", None, None),
    FrontierPoint("RISE", 70.0, 12.0, "RISE", idle=True),
]
CHARTS = {
    "frontier": frontier(POINTS, PALETTE),
    "stream": stream(
        [SeriesPoint("FO", "FO", t, 90.0 - t, 12.0, f"{t}") for t in (1, 2, 3)], PALETTE, "accuracy"
    ),
    "matrix": matrices(
        [MatrixCell(row, 1, 1, 50.0, "tip") for row in ("FO", "RISE")], "accuracy (%)"
    ),
    "drift": frontier(
        [FrontierPoint(m, 8.0 * k, 0.02 * k**2, "tip", f"lr {k}", 1.0, 0.5)
         for m in ("FO", "RISE") for k in (1, 5)],
        PALETTE, axes=("Learned", "Drift"), ratios=True, small=True,
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
    low, high = charts.domain(values, *bounds)
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


def test_curves_follow_the_order_of_the_sweep_and_end_with_their_name() -> None:
    assert [row["order"] for row in rows("frontier")] == [0, 1, 2]
    assert [row["name"] for row in rows("frontier", "labels")] == ["RISE", "FO"], "from the top"


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


def names(points: list[FrontierPoint]) -> list[str]:
    data = frontier(points, Palette(p.method for p in points)).to_dict()["datasets"]
    return [row["name"] for row in data.get("labels", [])]


def test_many_methods_are_named_by_the_legend_alone() -> None:
    points = [FrontierPoint(f"m{k}", 10.0 * k, 9.0 * (k % 3), "tip") for k in range(7)]
    assert sorted(names(points[:6])) == ["m0", "m1", "m2", "m3", "m4", "m5"]
    assert names(points) == []


def test_names_of_curves_that_end_together_do_not_cover_each_other() -> None:
    crowd = [FrontierPoint(f"method {k}", 50.0 + k / 99, 5.0 + k / 99, "tip") for k in range(4)]
    far = FrontierPoint("far", 90.0, 60.0, "tip")
    chart = frontier([*crowd, far], Palette(p.method for p in [*crowd, far])).to_dict()
    labels = chart["datasets"]["labels"]
    assert {row["name"] for row in labels} == {"far", *(p.method for p in crowd)}
    low, high = chart["layer"][0]["encoding"]["y"]["scale"]["domain"]
    lines = [row["dy"] - chart["height"] * (row["y"] - low) / (high - low) for row in labels]
    beside = sorted(at for at, row in zip(lines, labels, strict=True) if row["align"] == "left")
    assert len(beside) == 4
    assert min(b - a for a, b in pairwise(beside)) > 14


def test_seventy_two_names_have_different_marks_and_keep_them() -> None:
    names = [f"row {k}" for k in range(72)]
    palette = Palette([*names, "row 0"])
    assert len(palette) == 72
    assert len({(mark.colour, mark.shape) for mark in palette.values()}) == 72
    assert len({(palette[name].colour, palette[name].dash) for name in names[:36]}) == 36
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


def seen(colour: str, cones: list[list[float]]) -> list[float]:
    """A colour in OKLab (Ottosson 2020), in which equal distances look alike."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    shown = [min(max(value, 0.0), 1.0) for value in _times(cones, linear)]
    roots = [value ** (1 / 3) for value in _times(LMS, shown)]
    return _times(LAB, roots)


def _times(matrix: list[list[float]], vector: list[float]) -> list[float]:
    return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]


LMS = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
LAB = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]
EYES = {
    "usual": (0.09, [[1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    # Machado, Oliveira and Fernandes 2009, complete loss of one kind of cones.
    "deuteranopia": (0.04, [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "protanopia": (0.04, [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
}
"""The least distance of two colours, and what these eyes make of red, green and blue."""


@pytest.mark.parametrize("eyes", EYES)
def test_twelve_colours_can_be_told_apart(eyes: str) -> None:
    least, cones = EYES[eyes]
    found = [seen(colour, cones) for colour in COLOURS]
    assert len(found) == 12
    assert min(math.dist(a, b) for a, b in combinations(found, 2)) >= least


def test_lines_of_one_colour_have_different_dashes() -> None:
    names = [f"method {k}" for k in range(13)]
    points = [FrontierPoint(name, 50.0 + k, k, name) for k, name in enumerate(names)]
    drawn = json.dumps(frontier(points, Palette(names)).to_dict()["layer"][0]["encoding"])
    assert "[1, 0], [6, 3]]" in drawn


def test_what_is_no_number_draws_nothing() -> None:
    """A diverged loss must not stop a page."""
    chart = frontier([FrontierPoint("FO", 50.0, math.nan, "tip"), *POINTS], PALETTE)
    assert "Infinity" not in json.dumps(chart.to_dict(), allow_nan=False)
    assert svg_of(figure(chart)).startswith("<svg")


def test_equal_ratios_are_equal_distances_where_that_is_wanted() -> None:
    layers = CHARTS["drift"].to_dict()["layer"]
    scale = layers[0]["encoding"]["y"]["scale"]
    assert (scale["type"], scale["domain"]) == ("log", [0.01, 1.0])
    assert [row["low"] for row in rows("drift")] == [0.01] * 4, "cut where the axis ends"
    line = [row for row in rows("drift", "lines") if row["method"] == "FO"]
    assert [row["order"] for row in line] == list(range(9))
    assert (line[4]["x"], line[4]["y"]) == pytest.approx((24.0, 0.26)), "as curves are read"
    nothing = frontier([FrontierPoint("FO", 50.0, 0.0, "tip")], PALETTE, ratios=True)
    assert "type" not in nothing.to_dict()["layer"][0]["encoding"]["y"]["scale"]


def test_a_small_chart_names_its_curves_and_has_no_legend() -> None:
    spec = CHARTS["drift"].to_dict()
    assert [row["name"] for row in spec["datasets"]["labels"]] == ["FO", "RISE"]
    assert spec["width"] <= 400
    assert json.dumps(spec["layer"]).count('"legend": null') >= 2  # of colours and of shapes


def figure(chart: charts.AnyChart) -> ChartFigure:
    return ChartFigure("name", "title", "words", chart, text_table("", ("a",), []))


@pytest.mark.parametrize("name", CHARTS)
def test_charts_can_be_drawn_without_a_browser(name: str) -> None:
    found = svg_of(figure(CHARTS[name]))
    assert found.startswith("<svg")
    assert "aria-label" in found


@pytest.mark.parametrize("name", CHARTS)
def test_files_say_what_they_show(name: str) -> None:
    """In place of "Vega visualization"."""
    figure = ChartFigure(name, name, f"What {name} shows.", CHARTS[name], text_table("", [""], []))
    assert figure.spec()["description"] == f"What {name} shows."
