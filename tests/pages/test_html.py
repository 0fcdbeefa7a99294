"""Pages as HTML: text stays text wherever it stands, and nothing comes from outside."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest

from riselab.pages import page
from riselab.pages.charts import GROUND, Palette
from riselab.pages.frontier_chart import FrontierPoint, frontier
from riselab.pages.page import (
    ChartFigure,
    CodeBlock,
    Fold,
    ItemList,
    Page,
    Paragraph,
    Part,
    html,
    markdown,
)
from riselab.pages.tables import Column, Line, Section, Table, TableCell, ranked, text_table

BAD = "</script><script>hacked</script><img src=x onerror=y>\"'{{ 7 * 7 }}{% raw %}\u202e\x1b"


def bad_figure() -> ChartFigure:
    chart = frontier([FrontierPoint(BAD, 50.0, 5.0, BAD, BAD)], Palette([BAD]))
    return ChartFigure(BAD, BAD, BAD, chart, bad_table(), BAD)


def bad_table() -> Table:
    cell = TableCell(BAD, BAD, BAD, rank=1, verdict=BAD)
    section = Section(BAD, (Line(BAD, (cell, None), BAD),))
    return Table(BAD, BAD, (Column(BAD, 1, BAD), Column(BAD)), (section,), (BAD,))


def bad_page() -> Page:
    blocks = (
        bad_figure(), bad_table(), Paragraph(BAD, "note"), ItemList(BAD, (BAD,)),
        CodeBlock(BAD, (BAD, f"    {BAD}"), BAD),
        Fold(BAD, (bad_figure(),)),
    )  # fmt: skip
    warning = ItemList(BAD, (BAD,), "warning")
    return Page(BAD, (Part(BAD, blocks, BAD, BAD),), BAD, (warning,), ((BAD, BAD),))


def test_text_stays_text_in_every_kind_of_block() -> None:
    text = html(bad_page())
    ours = text[: text.index("<script>")]  # behind it are the library and the page's own script
    assert text.count("<script") == 2
    assert "<img" not in ours
    assert "{{ 7 * 7 }}" in ours.replace("&#39;", "'")  # not a template either
    assert "\u202e" not in ours
    assert "\x1b" not in ours
    assert not re.search(r"<[^>]* on[a-z]+=", re.sub(r'"[^"]*"', '""', ours))


def test_text_stays_text_in_markdown() -> None:
    text = markdown(bad_page())
    assert "###" not in text, "a fold of charts has nothing to show there"
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert "<" not in outside
    assert "\x1b" not in text


def test_lines_of_code_keep_their_spaces() -> None:
    lines = ("if a < b:", "    print('  x')", "", "\tdone()")
    text = html(Page("", (Part("", (CodeBlock("Use", lines),)),)))
    (shown,) = re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", text, re.DOTALL)
    assert unescape(shown) == "if a < b:\n    print('  x')\n\n        done()"
    assert "<h3" in text


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert CodeBlock("", ("a", "  b")).markdown() == "```python\na\n  b\n```"
    assert CodeBlock("", ("````",), "toml").markdown() == "`````toml\n````\n`````"


def test_the_library_cannot_end_its_element() -> None:
    assert "</script" not in page.vega_script().lower()
    assert "<!--" not in page.vega_script()


def test_two_figures_of_one_name_are_two_charts_of_the_page() -> None:
    text = html(bad_page())
    assert re.findall(r'class="plot" id="(f\d+)"', text) == ["f1", "f2"]
    assert '"f1":' in text
    assert '"f2":' in text


def test_the_library_is_bundled_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RISEGRAD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[str] = []

    class Converter:
        def javascript_bundle(self, snippet: str, vl_version: str) -> str:
            made.append(vl_version)
            return "window.vegaEmbed='</script>';"

    monkeypatch.setattr(page, "_converter", Converter)
    for _ in range(2):
        page.vega_script.cache_clear()
        assert page.vega_script() == "window.vegaEmbed='<\\/script>';"
    assert made == [page.VEGA_LITE]
    assert len(list((tmp_path / "risegrad").iterdir())) == 1
    page.vega_script.cache_clear()


def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "risegrad").write_text("a file where the folder should be")
    monkeypatch.delenv("RISEGRAD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    class Converter:
        def javascript_bundle(self, snippet: str, vl_version: str) -> str:
            return "made"

    monkeypatch.setattr(page, "_converter", Converter)
    page.vega_script.cache_clear()
    assert page.vega_script() == "made"
    page.vega_script.cache_clear()


def test_figures_are_saved_as_svg_and_png(tmp_path: Path) -> None:
    chart = frontier([FrontierPoint("FO", 50.0, 5.0, "tip")], Palette(["FO"]))
    table = text_table("Numbers", ("method", "New"), [("FO", "50")])
    figures = [ChartFigure(name, "title", "words", chart, table) for name in ("A / b", "a-b", BAD)]
    found = page.save_figures(figures, tmp_path / "new")
    names = [path.name for path in found]
    assert names[:4] == ["a-b.svg", "a-b.png", "a-b-2.svg", "a-b-2.png"]
    assert re.fullmatch(r"[a-z0-9-]+\.svg", names[4])
    assert (tmp_path / "new" / "a-b.svg").read_text().startswith("<svg")
    assert len(names) == 6, "small figures alone are also dark"
    assert (tmp_path / "new" / "a-b.png").read_bytes().startswith(b"\x89PNG")


def test_small_figures_are_saved_light_and_dark(tmp_path: Path) -> None:
    chart = frontier([FrontierPoint("FO", 50.0, 5.0, "tip")], Palette(["FO"]), small=True)
    table = text_table("Numbers", ("method", "New"), [("FO", "50")])
    page.save_figures([ChartFigure("a", "title", "words", chart, table, small=True)], tmp_path)
    light, dark = ((tmp_path / f"a{ending}.svg").read_text() for ending in ("", "-dark"))
    assert GROUND["light"] in light
    assert GROUND["dark"] in dark
    assert GROUND["light"] not in dark
    assert (tmp_path / "a-dark.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_page_has_the_same_bytes() -> None:
    assert html(bad_page()) == html(bad_page())


def test_cells_that_are_not_compared_are_never_best() -> None:
    """The place for a model that learned nothing: it forgets nothing, and that is no merit."""
    lines = [
        Line(str(value), (TableCell(str(value), order=value, compared=value > 0),))
        for value in (0.0, 3.0, 7.0)
    ]
    table = Table("", "", (Column("Fgt", better=-1),), (Section("", tuple(lines)),))
    (section,) = ranked(table).sections
    assert [line.cells[0].rank for line in section.lines if line.cells[0]] == [0, 1, 2]


def test_cells_that_begin_with_a_number_sort_by_it() -> None:
    table = text_table("", ("a", "b"), [("x", "12% of 3"), ("y", "none"), ("z", "")])
    orders = [line.cells[0].order for line in table.sections[0].lines if line.cells[0]]
    assert orders == [12.0, None, None]


def test_a_block_that_no_template_knows_is_refused() -> None:
    """Left out without a word, charts once vanished from every page."""
    with pytest.raises(TypeError, match=r"must be one of ChartFigure, .*got str"):
        html(Page("title", (Part("", ("not a block",)),)))  # type: ignore[arg-type]
