"""What a person sees in the terminal after a run."""

from collections.abc import Sequence
from pathlib import Path

from risegrad.common.text_columns import text_columns
from risegrad.sandbox.quadratic_frontier import EQUAL_PROGRESS
from risegrad.sandbox.sandbox_report import Comparison, comparisons
from risegrad.sandbox.sandbox_run import Results


def summary(results: Results, files: Sequence[Path]) -> str:
    """A table of ours beside the paper's, then the exact checks, speed, frontier and files."""
    s = results.settings
    head = f"d={s.d}, q={s.q}, {s.samples:,} samples, seed {s.seed}, spectrum {s.spectrum}"
    rows = [("", "ours", "paper", "exact"), *map(_row, comparisons(results))]
    worst = max(results.closed_forms.values())
    speeds = ", ".join(f"{point.ratio:.2g}x at q={point.q}" for point in results.speed)
    return "\n".join(
        [
            f"quadratic sandbox: {head}",
            "",
            *text_columns(rows, right=False),
            "",
            "The paper does not give its spectrum; ours is a choice (--spectrum sets another).",
            f"closed forms against sums without sampling: largest relative error {worst:.1e}",
            f"one draw instead of q directions, d={s.large_d}: {speeds}",
            *_frontier(results),
            "",
            *(f"wrote {path}" for path in files),
        ]
    )


def _row(row: Comparison) -> tuple[str, str, str, str]:
    spread = "" if row.spread is None else f" +- {row.spread:.1g}"
    paper = "-" if row.paper is None else _number(row.paper)
    if row.paper is not None and not row.same_settings:
        paper += " (other settings)"
    return row.what, _number(row.ours) + spread, paper, _number(row.expected)


def _number(value: float | None) -> str:
    """Small ones with an exponent, the others with up to six figures.

    >>> _number(0.0157), _number(0.9999969), _number(None)
    ('1.57e-02', '0.999997', '-')
    """
    if value is None:
        return "-"
    if 0 < abs(value) < 0.1:
        return f"{value:.2e}"
    return f"{value:.6g}" if value > 0.99 else f"{value:.3g}"


def _frontier(results: Results) -> list[str]:
    """What RISE pays over FO at equal progress, for the fewest and the most steps measured."""
    lines = []
    for row in results.equal_progress:
        found = [(n, e) for n, e in zip(row.steps, row.excess, strict=True) if e is not None]
        if row.subject.rule == "fo" or not found:
            continue
        ends = dict([found[0], found[-1]])
        shown = ", ".join(f"{excess:+.1%} in {steps} steps" for steps, excess in ends.items())
        lines.append(f"forgetting over FO's at {EQUAL_PROGRESS:.0%} progress, "
                     f"{row.subject.name}: {shown}")  # fmt: skip
    return lines
