"""A whole small run: its determinism, its table, the figures."""

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pytest
import torch
from PIL import Image

from riselab.sandbox import trajectories
from riselab.sandbox.command import PAPERS, summary
from riselab.sandbox.figure_style import style
from riselab.sandbox.figures import FIGURES, draw_all
from riselab.sandbox.run import STAGES, Results, SandboxSettings, comparisons, deviation_ratio, run

SMALL = SandboxSettings(d=8, q=2, samples=640, large_d=16, block=4, steps=5)


@pytest.fixture(scope="module", autouse=True)
def _short_ladder() -> Iterator[None]:
    """Equal progress is measured elsewhere; hundreds of steps for each run here only take time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trajectories, "STEP_LADDER", (8, 16))
        yield


@pytest.fixture(scope="module")
def heard() -> list[str]:
    """What the run of ``results`` announced."""
    return []


@pytest.fixture(scope="module")
def results(_short_ladder: None, heard: list[str]) -> Results:
    return run(SMALL, heard.append)


def test_the_paper_s_numbers_stand_beside_those_of_the_panels(results: Results) -> None:
    rows = {row.what: row for row in comparisons(results)}
    error, r_squared, ratio, slope = list(rows.values())[:4]
    assert [row.paper for row in (error, r_squared, ratio, slope)] == [1.17e-2, 0.9999, 0.79, None]
    assert error.ours == results.plain.operator.eigenvalue_errors[0]
    assert r_squared.ours == results.plain.gap.r_squared
    assert slope.ours == pytest.approx(float(results.plain.operator.slopes.mean()))
    assert slope.exact == -0.5
    wide, narrow = (
        next(p.deviation for p in results.plain.deviations if p.q == 2 and p.block == size)
        for size in (16, 4)
    )
    assert ratio.ours == narrow.value / wide.value
    assert ratio.exact == narrow.exact / wide.exact


def test_the_table_says_what_is_forgotten_at_equal_progress(results: Results) -> None:
    rows = {row.what: row.ours for row in comparisons(results)}
    words = "forgetting over FO's at 50% progress, 5 steps"
    named = {curve.name: curve.at_progress for curve in results.informed.curves}
    for name in ("rise", "informed", "informed, matched"):
        assert rows[f"{words}: {name}"] == named[name] / named["fo"]  # type: ignore[operator]
    excess = {row.subject.name: row.excess[-1] for row in results.equal_progress}
    found = rows["forgetting over FO's at 50% progress, 16 steps: rise"]
    assert (16, found - 1) == pytest.approx(excess["rise"])
    fo, *_, matched = results.informed.curves
    assert fo.at_rate is not None
    assert matched.at_rate is not None
    for at, what in enumerate(("forgetting", "progress")):
        name = f"{what} over FO's at FO's rate, 5 steps: informed, matched"
        assert rows[name] == matched.at_rate[at] / fo.at_rate[at]


def test_equal_seeds_give_equal_results_and_others_do_not(results: Results) -> None:
    assert comparisons(run(SMALL)) == comparisons(results)
    other = run(dataclasses.replace(SMALL, seed=1))
    assert not torch.equal(other.plain.gap.measured, results.plain.gap.measured)
    for name in ("exposure", "sweep", "equal_progress", "informed"):
        assert getattr(other, name) != getattr(results, name), name


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
    code = "import sys, riselab.sandbox.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_smallest_problem_with_one_block_still_gives_every_panel() -> None:
    whole = run(dataclasses.replace(SMALL, d=2, q=64, large_d=4, block=4, steps=1))
    assert deviation_ratio(whole.plain.deviations, 2)[0] == 1
    with style():
        drawn = {name: draw(whole) for name, draw in FIGURES.items()}
    panels = {name: len(figure.axes) for name, figure in drawn.items()}
    # Figure 1 has a colour bar, figures 2 and 4 have an enlargement in panel C.
    assert list(panels.values()) == [4, 4, 2, 4, 4, 6, 2]


def test_the_summary_shows_ours_and_the_papers(results: Results) -> None:
    rows = comparisons(results)
    text = summary(SMALL, rows)
    assert "d=8, q=2, 640 samples, seed 0, spectrum powerlaw:1" in text
    assert "of other settings" in text
    assert "1.17e-02" in text
    assert "of other settings" not in summary(SandboxSettings(), rows)
    assert PAPERS.items() <= dataclasses.asdict(SandboxSettings()).items()
    text.encode("ascii")  # a terminal without UTF-8 can show it
    assert max(map(len, text.splitlines())) <= 100
