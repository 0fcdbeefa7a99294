"""The report of a thousand records: its making against the reading of the records."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.keep import RECORDS
from benchmarks.timing import Ratio, at_most, measured_ratio
from risegrad.common.seal import digest
from riselab.records.record import read_records, write_record
from riselab.report.builder import build, write_report

ROWS, SEEDS = 100, 10


def thousand_records(folder: Path) -> None:
    """One real record under other labels and seeds, each with the id and seal of what it says."""
    content = json.loads(next(iter(sorted((RECORDS / "table1-cpu").glob("*.json")))).read_text())
    for row in range(ROWS):
        for seed in range(SEEDS):
            content["row"] |= {"label": f"row {row}", "baseline": row == 0, "paper": None}
            content["config"]["seed"] = content["identity"]["settings"]["seed"] = seed
            content |= {"seed": seed, "id": digest(content["identity"])}
            write_record(folder / f"{row}-{seed}.json", content)


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        thousand_records(folder)
        records, problems = read_records([folder])
        if problems or len(records) != ROWS * SEEDS:  # else nothing is what is measured
            raise RuntimeError(f"{len(records)} of {ROWS * SEEDS} records: {problems[:1]}")

        def make() -> object:
            return write_report(build(records), folder / "report.html")

        value = measured_ratio(make, lambda: read_records([folder]), rounds=5)
    yield at_most("building the report of 1,000 records over reading them", value, 2)
