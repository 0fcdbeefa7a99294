"""python -m benchmarks.keep OUT EXPERIMENT ...: copy finished records into experiments/records.

Only runs that the experiment file still describes are kept, under the name of their folder.
"""

import shutil
import sys
from pathlib import Path

from riselab.continual.runs import read_config
from riselab.experiments.cells import expand
from riselab.experiments.file import load_experiment
from riselab.records.record import read_records

RECORDS = Path(__file__).parents[1] / "experiments" / "records"


def row_labels(name: str) -> list[str]:
    """The rows of an experiment in the file's order, each varied value a row of its own.

    Where a setting is chosen on validation data, that could be any.
    """
    cells = expand(load_experiment(name), read_config, chosen=lambda row: True)
    return list(dict.fromkeys(cell.row.label for cell in cells))


def keep(out: Path, name: str) -> int:
    """How many records were copied."""
    labels = row_labels(name)
    records, problems = read_records([out / name])
    for problem in problems:
        print(problem, file=sys.stderr)
    kept = [record for record in records if record.row.label in labels]
    (RECORDS / name).mkdir(parents=True, exist_ok=True)
    for record in kept:
        shutil.copyfile(record.path, RECORDS / name / f"{record.path.parent.name}.json")
    return len(kept)


if __name__ == "__main__":
    for experiment in sys.argv[2:]:
        print(f"{experiment}: {keep(Path(sys.argv[1]), experiment)} records")
