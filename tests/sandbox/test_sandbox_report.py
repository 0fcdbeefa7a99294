"""A whole small run: the record, its determinism, the figures, the summary."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from PIL import Image

from risegrad.sandbox import quadratic_frontier
from risegrad.sandbox.figures.figure_files import FIGURES, draw_all
from risegrad.sandbox.figures.figure_style import style
from risegrad.sandbox.sandbox_report import comparisons, deviation_ratio, record
from risegrad.sandbox.sandbox_run import STAGES, Results, run
from risegrad.sandbox.sandbox_settings import SandboxSettings
from risegrad.sandbox.sandbox_summary import summary

SMALL = SandboxSettings(d=8, q=2, samples=640, large_d=16, block=4, steps=5)


@pytest.fixture(scope="module", autouse=True)
def _short_ladder() -> Iterator[None]:
    """Equal progress is measured elsewhere; hundreds of steps for each run here only take time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quadratic_frontier, "STEP_LADDER", (8, 16))
        yield


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """What the run of ``results`` announced."""
    return []


@pytest.fixture(scope="module")
def results(_short_ladder: None, heard: list[str]) -> Results:
    return run(SMALL, heard.append)


@pytest.fixture(scope="module")
def content(results: Results) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(json.dumps(record(results), allow_nan=False))
    return parsed


def test_the_record_holds_what_the_paper_reports_beside_ours(content: dict[str, Any]) -> None:
    rows = {row["what"]: row for row in content["comparison"]}
    assert {name: row["paper"] for name, row in rows.items()} == {
        "relative eigenvalue error at 640 samples": 1.17e-2,
        "R^2 of the damage gap": 0.9999,
        "blockwise / global deviation at q=2": 0.79,
        "slope of the operator residual": None,
    }
    assert not any(row["same_settings"] for row in rows.values())
    assert all(isinstance(row["ours"], float) for row in rows.values())
    assert rows["slope of the operator residual"]["expected"] == -0.5


def test_the_numbers_compared_are_those_of_the_panels(
    content: dict[str, Any], results: Results
) -> None:
    panels = content["panels"]
    error, r_squared, ratio, slope = (row["ours"] for row in content["comparison"])
    assert error == panels["operator"]["relative_eigenvalue_errors"][0]
    assert r_squared == panels["gap"]["r_squared"]
    slopes = panels["operator"]["slopes"]
    assert slope == pytest.approx(sum(slopes) / len(slopes))
    points = [p for p in panels["deviation"] if p["q"] == 2 and p["sampler"] == "one-draw"]
    wide, narrow = (next(p for p in points if p["block"] == size) for size in (16, 4))
    assert ratio == narrow["measured"] / wide["measured"]
    assert deviation_ratio(results.deviations, 2)[2] == narrow["exact"] / wide["exact"]


def test_the_paper_is_compared_at_its_own_settings_only(results: Results) -> None:
    paper = dataclasses.replace(results, settings=SandboxSettings())
    assert all(row.same_settings for row in comparisons(paper))


def test_the_record_says_what_made_it(content: dict[str, Any]) -> None:
    assert content["kind"] == "risegrad.sandbox"
    assert content["schema"] == 1
    assert content["settings"] == dataclasses.asdict(SMALL)
    assert {"python", "torch", "numpy", "matplotlib", "risegrad"} <= set(content["versions"])
    assert max(content["closed_form_errors"].values()) < 1e-12
    even = content["blockwise_ratio_by_gradient"]["even (panel D)"]
    assert even == pytest.approx(content["comparison"][2]["expected"], rel=1e-12)
    assert [point["q"] for point in content["speed"]] == [1, 4, 16, 64]
    assert all(point["ratio"] > 0 for point in content["speed"])


def test_the_record_holds_every_rule_with_its_frontier(content: dict[str, Any]) -> None:
    courses = {course["subject"]: course for course in content["panels"]["trajectory"]}
    assert list(courses) == [
        "fo", "scaled-fo", "rise", "covariance-noise", "raw-zo", "rise, blocks of 4",
    ]  # fmt: skip
    for course in courses.values():
        assert len(course["forgetting"]) == SMALL.steps + 1
        assert course["forgetting"][0] == pytest.approx(0, abs=1e-12)
        quadratic_frontier = course["frontier"]
        assert (
            len(quadratic_frontier["rates"])
            == len(quadratic_frontier["progress"])
            == len(quadratic_frontier["forgetting"])
        )
        assert quadratic_frontier["progress"] == sorted(quadratic_frontier["progress"])
        simulated = course["simulated_progress"]
        distance = abs(simulated["mean"] - course["progress"][-1])
        assert distance <= 5 * simulated["standard_error"] + 1e-12


def test_the_record_holds_signal_and_deviation_of_every_point(content: dict[str, Any]) -> None:
    points = content["panels"]["sweep"]
    sizes = {(p["course"], p["d"], p["block"]) for p in points}
    dimensions = {("dimensions", d, d) for d in (2, 4, 8, 16)}
    blocks = {(course, 16, b) for course in ("blocks", "rotated blocks") for b in (2, 4, 8, 16)}
    assert sizes == dimensions | blocks
    assert {p["q"] for p in points} == {1, 2, 4, 16}
    assert len(points) == 4 * len(sizes)
    for point in points:
        assert point["samples"] == SMALL.samples // 8
        assert point["ratio"] == point["signal"] / point["deviation"]
        assert point["ratio_exact"] == point["signal_exact"] / point["deviation_exact"]
        assert 0 <= point["below_fo"] <= 1


def test_the_record_holds_what_informed_rules_gain(content: dict[str, Any]) -> None:
    informed = content["panels"]["informed"]
    names = [course["name"] for course in informed["courses"]]
    assert names == [
        "fo", "rise", "informed", "informed, top 2", "informed, wrong", "informed rise",
    ]  # fmt: skip
    for course in informed["courses"]:
        assert len(course["damage"]) == len(informed["dampings"])
        assert len(course["at_progress"]) == len(informed["targets"])
        assert course["progress"] == sorted(course["progress"])
    assert informed["courses"][0]["damage"] == [1.0] * len(informed["dampings"])


def timeless(results: Results) -> dict[str, Any]:
    return {name: part for name, part in record(results).items() if name != "speed"}


def test_equal_seeds_give_equal_records_and_others_do_not(results: Results) -> None:
    assert timeless(run(SMALL)) == timeless(results)
    other = timeless(run(dataclasses.replace(SMALL, seed=1)))["panels"]
    for name, panel in timeless(results)["panels"].items():
        assert panel != other[name], name


def test_progress_is_announced_once_per_stage(results: Results, heard: list[str]) -> None:
    assert results.settings == SMALL
    assert len(heard) == len(set(heard)) == STAGES


def test_figures_are_written_twice_each_and_change_no_settings(
    results: Results, tmp_path: Path
) -> None:
    before = dict(matplotlib.rcParams)
    written = draw_all(results, tmp_path)
    assert dict(matplotlib.rcParams) == before
    names = [f"{name}{suffix}" for name in FIGURES for suffix in (".png", ".svg")]
    assert [path.name for path in written] == names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)  # nothing left over
    for path in written[::2]:
        with Image.open(path) as image:
            assert image.width == 1400
            colours = image.convert("RGB").getcolors(1 << 24)
            assert colours is not None
            assert len(colours) > 20  # something is drawn
        assert path.stat().st_size < 200_000
    for path in written[1::2]:
        text = path.read_text()
        assert text.startswith("<?xml")
        assert text.rstrip().endswith("</svg>")
        assert "<dc:date>" not in text


def test_drawing_leaves_pyplot_alone() -> None:
    """In its own process: here other tests may have imported pyplot."""
    code = (
        "import sys, risegrad.sandbox.figures.figure_files;"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_smallest_problem_with_one_block_still_gives_every_panel() -> None:
    whole = run(dataclasses.replace(SMALL, d=2, q=64, large_d=4, block=4, steps=1))
    assert deviation_ratio(whole.deviations, 2)[0] == 1
    with style():
        drawn = {name: draw(whole) for name, draw in FIGURES.items()}
    panels = {name: len(figure.axes) for name, figure in drawn.items()}
    # Figure 1 has a colour bar, figures 2 and 4 have an enlargement in panel C.
    assert list(panels.values()) == [4, 4, 2, 4, 4, 6, 2]


def test_the_summary_shows_ours_the_papers_and_the_files(results: Results) -> None:
    text = summary(results, [Path("x/sandbox.json")])
    assert "d=8, q=2, 640 samples, seed 0, spectrum powerlaw:1" in text
    assert "1.17e-02 (other settings)" in text
    assert "wrote x/sandbox.json" in text
    assert "The paper does not give its spectrum" in text
    text.encode("ascii")  # a terminal without UTF-8 can show it
    assert max(map(len, text.splitlines())) <= 100
