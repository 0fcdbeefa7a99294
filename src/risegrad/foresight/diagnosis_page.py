"""A diagnosis as a page: the decision, the rules side by side, then the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape

from risegrad.curvature.estimates.estimated import Estimate
from risegrad.foresight.block_lines import block_table, short_names
from risegrad.foresight.diagnosis_report import BlockReport, Diagnosis
from risegrad.foresight.diagnosis_text import advice, head_lines, rule_rows, shown
from risegrad.foresight.forecast_tables import (
    AT_STEP_SIZE,
    ForecastTable,
    forecast_tables,
    rows_left_out,
)
from risegrad.foresight.recommendation import in_short
from risegrad.pages.charts.bar_chart import Bar, bars
from risegrad.pages.looks import Palette
from risegrad.pages.page import (
    Block,
    ChartFigure,
    Fold,
    ItemList,
    Page,
    Paragraph,
    Part,
    Row,
    html,
)
from risegrad.pages.tables import Table, text_table

QUESTION = "Which rule hurts least what the model knows, for the same progress?"
RULE_HEAD = ("rule", "damage", "deviation", "loss change")
MOST_BLOCKS = 20
FO, SCALED, RISE, NOISE = "FO", "scaled FO", "RISE", "covariance noise"
ALONG, AVERAGE, SHAPING, COUPLING = "lambda_dir", "lambda_avg", "S", "C"
GLOSSARY = (
    ("Gamma", "the plain step's damage over the rule's at equal first-order progress"),
    ("lr factor", "what to multiply the learning rate by to keep the plain step's progress"),
    ("by its memory", "the share of the plain damage that the step's own memory foretells"),
    ("plain", "the optimizer's step without a rule: FO, or Adam's own step"),
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
    tables = [_forecast_table(table) for table in forecast_tables(found)]
    notes = [Paragraph(line, "note") for line in rows_left_out(found)]
    rules: tuple[Block, ...] = (
        Row(tuple(_rule_figures(found))), *tables, *notes, _rule_table(found)
    )  # fmt: skip
    words = ItemList("In words", (*found.verdicts, advice(found)))
    lines = filter(None, [found.subject, *head_lines(found)])
    every = block_table(found.blocks)
    blocks = (Row(tuple(_block_figures(found))), Fold("Numbers of the blocks", (every,)))
    return (
        Part("", rules, QUESTION, found.decision),
        Part("Verdicts", (words, *(Paragraph(line, "note") for line in lines))),
        Part("Blocks", blocks),
    )


def diagnosis_fragment(found: Diagnosis) -> str:
    """For a notebook: the decision and the rules, without any script."""
    tables = "".join(map(_plain_table, forecast_tables(found)))
    words = "".join(f"<li>{escape(verdict)}</li>" for verdict in found.verdicts)
    return (
        f"<p><strong>{escape(found.decision)}</strong></p>{tables or '<table></table>'}"
        f"<details><summary>In words</summary><ul>{words}</ul></details>"
    )


def _plain_table(table: ForecastTable) -> str:
    rows = [table.head, *table.cells]
    lines = "".join(f"<tr>{_cells(row, 'td' if n else 'th')}</tr>" for n, row in enumerate(rows))
    return f"<table><caption>{escape(table.caption)}</caption>{lines}</table>"


def _cells(row: Sequence[str], tag: str) -> str:
    return "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)


def _rule_table(found: Diagnosis) -> Table:
    caption = AT_STEP_SIZE.format(step=found.step)
    return text_table(caption, RULE_HEAD, rule_rows(found))


def _forecast_table(table: ForecastTable) -> Table:
    return text_table(table.caption, table.head, table.cells)


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
        _bar(rule.name, rule.share.value, rule.share.error,
             f"{rule.name}: {in_short(rule.share)} of plain")
        for rule in found.rules
    ]  # fmt: skip
    title = "At equal progress: predicted damage in parts of the plain step's, lower is better"
    return ChartFigure(
        "diagnosis-equal-progress", title, f"Bars of {len(rows)} rules. {title}.",
        bars(rows, _palette(found), "damage at equal progress, plain = 1"),
        _forecast_table(forecast_tables(found)[0]), "Thin lines: one standard error.",
    )  # fmt: skip


def _palette(found: Diagnosis) -> Palette:
    """One colour per rule and per measure on the whole page."""
    rules = (rule.name for rule in found.rules)
    return Palette([FO, SCALED, RISE, NOISE, *rules, ALONG, AVERAGE, SHAPING, COUPLING])


def _rule_bar(name: str, damage: Estimate, deviation: Estimate | None) -> Bar:
    spread = deviation.value if deviation else 0.0
    tip = f"{name}: {damage}" + (f", deviation of one draw {deviation}" if deviation else "")
    return _bar(name, damage.value, spread, tip)


def _bar(name: str, damage: float, spread: float, tip: str) -> Bar:
    """A damage that is not negative has no interval below zero: nothing would lie there."""
    low = damage - spread if damage < 0 else max(damage - spread, 0.0)
    return Bar(name, name, damage, low, damage + spread, tip)


def _block_figures(found: Diagnosis) -> Iterator[ChartFigure]:
    largest = _largest(found.blocks)
    names = [block.name for block in largest]
    labels = dict(zip(names, short_names(names), strict=True))
    kinds: dict[str, dict[str, Callable[[BlockReport], Estimate | None]]] = {
        "Curvature along the gradient and on average": {
            ALONG: lambda block: block.lambda_dir, AVERAGE: lambda block: block.lambda_avg},
        "Shaping score and coupling score": {
            SHAPING: lambda block: block.S, COUPLING: lambda block: block.C},
    }  # fmt: skip
    for title, values in kinds.items():
        rows = [
            _block_bar(labels[block.name], block, name, value)
            for block in largest for name, of in values.items() if (value := of(block))
        ]  # fmt: skip
        if not any(bar.method == COUPLING for bar in rows):
            title = title.replace(" and coupling score", "")
        measures = [name for name in values if any(bar.method == name for bar in rows)]
        cells = [(labels[b.name], *(shown(values[name](b)) for name in measures)) for b in largest]
        yield ChartFigure(
            f"diagnosis-{title}", title, f"Bars for {len(largest)} blocks. {title}.",
            bars(rows, _palette(found), " and ".join(measures)),
            text_table(title, ("block", *measures), cells),
            "Thin lines: one standard error. Blocks where shaping changes most.",
        )  # fmt: skip


def _block_bar(label: str, block: BlockReport, name: str, value: Estimate) -> Bar:
    low, high = value.value - value.error, value.value + value.error
    return Bar(label, name, value.value, low, high, f"{block.name}: {name} {value}")


def _largest(blocks: Sequence[BlockReport]) -> list[BlockReport]:
    return sorted(blocks, key=lambda block: -abs(block.S.value))[:MOST_BLOCKS]
