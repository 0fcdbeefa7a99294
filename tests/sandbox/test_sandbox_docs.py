"""The numbers in docs/sandbox.md are those of the record beside it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from risegrad.sandbox.sandbox_report import Comparison
from risegrad.sandbox.sandbox_settings import SandboxSettings
from risegrad.sandbox.sandbox_summary import _row

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join((DOCS / "sandbox.md").read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((DOCS / "records" / "sandbox.json").read_text())
    return parsed


def test_the_record_is_of_a_default_run(content: dict[str, Any]) -> None:
    assert SandboxSettings(**content["settings"]) == SandboxSettings()


def test_the_table_is_the_records(page: str, content: dict[str, Any]) -> None:
    assert len(content["comparison"]) == 4
    for row in content["comparison"]:
        cells = " | ".join(_row(Comparison(**row))).replace("+-", "±")
        assert f"| {cells} |" in page


def swept(content: dict[str, Any], course: str, block: int, q: int = 4) -> dict[str, Any]:
    """A point of figure 6."""
    key = {"course": course, "block": block, "q": q}
    found = (p for p in content["panels"]["sweep"] if key.items() <= p.items())
    point: dict[str, Any] = next(found)
    return point


def quoted(content: dict[str, Any]) -> list[str]:
    """Every other number of the page, with words around it, as the record has it."""
    panels = content["panels"]
    courses = {course["subject"]: course for course in panels["trajectory"]}
    fo, rise = courses["fo"], courses["rise"]
    excess = {row["subject"]: row["excess"] for row in panels["equal_progress"]}
    blocked = excess["rise, blocks of 16"]
    even, mean, spread, most, least = content["blockwise_ratio_by_gradient"].values()
    zo = next(point for point in panels["exposure"]["zo"] if point["q"] == 4)
    wide, narrow = (
        next(p for p in panels["rotated_deviation"] if p["q"] == 2 and p["block"] == block)
        for block in (256, 16)
    )
    small, whole = (swept(content, "dimensions", size) for size in (16, 256))
    along, across = (swept(content, name, 16) for name in ("blocks", "rotated blocks"))
    one, many = (
        [swept(content, "rotated blocks", block, q)["ratio_exact"] for block in (256, 16)]
        for q in (1, 16)
    )
    speed = [point["ratio"] for point in content["speed"]]
    error = panels["operator"]["relative_errors_in_eigenbasis"][0]
    return [
        f"the error is {error:.1e}",
        f"the exact ratio is {even:.3f} for the even gradient",
        f"{mean:.3f} ± {spread:.3f} over gradients with normal entries",
        f"{least:.3f} along the least curved direction and {most:.1f} along the most",
        f"which is {zo['tau']:.1%} at q=4 (measured: {zo['closed']:.1%})",
        f"q=2 is {narrow['exact'] / wide['exact']:.3f}, "
        f"measured {narrow['measured'] / wide['measured']:.3f}",
        f"({rise['forgetting'][-1]:.3f} against {fo['forgetting'][-1]:.3f} of",
        f"({rise['progress'][-1]:.1%} against {fo['progress'][-1]:.1%} of the new-task loss",
        f"RISE forgets {excess['rise'][1]:.1%} more than FO in 16 steps and "
        f"{excess['rise'][-1]:.1%} more in 256",
        f"in blocks of 16, {blocked[1]:.1%} and {blocked[-1]:.1%}",
        f"the signal grows from {small['signal_exact']:.3f} to {whole['signal_exact']:.3f} and the "
        f"deviation falls from {small['deviation_exact']:.3f} to {whole['deviation_exact']:.3f}",
        f"a signal of {along['signal_exact']:.3f} and a deviation of "
        f"{along['deviation_exact']:.3f}, both worse",
        f"Blocks of 16 have a signal of {across['signal_exact']:.3f} and a deviation of "
        f"{across['deviation_exact']:.3f}: the ratio to one another rises from one block's "
        f"{whole['ratio_exact']:.2f} to {across['ratio_exact']:.2f} at q=4, from {one[0]:.2f} to "
        f"{one[1]:.2f} at q=1, and falls from {many[0]:.2f} to {many[1]:.2f} at q=16",
        f"is {max(content['closed_form_errors'].values()):.1e} (`closed_form_errors`)",
        f"{speed[0]:.1f} times as fast at q=1, {speed[1]:.1f} at q=4, "
        f"{speed[2]:.0f} at q=16, {speed[3]:.0f} at q=64",
        f"took {content['run']['cpu_seconds']} seconds of processor time",
    ]


def quoted_of_informed(informed: dict[str, Any]) -> list[str]:
    """The numbers of figure 6."""
    _, rise, exact, top, wrong, random = (course["damage"][0] for course in informed["courses"])
    half, most = ([course["at_progress"][i] for course in informed["courses"]] for i in range(2))
    least = informed["least"]["at_progress"]
    return [
        f"at little damping ({informed['dampings'][0]:g}): exact {exact:.3f}, "
        f"top 8 {top:.3f}, wrong {wrong:.3f}",
        f"RISE does {rise:.2f} times FO's damage, informed RISE {random:.2f} times",
        f"damping {informed['frontier_damping']}. At {informed['targets'][0]:.0%} progress",
        "FO forgets {:.3f}, RISE {:.3f}, exact {:.3f}, top 8 {:.3f}, wrong {:.3f}, "
        "informed RISE {:.3f}".format(*half),
        f"at {informed['targets'][1]:.0%} it is "
        + "{:.3f}, {:.3f}, {:.3f}, {:.3f}, {:.3f} and {:.3f}".format(*most),
        f"of `f + c L`: {least[0]:.3f} and {least[1]:.3f}",
    ]


def test_the_text_quotes_the_record(page: str, content: dict[str, Any]) -> None:
    expected = quoted(content) + quoted_of_informed(content["panels"]["informed"])
    missing = [words for words in expected if words not in page]
    assert not missing


def test_every_figure_is_shown_and_small(page: str, content: dict[str, Any]) -> None:
    shown = re.findall(r"\]\(figures/(figure-[^)]+\.png)\)", page)
    assert shown == [name for name in content["figures"] if name.endswith(".png")]
    for name in shown:
        assert (DOCS / "figures" / name).stat().st_size < 200_000
