"""python -m benchmarks [SUITE ...] [--out FILE]: run, print, and keep the ratios as JSON."""

import argparse
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.timing import Ratio

RESULTS = Path(__file__).with_name("results.json")


def rule() -> Iterator[Ratio]:
    from benchmarks import rule

    yield from rule.run()


def memory() -> Iterator[Ratio]:
    from benchmarks import memory

    yield from memory.run()


def training() -> Iterator[Ratio]:
    from benchmarks import training

    yield from training.run()


def peers() -> Iterator[Ratio]:
    from benchmarks import peers

    yield from peers.run()


def vision() -> Iterator[Ratio]:
    from benchmarks import vision

    yield from vision.run()


def language() -> Iterator[Ratio]:
    from benchmarks import language

    yield from language.run()


def curvature() -> Iterator[Ratio]:
    from benchmarks import curvature

    yield from curvature.run()


def report() -> Iterator[Ratio]:
    from benchmarks import report

    yield from report.run()


def frontier() -> Iterator[Ratio]:
    from benchmarks import frontier

    yield from frontier.run()


SUITES: dict[str, Callable[[], Iterator[Ratio]]] = {
    "rule": rule,
    "memory": memory,
    "training": training,
    "peers": peers,
    "vision": vision,
    "language": language,
    "curvature": curvature,
    "report": report,
    "frontier": frontier,
}


def environment() -> dict[str, object]:
    return {
        **{name: importlib.metadata.version(name) for name in ("torch", "numpy", "risegrad")},
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "suites", nargs="*", choices=[*SUITES, []], help=f"of {', '.join(SUITES)} (default: all)"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the JSON goes")
    options = parser.parse_args()
    chosen = options.suites or list(SUITES)
    results: dict[str, list[dict[str, object]]] = {}
    for suite in chosen:
        results[suite] = []
        for ratio in SUITES[suite]():
            mark = "met" if ratio.met else "MISSED"
            print(f"{ratio.value:10.3f}  {ratio.target:>8}  {mark:<6}  {ratio.name}", flush=True)
            results[suite].append(asdict(ratio))
    kept = json.loads(options.out.read_text()) if options.out.exists() else {"suites": {}}
    kept = {"environment": environment(), "suites": kept["suites"] | results}
    options.out.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"kept in {options.out.name}")


if __name__ == "__main__":
    main()
