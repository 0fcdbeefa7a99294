"""Records with made-up numbers: none of them is a result of anything."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from risegrad.lab.records import write_record

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`|&{}$%\\"


def matrix_of(tasks: int, start: float, loss: float, noise: random.Random) -> list[list[float]]:
    """Each task begins near ``start`` and loses ``loss`` points per session."""
    first = [start + noise.uniform(-3, 3) for _ in range(tasks)]
    return [
        [max(0.0, first[i] - loss * (t - i) + noise.uniform(-1, 1)) for i in range(t + 1)]
        for t in range(tasks)
    ]


def record(label: str = "FO", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A record in schema 1; ``changes`` are experiment, section, paper, baseline, q and so on."""
    given = {"start": 85.0, "loss": 2.0, "tasks": 5, "seconds": 2.0, "q": None} | changes
    noise = random.Random(f"{label}-{seed}-{given.get('experiment')}")
    matrix = matrix_of(given["tasks"], given["start"], given["loss"], noise)
    union = [sum(row) / len(row) for row in matrix]
    rule = {"name": given.get("rule", "rise")} | ({"q": given["q"]} if given["q"] else {})
    return {
        "schema": 1,
        "id": f"{noise.getrandbits(64):016x}",
        "experiment": given.get("experiment", "digits"),
        "row": {
            "label": label,
            "section": given.get("section", ""),
            "paper": given.get("paper"),
            "baseline": given.get("baseline", False),
        },
        "seed": seed,
        "config": {
            "domain": given.get("domain", "vision"),
            "stream": {"name": "made-up"},
            "model": {"name": "none"},
            "host": {"name": given.get("host", "adapter")},
            "rule": rule,
            "seed": seed,
        },
        "result": {
            "tasks": [
                {
                    "name": f"classes {i}",
                    "classes": [str(i)],
                    "train": 9,
                    "validation": 0,
                    "test": 9,
                }
                for i in range(given["tasks"])
            ],
            "scores": {"accuracy": {"matrix": matrix, "union": union}},
            "main_score": "accuracy",
            "metrics": metrics(matrix, union),
            "losses": [{"task": 0, "epoch": 0, "loss": 1.0}],
            "trainable": {"adapter": 1189632, "head": 7680},
            "notes": list(given.get("notes", [])),
        },
        "run": {
            "started": "2026-01-01T10:00:00+00:00",
            "finished": "2026-01-01T10:01:00+00:00",
            "resumed": 0,
            "seconds": {
                "train": [given["seconds"] * noise.uniform(0.95, 1.05) for _ in matrix],
                "score": [0.2 for _ in matrix],
                "total": 12.3,
            },
            "memory": {"peak_rss_bytes": 500 * 2**20},
            "environment": {"python": "3.11", "torch": "2.15.0"},
            "git": {"commit": "0123456789abcdef", "dirty": False},
            "inputs": {},
        },
    }


def metrics(matrix: list[list[float]], union: list[float]) -> dict[str, float | None]:
    last = len(matrix) - 1
    drops = [max(matrix[t][i] for t in range(i, last + 1)) - matrix[last][i] for i in range(last)]
    back = [matrix[last][i] - matrix[i][i] for i in range(last)]
    return {
        "avg": sum(union) / len(union),
        "last": union[-1],
        "forgetting": sum(drops) / last if last else None,
        "plasticity": sum(matrix[i][i] for i in range(last + 1)) / (last + 1),
        "backward_transfer": sum(back) / last if last else None,
    }


def hostile(seed: int) -> dict[str, Any]:
    """A record whose every text wants to run as a script."""
    content = record(HOSTILE, seed, experiment=HOSTILE, section=HOSTILE, notes=[HOSTILE])
    content["id"] = f"hostile{seed}"
    content["result"]["tasks"][0]["name"] = HOSTILE
    content["result"]["scores"][HOSTILE] = content["result"]["scores"]["accuracy"]
    content["result"]["metrics"][HOSTILE] = 1.0
    content["row"]["paper"] = {"table": HOSTILE, "row": HOSTILE, "column": "javascript:alert(1)"}
    content["config"]["rule"][HOSTILE] = seed
    content["run"]["finished"] = HOSTILE
    content["run"]["git"] = {"commit": HOSTILE, "dirty": HOSTILE}
    content["run"]["environment"] = {"python": HOSTILE, HOSTILE: HOSTILE}
    return content


def save(folder: Path, *contents: dict[str, Any]) -> list[Path]:
    """Each in a folder of its own, as ``rise run`` leaves them."""
    paths = []
    for content in contents:
        path = folder / content["id"] / "record.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, content)
        paths.append(path)
    return paths


def whole_study(folder: Path, seeds: int = 3) -> Path:
    """A table beside the paper's, a sweep over q, a language experiment with two scores."""
    column, fo, zo = "CIFAR100 Inc-5", "FO Optimization", "ZO Optimization"
    for seed in range(seeds):
        paper = [
            ("Adapter + Cls.", fo, 88.0, 3.0),
            ("EASE", fo, 91.0, 2.4),
            ("ZO-FC", zo, 86.0, 1.6),
        ]
        for name, section, start, loss in paper:
            place = {"table": "1", "row": name, "column": column}
            more = {"paper": place, "baseline": name == "ZO-FC", "loss": loss, "start": start}
            save(
                folder,
                record(name, seed, experiment="cifar100-inc5", section=section, tasks=6, **more),
            )
        place = {"table": "1", "row": "ZO-FC+RISE", "column": column}
        kinds: list[tuple[str, dict[str, Any]]] = [
            ("ZO-FC + RISE", {"paper": place, "loss": 1.1, "start": 85.5, "seconds": 2.3}),
            ("ZO-FC + covariance noise", {"loss": 1.55, "start": 82.0, "seconds": 2.2}),
            ("ZO-FC, mean-matched FO", {"loss": 1.6, "start": 86.0, "rule": "scaled"}),
        ]
        for label, more in kinds:
            save(
                folder,
                record(label, seed, experiment="cifar100-inc5", section=zo, tasks=6, **more),
            )
        for q in (1, 4, 16, 64):
            place = {"table": "3", "row": f"q={q}", "column": "ImageNet-R Inc-5"}
            more = {"start": 74 + q**0.5 / 2, "loss": 0.6 + q / 60, "paper": place, "tasks": 3}
            save(folder, record(f"RISE q={q}", seed, experiment="imagenet-r-queries", q=q, **more))
        for label, start, loss in (("FO", 80.0, 9.0), ("ZO", 60.0, 1.0), ("RISE", 79.0, 2.0)):
            place = {"table": "2", "row": label, "column": "Standard CL Benchmark Order 1"}
            more = {"experiment": "language-order-1", "domain": "language", "section": "SeqLoRA"}
            content = record(
                label,
                seed,
                start=start,
                loss=loss,
                tasks=3,
                paper=place,
                baseline=label == "FO",
                **more,
            )
            matrix = content["result"]["scores"]["accuracy"]["matrix"]
            higher = [[min(100.0, value + 5) for value in line] for line in matrix]
            content["result"]["scores"]["constrained"] = {"matrix": higher, "union": []}
            save(folder, content)
    return folder
