"""Tables in the documentation, made from records: `python -m benchmarks.tables` rewrites them."""

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def benchmark_table() -> str:
    record = json.loads((ROOT / "benchmarks/results.json").read_text())
    rows = ["| what | ratio | target | |", "|---|---:|---:|---|"]
    for suite in record["suites"].values():
        for line in suite:
            verdict = "met" if line["met"] else "**missed**"
            rows.append(f"| {line['name']} | {line['value']:.3g} | {line['target']} | {verdict} |")
    return "\n".join(rows)


def digits_table() -> str:
    record = json.loads((ROOT / "docs/records/digits.json").read_text())
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        groups.setdefault((run["rule"], run["learning_rate"]), []).append(run)
    rows = ["| rule | rate | forgotten (points) | learned (%) |", "|---|---:|---:|---:|"]
    for (rule, rate), runs in groups.items():
        cells = [spread([run[key] for run in runs]) for key in ("forgotten", "learned")]
        rows.append(f"| {rule} | {rate:g} | {cells[0]} | {cells[1]} |")
    return "\n".join(rows)


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


TABLES: dict[str, Callable[[], str]] = {"benchmarks": benchmark_table, "digits": digits_table}
PLACES = ("README.md", "docs/benchmarks.md")


def filled(text: str) -> str:
    """The text with every marked table made anew."""
    for name, make in TABLES.items():
        mark = re.compile(rf"(<!-- {name}: [^>]*-->\n)(?:.*?)(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda found, make=make: f"{found[1]}{make()}\n{found[2]}", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    for place in PLACES:
        path = ROOT / place
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
