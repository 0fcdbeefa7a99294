"""A diagnosis as a page: the decision, the rules side by side, then the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import takewhile

from risegrad.curvature.estimates.estimated import Estimate
from risegrad.foresight.diagnosis_report import BlockReport, Diagnosis
from risegrad.foresight.diagnosis_text import (
    BLOCK_HEAD,
    FORECAST_HEAD,
    advice,
    block_cells,
    forecast_cells,
    head_lines,
    rule_rows,
)
from risegrad.foresight.recommendation import in_short
from risegrad.pages.charts.bar_chart import Bar, bars
from risegrad.pages.page_blocks import (
    Block,
    ChartFigure,
    Fold,
    ItemList,
    Page,
    Paragraph,
    Part,
    Row,
)
from risegrad.pages.page_html import html
from risegrad.pages.page_tables import Table, text_table
from risegrad.pages.palette import Palette

QUESTION = "Which rule hurts least what the model knows, for the same progress?"
RULE_HEAD = ("rule", "damage", "deviation", "loss change")
MOST_BLOCKS = 20
FO, SCALED, RISE, NOISE = "FO", "scaled FO", "RISE", "covariance noise"
ALONG, AVERAGE, SHAPING, COUPLING = "lambda_dir", "lambda_avg", "S", "C"
PALETTE = Palette([FO, SCALED, RISE, NOISE, ALONG, AVERAGE, SHAPING, COUPLING])
GLOSSARY = (
    ("Gamma", "FO's damage over the rule's at equal first-order progress"),
    ("lr factor", "what to multiply the learning rate by to keep FO's progress"),
    ("by its memory", "the share of FO's damage that the step's own memory foretells"),
    ("FO", "first-order: a step along the exact gradient"),
    ("scaled FO", "the exact gradient, shortened to the mean progress of RISE"),
    ("damage", "predicted second-order change of the historical loss by one step"),
    ("deviation", "standard deviation of the damage over draws of one step"),
    ("lambda_dir", "curvature along the block's gradient"),
    ("lambda_avg", "curvature averaged over directions: the damage density"),
    ("S", "what shaping removes inside the block"),
    ("C", "sensitivity to couplings with other blocks"),
    ("R", "how much of the signal lies in flat directions, between two bounds"),
    ("±", "one standard error of the estimate"),
)


def diagnosis_page(found: Diagnosis, title: str = "Diagnosis before training") -> str:
    """A diagnosis as one HTML file."""
    return html(Page(title, diagnosis_parts(found), found.subject, glossary=GLOSSARY))


def diagnosis_parts(found: Diagnosis) -> tuple[Part, ...]:
    """The first has no title, because it comes right below the page's."""
    rules: tuple[Block, ...] = (
        Row(tuple(_rule_figures(found))), *_forecast_tables(found), _rule_table(found)
    )  # fmt: skip
    words = ItemList("In words", (*found.verdicts, advice(found)))
    blocks = (Row(tuple(_block_figures(found))), Fold("Every block", (_block_table(found),)))
    return (
        Part("", rules, QUESTION, found.decision),
        Part("Verdicts", (words, *(Paragraph(line, "note") for line in head_lines(found)))),
        Part("Blocks", blocks),
    )


def diagnosis_fragment(found: Diagnosis) -> str:
    """For a notebook: the decision and the rules, without any script."""
    rows = [FORECAST_HEAD, *map(forecast_cells, found.rules)] if found.rules else []
    lines = "".join(f"<tr>{_cells(row, 'td' if n else 'th')}</tr>" for n, row in enumerate(rows))
    words = "".join(f"<li>{escape(verdict)}</li>" for verdict in found.verdicts)
    return (
        f"<p><strong>{escape(found.decision)}</strong></p><table>{lines}</table>"
        f"<details><summary>In words</summary><ul>{words}</ul></details>"
    )


def _cells(row: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)


def _rule_table(found: Diagnosis) -> Table:
    return text_table("The rules at this step size", RULE_HEAD, rule_rows(found))


def _forecast_tables(found: Diagnosis) -> Iterator[Table]:
    if found.rules:
        title = "The rules at equal first-order progress"
        yield text_table(title, FORECAST_HEAD, map(forecast_cells, found.rules))
    if found.rows:
        title = "The experiment's rows as they run, at equal first-order progress"
        yield text_table(title, FORECAST_HEAD, map(forecast_cells, found.rows))


def _rule_figures(found: Diagnosis) -> Iterator[ChartFigure]:
    t = found.totals
    rise, noise = (t.rise, t.rise_std), (t.covariance_noise, t.covariance_noise_std)
    pairs: dict[str, dict[str, tuple[Estimate, Estimate | None]]] = {
        "At equal progress": {SCALED: (t.scaled_fo, None), RISE: rise, NOISE: noise},
        "At equal step length": {FO: (t.fo, None), RISE: rise, NOISE: noise},
    }
    if found.rules:
        yield _share_figure(found)
        del pairs["At equal progress"]
        informed = [rule for rule in found.rules if rule.foretold is not None]
        pairs["At equal step length"] |= {rule.name: (rule.damage, None) for rule in informed}
    for title, rules in pairs.items():
        rows = [_rule_bar(name, *values) for name, values in rules.items()]
        yield ChartFigure(
            f"diagnosis-{title}", f"{title}: predicted damage, lower is better",
            f"Bars of the predicted damage of {len(rows)} rules. {title}; lower is better.",
            bars(rows, _palette(found), "damage of one step, lower is better"),
            _rule_table(found), "Thin lines: the standard deviation over draws of one step.",
        )  # fmt: skip


def _share_figure(found: Diagnosis) -> ChartFigure:
    """Damage per progress of every rule, FO's being 1."""
    rows = [
        Bar(rule.name, rule.name, rule.share.value, rule.share.value - rule.share.error,
            rule.share.value + rule.share.error, f"{rule.name}: {in_short(rule.share)} of FO's")
        for rule in found.rules
    ]  # fmt: skip
    title = "At equal progress: predicted damage in parts of FO's, lower is better"
    return ChartFigure(
        "diagnosis-equal-progress", title, f"Bars of {len(rows)} rules. {title}.",
        bars(rows, _palette(found), "damage at equal progress, FO = 1"),
        next(_forecast_tables(found)), "Thin lines: one standard error.",
    )  # fmt: skip


def _palette(found: Diagnosis) -> Palette:
    """One colour per rule on the whole page."""
    names = [FO, SCALED, RISE, NOISE, *(rule.name for rule in found.rules)]
    return Palette([*dict.fromkeys(names)])


def _rule_bar(name: str, damage: Estimate, deviation: Estimate | None) -> Bar:
    spread = deviation.value if deviation else 0.0
    tip = f"{name}: {damage}" + (f", deviation of one draw {deviation}" if deviation else "")
    value = damage.value
    return Bar(name, name, value, value - spread, value + spread, tip)


def _block_figures(found: Diagnosis) -> Iterator[ChartFigure]:
    shown = _largest(found.blocks)
    labels = dict(zip((b.name for b in shown), short_names([b.name for b in shown]), strict=True))
    kinds: dict[str, dict[str, Callable[[BlockReport], Estimate | None]]] = {
        "Curvature along the gradient and on average": {
            ALONG: lambda block: block.lambda_dir, AVERAGE: lambda block: block.lambda_avg},
        "Shaping score and coupling score": {
            SHAPING: lambda block: block.S, COUPLING: lambda block: block.C},
    }  # fmt: skip
    for title, values in kinds.items():
        rows = [
            _block_bar(labels[block.name], block, name, value)
            for block in shown for name, of in values.items() if (value := of(block))
        ]  # fmt: skip
        yield ChartFigure(
            f"diagnosis-{title}", title, f"Bars for {len(shown)} blocks. {title}.",
            bars(rows, PALETTE, " and ".join(values)), _block_table(found),
            "Thin lines: one standard error. Blocks where shaping changes most.",
        )  # fmt: skip


def _block_bar(label: str, block: BlockReport, name: str, value: Estimate) -> Bar:
    low, high = value.value - value.error, value.value + value.error
    return Bar(label, name, value.value, low, high, f"{block.name}: {name} {value}")


def short_names(names: Sequence[str]) -> list[str]:
    """Without what all have in common at the start and at the end, in whole words.

    >>> short_names(["model.blocks.0.fc1.default.weight", "model.blocks.1.fc2.default.weight"])
    ['0.fc1', '1.fc2']
    """
    words = [name.split(".") for name in names]
    start, end = _common(words), _common([row[::-1] for row in words])
    if any(len(row) <= start + end for row in words):
        return list(names)
    return [".".join(row[start : len(row) - end]) for row in words]


def _common(rows: Sequence[Sequence[str]]) -> int:
    """How many words all rows begin with."""
    columns = zip(*rows, strict=False)
    return sum(1 for _ in takewhile(lambda column: len(set(column)) == 1, columns))


def _largest(blocks: Sequence[BlockReport]) -> list[BlockReport]:
    return sorted(blocks, key=lambda block: -abs(block.S.value))[:MOST_BLOCKS]


def _block_table(found: Diagnosis) -> Table:
    """Blocks with the same numbers share a line."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for block in found.blocks:
        name, *cells = block_cells(block)
        alike.setdefault(tuple(cells), []).append(name)
    rows = (
        (names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} alike", *cells)
        for cells, names in alike.items()
    )
    return text_table("Blocks", BLOCK_HEAD, rows)
