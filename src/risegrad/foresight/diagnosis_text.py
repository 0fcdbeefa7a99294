"""A diagnosis as a person reads it in a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from statistics import median

from risegrad.common.text_columns import text_columns
from risegrad.curvature.estimates.estimated import Estimate, in_digits
from risegrad.curvature.operators.parameter_space import EXACT
from risegrad.foresight.block_lines import short_names, without_empty
from risegrad.foresight.diagnosis_report import BlockReport, Diagnosis
from risegrad.foresight.forecast_tables import AT_STEP_SIZE, forecast_tables, rows_left_out
from risegrad.theory.calibration import block_size_for, q_for

MOST_ROWS = 24
WIDTH = 100
LONGEST_NAME = 44


def summary(found: Diagnosis) -> str:
    """Totals, the blocks that matter most, verdicts and advice."""
    return "\n".join(
        [
            *textwrap.wrap(found.decision, WIDTH),
            "",
            *head_lines(found),
            "",
            *_forecast_lines(found),
            *text_columns([("rule", "damage", "deviation", "loss change"), *rule_rows(found)]),
            "",
            *text_columns(_block_rows(_most_important(found.blocks))),
            *_left_out(found),
            "",
            *(line for verdict in found.verdicts for line in _wrapped(verdict)),
            *_wrapped(advice(found)),
        ]
    )


def head_lines(found: Diagnosis) -> list[str]:
    """What was diagnosed, what it cost, and the curvature on the whole."""
    t = found.totals
    directions = "exact" if found.exact_directions else "estimated with random signs"
    lines = [
        f"diagnosis: {len(found.blocks)} blocks, {found.d:,} parameters, step {found.step:g}, "
        f"curvature {found.curvature}, seed {found.seed}",
        f"{found.products} products ({found.probes} probes; directions {directions})",
        f"curvature along the gradient {t.lambda_dir}, on average {t.lambda_avg}",
    ]
    if found.top_eigenvalue is not None:
        lines.append(f"largest eigenvalue {found.top_eigenvalue}")
    return lines


def rule_rows(found: Diagnosis) -> list[tuple[str, ...]]:
    """One row per rule: its damage, the spread of that, and the change of the loss."""
    t = found.totals
    return [
        ("FO", str(t.fo), "-", str(t.change_fo)),
        ("scaled FO", str(t.scaled_fo), "-", str(t.change_scaled_fo)),
        ("RISE", str(t.rise), str(t.rise_std), str(t.change_rise)),
        ("covariance noise", str(t.covariance_noise), str(t.covariance_noise_std),
         str(t.change_rise)),
    ]  # fmt: skip


def _forecast_lines(found: Diagnosis) -> list[str]:
    lines: list[str] = []
    for table in forecast_tables(found):
        words = textwrap.wrap(f"{table.caption}:", WIDTH)
        lines += [*words, *text_columns([table.head, *table.cells]), ""]
    for line in rows_left_out(found):
        lines += [*textwrap.wrap(line, WIDTH), ""]
    return [*lines, f"{AT_STEP_SIZE.format(step=found.step)}:"]


BLOCK_HEAD = ("block", "d", "q", "tau", "factor", "lambda_dir", "lambda_avg", "S", "C", "R")


def block_cells(block: BlockReport) -> tuple[str, ...]:
    """The cells of one block's row."""
    score = (
        "-" if block.R is None else f"{in_digits(block.R.lower, 2)}..{in_digits(block.R.upper, 2)}"
    )
    q = "all" if block.q >= EXACT else str(block.q)
    return (
        block.name, f"{block.d:,}", q, f"{block.tau:.3f}", f"{block.mean_factor:.3f}",
        shown(block.lambda_dir), shown(block.lambda_avg), shown(block.S), shown(block.C), score,
    )  # fmt: skip


def _block_rows(blocks: Sequence[BlockReport]) -> list[tuple[str, ...]]:
    names = short_names([block.name for block in blocks], LONGEST_NAME)
    rows = zip(names, map(block_cells, blocks), strict=True)
    return without_empty([BLOCK_HEAD, *((name, *cells[1:]) for name, cells in rows)])


def shown(value: Estimate | None) -> str:
    """An estimate as text; a dash if there is none."""
    return "-" if value is None else str(value)


def _most_important(blocks: Sequence[BlockReport]) -> list[BlockReport]:
    """In their own order, those where shaping changes most."""
    if len(blocks) <= MOST_ROWS:
        return list(blocks)
    largest = sorted(blocks, key=lambda block: -abs(block.S.value))[:MOST_ROWS]
    names = {block.name for block in largest}
    return [block for block in blocks if block.name in names]


def _left_out(found: Diagnosis) -> list[str]:
    rest = len(found.blocks) - MOST_ROWS
    return [f"... and {rest} blocks with smaller |S|"] if rest > 0 else []


def advice(found: Diagnosis, wanted: float = 0.5) -> str:
    """Which q or block size would leave half of the mean."""
    typical = int(median(block.d for block in found.blocks))
    q = found.blocks[0].q
    size = block_size_for(wanted, q)
    chunk = f"blocks of at most {size} with q={q}" if size else f"no block size with q={q}"
    return (
        f"Mean factor {wanted:g} would need q={q_for(wanted, typical):,} in a block of "
        f"{typical:,} (the median here), or {chunk}."
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="- ", subsequent_indent="  ")
