"""python -m benchmarks.studies.text_bytes BANKING77_FOLDER CL_BENCHMARK_FOLDER

How many bytes a training text has, in UTF-8, in each experiment on texts: what a memory's bytes
stand beside in tables. Records of today say it themselves. Goes to text_bytes.json.
"""

import json
import sys
from pathlib import Path
from statistics import fmean

from riselab.continual.language.hosts import HOSTS
from riselab.continual.language.streams.build import build_stream
from riselab.continual.runs import read_config
from riselab.records.record import read_records

RESULTS = Path(__file__).with_suffix(".json")
RECORDS = Path(__file__).parents[2] / "experiments" / "records"


def bytes_of_a_text(experiment: str, folder: str) -> float:
    """The mean over all tasks of the stream that the experiment's records name."""
    records, _ = read_records([RECORDS / experiment])
    config = {**records[0].config, "stream": {**records[0].config["stream"], "data": folder}}
    settings = read_config(config)
    stream = build_stream(settings.stream, HOSTS[settings.host.name].prompt)
    return fmean(len(text.encode()) for task in stream for text in task.train.prompts)


if __name__ == "__main__":
    banking, benchmark = sys.argv[1:]
    folders = dict.fromkeys(("banking77", "banking77-t5", "banking77-zero-shot"), banking)
    folders["language-frontier-cpu"] = benchmark
    found = {name: round(bytes_of_a_text(name, folder), 1) for name, folder in folders.items()}
    RESULTS.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(found)
