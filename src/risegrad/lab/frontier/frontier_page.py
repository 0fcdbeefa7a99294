"""A found frontier as a page, as lines for a terminal and as a cell of a notebook."""

from __future__ import annotations

import html as escaping
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from risegrad.common.atomic_files import write_text
from risegrad.common.intervals import Spread, spread
from risegrad.lab.frontier.found_frontier import BestSetting, FoundFrontier
from risegrad.lab.frontier.frontier_curves import SweepSetting
from risegrad.lab.report.builder import QUESTION, RULES
from risegrad.lab.report.figures import BAND, DEVIATION, bands_of, frontier_point
from risegrad.lab.report.methods import SectionFrontier, equal_table
from risegrad.pages.frontier_chart import BETTER, FrontierPoint, frontier
from risegrad.pages.looks import Palette
from risegrad.pages.page import (
    Block,
    ChartFigure,
    Fold,
    ItemList,
    Page,
    Paragraph,
    Part,
    html,
    save_figures,
    svg_of,
)
from risegrad.pages.tables import Column, Line, Section, Table, TableCell, spread_cell
from risegrad.pages.text import plural, visible, visible_lines

NAME = "frontier"
WORDS = (
    "Learned is the score on new data after training; forgotten is what was lost on the data that "
    "must be kept, in points. A line joins the settings of one method from its smallest rate to "
    "its largest."
)
MEASURES = (
    "New: the accuracy on new data right after training on them, in percent. Fgt: forgetting, the "
    "points that the data to keep lost until the end."
)
SEVERAL = " Where a share was varied too, there is a line for each rate."


def write(found: FoundFrontier, out: Path) -> FoundFrontier:
    """The page and the figure in ``out``; the same frontier, which knows where they are."""
    drawn = save_figures([figure(found)], out)
    path = out / f"{NAME}.html"
    write_text(path, html(page(found)))
    image = next(file for file in drawn if file.suffix == ".png")
    return replace(found, files={"page": str(path), "figure": str(image)})


def figure(found: FoundFrontier) -> ChartFigure:
    """Forgetting against learning, a curve for each method."""
    curves = found.frontier.curves
    points = [_point(setting) for curve in curves.values() for setting in curve.settings]
    bands = list(bands_of(found.frontier))
    several = SEVERAL if any(point.line for point in points) else ""
    return ChartFigure(
        NAME,
        "Forgetting against learning",
        f"Forgetting against learning for {plural(len(curves), 'method')}. {BETTER}",
        frontier(points, Palette(curves), bands),
        settings_table(found),
        f"{BETTER} {WORDS}{several} {DEVIATION}{BAND if bands else ''}",
    )


def _point(setting: SweepSetting) -> FrontierPoint:
    learned, forgotten = _spread(setting, "learned"), _spread(setting, "forgotten")
    name, idle = setting.name.replace("=", " "), not setting.learned_something
    label = f"{setting.method}, {name}"
    return frontier_point(setting.method, label, learned, forgotten, name, idle, setting.line)


def _spread(setting: SweepSetting, of: str) -> Spread:
    found = spread([getattr(run, of) for run in setting.runs.values()])
    assert found is not None, "a setting has at least one run"
    return found


def _cell(setting: SweepSetting, of: str) -> TableCell | None:
    return spread_cell(_spread(setting, of), idle=not setting.learned_something)


def settings_table(found: FoundFrontier) -> Table:
    """Every setting: what it learned and forgot, and what is known at the end."""
    sections = []
    for curve in found.frontier.curves.values():
        lines = (
            Line(
                setting.name,
                tuple(_cell(setting, of) for of in ("learned", "forgotten", "final")),
            )
            for setting in curve.settings
        )
        sections.append(Section(curve.name, tuple(lines)))
    columns = (
        Column("Learned", better=1, explanation="score on new data after training, in percent"),
        Column("Forgotten", better=-1, explanation="points lost on what must be kept"),
        Column("At the end", better=1, explanation="old and new data together, in percent"),
    )
    caption = "Every setting: mean ± standard deviation over seeds"
    return Table(caption, "Setting", columns, tuple(sections))


def _equal(found: FoundFrontier) -> Table | None:
    return equal_table("this search", [SectionFrontier("", found.frontier)])


def page(found: FoundFrontier) -> Page:
    """One sentence, one figure, one table, and the lines to use what was best."""
    equal = _equal(found)
    blocks: list[Block] = [Paragraph(spelled(found), "note"), figure(found)]
    if found.remarks:
        blocks.append(ItemList("What to know", found.remarks, "warning"))
    blocks += [equal] if equal else []
    if best := _best(found):
        blocks.append(replace(best.use, title=f"{best.use.title}: {best}"))
    details = Fold("Every setting", (settings_table(found),))
    return Page(
        found.title,
        (Part("", tuple(blocks), QUESTION, found.sentence), Part("Details", (details,))),
        f"{plural(len(found.records), 'run')}",
    )


def spelled(found: FoundFrontier) -> str:
    """What the abbreviations mean, said where a reader meets them first."""
    labels = " ".join(found.frontier.curves)
    used = (f"{name}: {words}." for name, words in RULES.items() if name in labels.split())
    return " ".join(filter(None, (MEASURES, *used, found.untrained)))


def _best(found: FoundFrontier) -> BestSetting | None:
    try:
        return found.winner
    except ValueError:
        return None


def text(found: FoundFrontier) -> str:
    """The sentence, the table, the lines of code and the files, for a terminal."""
    return "\n".join(_lines(found))


def _lines(found: FoundFrontier) -> Iterator[str]:
    table = _equal(found) or settings_table(found)
    yield from (spelled(found), "")
    yield from (visible(table.caption), *table.plain(), *map(visible, table.notes), "")
    yield from (*map(visible, found.remarks), visible(found.sentence), "")
    if best := _best(found):
        lines = (f"    {visible_lines(line)}".rstrip() for line in best.code)
        yield from (f"{best.use.title}: {visible(str(best))}", *lines, "")
    if found.files:
        yield f"figure: {found.files['figure']}; page: {found.files['page']}"


def notebook(found: FoundFrontier) -> str:
    """The sentence, the figure and the remarks as HTML."""
    remarks = "".join(f"<li>{escaping.escape(visible(r))}</li>" for r in found.remarks)
    listed = f"<ul>{remarks}</ul>" if remarks else ""
    return f"<p>{escaping.escape(found.sentence)}</p>{svg_of(figure(found))}{listed}"
