"""The report of a thousand records: its making against the reading of the records."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.keep import RECORDS
from benchmarks.timing import Ratio, at_most, measured_ratio
from risegrad.lab.records.record import read_records
from risegrad.lab.report.report_files import write_report
from risegrad.lab.report.report_parts import build

ROWS, SEEDS = 100, 10


def thousand_records(folder: Path) -> None:
    """Copies of one real record under other labels and seeds."""
    content = json.loads(next(iter(sorted((RECORDS / "table1-cpu").glob("*.json")))).read_text())
    for row in range(ROWS):
        for seed in range(SEEDS):
            content["row"] |= {"label": f"row {row}", "baseline": row == 0, "paper": None}
            content |= {"id": f"{row}-{seed}", "seed": seed}
            (folder / f"{row}-{seed}.json").write_text(json.dumps(content))


def run() -> Iterator[Ratio]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        thousand_records(folder)
        records, _ = read_records([folder])

        def make() -> object:
            return write_report(build(records), folder / "report.html")

        value = measured_ratio(make, lambda: read_records([folder]), rounds=5)
    yield at_most("building the report of 1,000 records over reading them", value, 2)
