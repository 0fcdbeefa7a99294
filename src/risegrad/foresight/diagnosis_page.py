"""A diagnosis as a page: the decision, the rules side by side, then the blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile

from risegrad.curvature.estimates.estimated import Estimate
from risegrad.foresight.diagnosis_report import BlockReport, Diagnosis
from risegrad.foresight.diagnosis_text import (
    BLOCK_HEAD,
    advice,
    block_cells,
    head_lines,
    rule_rows,
)
from risegrad.foresight.diagnosis_verdicts import is_clear
from risegrad.pages.charts.bar_chart import Bar, bars
from risegrad.pages.page_blocks import ChartFigure, Fold, ItemList, Page, Paragraph, Part, Row
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
    return html(Page(title, diagnosis_parts(found), glossary=GLOSSARY))


def diagnosis_parts(found: Diagnosis) -> tuple[Part, ...]:
    """The first has no title, because it comes right below the page's."""
    rules = (Row(tuple(_rule_figures(found))), _rule_table(found))
    words = ItemList("In words", (*found.verdicts, advice(found)))
    blocks = (Row(tuple(_block_figures(found))), Fold("Every block", (_block_table(found),)))
    return (
        Part("", rules, QUESTION, decision(found)),
        Part("Verdicts", (words, *(Paragraph(line, "note") for line in head_lines(found)))),
        Part("Blocks", blocks),
    )


def decision(found: Diagnosis) -> str:
    """One sentence, by the damage at equal mean progress."""
    t = found.totals
    if t.fo_progress == 0:
        return "The incoming gradient is zero: no rule would move anything."
    if not is_clear(t.progress_cost):
        return (
            "Use a smaller first-order (FO) step: at equal progress its damage and that of RISE "
            "do not differ beyond the error of the estimate."
        )
    if t.progress_cost.value > 0:
        share = f"{t.scaled_fo.value / t.rise.value:.2g} times" if t.rise.value > 0 else "less than"
        words = "Use a smaller first-order (FO) step: at equal progress it does"
        return f"{words} {share} the damage of RISE."
    return f"Use RISE: at equal progress its damage is {t.rise}, first-order (FO) {t.scaled_fo}."


def _rule_table(found: Diagnosis) -> Table:
    return text_table("The rules at this step size", RULE_HEAD, rule_rows(found))


def _rule_figures(found: Diagnosis) -> Iterator[ChartFigure]:
    t = found.totals
    rise, noise = (t.rise, t.rise_std), (t.covariance_noise, t.covariance_noise_std)
    pairs = {
        "At equal progress": {SCALED: (t.scaled_fo, None), RISE: rise, NOISE: noise},
        "At equal step length": {FO: (t.fo, None), RISE: rise, NOISE: noise},
    }
    for title, rules in pairs.items():
        rows = [_rule_bar(name, *values) for name, values in rules.items()]
        yield ChartFigure(
            f"diagnosis-{title}", f"{title}: predicted damage, lower is better",
            f"Bars of the predicted damage of {len(rows)} rules. {title}; lower is better.",
            bars(rows, PALETTE, "damage of one step, lower is better"),
            _rule_table(found), "Thin lines: the standard deviation over draws of one step.",
        )  # fmt: skip


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
