"""The report as one HTML file that needs nothing else: no network, no other file.

Only the two assets of this package may act: the content security policy names them by their hash,
so that even text which slipped through the escaping could not run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from importlib.resources import files
from itertools import count

from risegrad.lab.report.findings import Finding
from risegrad.lab.report.html_table import html_table
from risegrad.lab.report.markup import Markup, joined, tag
from risegrad.lab.report.numbers import numbers
from risegrad.lab.report.plots.frontier import frontier_figure
from risegrad.lab.report.plots.heat_map import heat_map, shade_range
from risegrad.lab.report.plots.queries import query_figures, sweeps
from risegrad.lab.report.plots.stream import stream_figure
from risegrad.lab.report.provenance import notes, run_table, summary_line
from risegrad.lab.report.report import PAPER_CAUTION, Chapter, Report
from risegrad.lab.report.scores import score_names
from risegrad.lab.report.tables import Table
from risegrad.lab.report.text import for_script, plural

TITLE = "RISE report"
LEGEND = (
    "Avg, Last and Fgt are those of the paper for the record's domain; New is the accuracy on each "
    "task right after learning it. ± is the sample standard deviation over seeds. Bold is the best "
    "mean of a column, underlined the second, over all sections. A column title sorts: up, down, "
    "then the original order."
)
MOST_MAPS = 12
"""With more rows than this, the heat maps of an experiment start folded."""


def page(report: Report) -> str:
    style, script = _asset("report.css"), _asset("report.js")
    identities = (f"t{number}" for number in count(1))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(style, script)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", TITLE),
        tag("link", rel="icon", href="data:,"),
        tag("style", style),
    )
    data = Markup(for_script(numbers(report)))
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#results", class_="skip"),
        _header(report),
        tag("main", *_main(report, identities), id="results", tabindex="-1"),
        _footer(),
        tag("script", data, type="application/json", id="report-data"),
        tag("script", script),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> Markup:
    path = files("risegrad.lab.report").joinpath("assets", name)
    return Markup(path.read_text(encoding="utf-8"))


def _policy(style: str, script: str) -> str:
    def source(text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _header(report: Report) -> Markup:
    runs = sum(len(experiment.runs()) for experiment in report.experiments)
    lead = f"{plural(len(report.chapters), 'experiment')}, {plural(runs, 'run')}"
    tools = tag(
        "div",
        tag("button", "Dark", type="button", id="theme", aria_pressed="false"),
        tag("button", "Numbers (JSON)", type="button", id="download"),
        class_="tools",
    )
    links = [("Beside the paper", "#paper")] if report.paper else []
    links += [(e.name, f"#e{i}") for i, e in enumerate(report.experiments, 1)]
    links += [("Runs", "#runs")]
    entries = (tag("li", tag("a", name, href=target)) for name, target in links)
    return tag(
        "header",
        tools,
        tag("h1", TITLE),
        tag("p", lead, class_="lead"),
        tag("nav", tag("ul", *entries), aria_label="Contents"),
        _warning("Files left out", report.left_out),
        _warning("How runs became rows", report.remarks),
    )


def _warning(title: str, messages: tuple[str, ...]) -> Markup | None:
    if not messages:
        return None
    items = (tag("li", message) for message in messages)
    return tag("section", tag("h2", title), tag("ul", *items), class_="warning", aria_label=title)


def _main(report: Report, identities: Iterator[str]) -> Iterator[Markup]:
    if report.paper:
        yield tag(
            "section",
            tag("h2", "Beside the paper"),
            tag("p", PAPER_CAUTION, class_="lead"),
            *(html_table(table, next(identities)) for table in report.paper),
            id="paper",
        )
    for position, chapter in enumerate(report.chapters, 1):
        yield tag("section", *_chapter(chapter, identities), id=f"e{position}")
    said = notes(report.experiments)
    yield tag(
        "section",
        tag("h2", "Runs"),
        _folded(
            "Every run with its seed, time and commit", run_table(report.experiments), identities
        ),
        tag("h3", "Notes of the runs") if said else None,
        tag("ul", *(tag("li", note) for note in said), class_="notes") if said else None,
        id="runs",
    )


def _chapter(chapter: Chapter, identities: Iterator[str]) -> Iterator[Markup]:
    experiment = chapter.experiment
    yield tag("h2", experiment.name)
    yield tag("p", summary_line(experiment), class_="lead")
    yield tag("h3", "Results")
    yield html_table(chapter.results, next(identities))
    if chapter.scores:
        yield html_table(chapter.scores, next(identities))
    yield tag("h3", "Compared with the baseline")
    if chapter.differences:
        yield tag("div", *map(_finding, chapter.findings), class_="findings")
    yield tag("p", chapter.caveat, class_="note")
    if chapter.compared:
        yield html_table(chapter.compared, next(identities))
    yield tag("h3", "Plots")
    yield tag("div", *_plots(chapter, identities), class_="grid")
    yield tag("h3", "Accuracy matrices, mean over seeds")
    yield _maps(chapter, identities)
    if chapter.costs:
        yield tag("h3", "Costs")
        yield html_table(chapter.costs, next(identities))
    if chapter.more:
        yield tag("h3", "More tables")
    for table in chapter.more:
        yield _folded(table.caption, table, identities)


def _finding(found: Finding) -> Markup:
    sentences = found.sentences or ("none",)
    items = (tag("li", sentence) for sentence in sentences)
    heading = tag("h4", found.heading)
    return tag("section", heading, tag("ul", *items), class_=f"finding {found.verdict}")


def _plots(chapter: Chapter, identities: Iterator[str]) -> Iterator[Markup]:
    experiment = chapter.experiment
    figures = [
        *(stream_figure(experiment, s, next(identities)) for s in score_names(experiment)),
        frontier_figure(experiment, next(identities)),
        *(f for of, rows in sweeps(experiment) for f in query_figures(rows, of, identities)),
    ]
    yield from (figure for figure in figures if figure)


def _maps(chapter: Chapter, identities: Iterator[str]) -> Markup:
    experiment = chapter.experiment
    scores = score_names(experiment)
    folds = []
    for position, score in enumerate(scores):
        shades = shade_range(experiment, score)
        maps = (heat_map(row, score, shades, next(identities)) for row in experiment.rows)
        unfolded = position == 0 and len(experiment.rows) <= MOST_MAPS
        title = (
            f"{score}, sessions downward, tasks to the right; "
            f"shades from {shades[0]:.0f} % (light) to {shades[1]:.0f} % (full)"
        )
        grid = tag("div", *maps, class_="grid small")
        folds.append(tag("details", tag("summary", title), grid, open=unfolded))
    return joined(*folds)


def _folded(title: str, table: Table, identities: Iterator[str]) -> Markup:
    return tag("details", tag("summary", title), html_table(table, next(identities)))


def _footer() -> Markup:
    return tag("footer", tag("p", LEGEND))
