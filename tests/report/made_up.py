"""Records with made-up numbers: none of them is a result of anything.

Their shape is not made up: it is that of a record that a run of the fake workload left.
"""

from __future__ import annotations

import json
import random
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lab import fake_workload
from risegrad.common.seal import digest, sealed
from riselab.common.inputs import essential
from riselab.experiments.cells import expand
from riselab.experiments.file import load_experiment
from riselab.records.record import write_record
from riselab.running.worker import DONE, execute, order_for

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'`|&{}$%\\"


def matrix_of(tasks: int, start: float, loss: float, noise: random.Random) -> list[list[float]]:
    """Each task begins near ``start`` and loses ``loss`` points per session."""
    first = [start + noise.uniform(-3, 3) for _ in range(tasks)]
    return [
        [max(0.0, first[i] - loss * (t - i) + noise.uniform(-1, 1)) for i in range(t + 1)]
        for t in range(tasks)
    ]


@cache
def template() -> str:
    """A record as the code makes it, in JSON."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "one.toml").write_text('name="one"\ndomain="x"\n[[rows]]\nlabel="a"\n')
        (cell,) = expand(load_experiment(folder / "one.toml"), fake_workload.read_config)
        assert execute(order_for(cell, folder, work=fake_workload.__name__)) == (DONE, "")
        return (folder / cell.folder / "record.json").read_text(encoding="utf-8")


def record(label: str = "FO", seed: int = 0, **changes: Any) -> dict[str, Any]:
    """A record; ``changes`` are experiment, section, paper, baseline, q, inputs and so on."""
    given = {"start": 85.0, "loss": 2.0, "tasks": 5, "seconds": 2.0, "q": None} | changes
    noise = random.Random(f"{label}-{seed}-{given.get('experiment')}")
    matrix = matrix_of(given["tasks"], given["start"], given["loss"], noise)
    union = [sum(row) / len(row) for row in matrix]
    rule = {"name": given.get("rule", "rise")} | ({"q": given["q"]} if given["q"] else {})
    content: dict[str, Any] = json.loads(template())
    content["experiment"] = given.get("experiment", "digits")
    content["row"] |= {"label": label, "order": 0}
    content["row"] |= {key: given[key] for key in ("section", "paper", "baseline") if key in given}
    content["seed"] = seed
    content["config"] = {
        "domain": given.get("domain", "vision"),
        "stream": given.get("stream", {"name": "made-up"}),
        "model": {"name": given.get("model", "none")},
        "host": {"name": given.get("host", "adapter")},
        "rule": rule,
        "seed": seed,
    }
    task = {"train": 9, "validation": 0, "test": 90}
    tasks = [{"name": f"classes {i}", "classes": [str(i)]} | task for i in range(given["tasks"])]
    content["result"] |= {
        "tasks": tasks,
        "scores": {"accuracy": {"matrix": matrix, "union": union}},
        "main_score": "accuracy",
        "metrics": metrics(matrix, union),
        "losses": [{"task": 0, "epoch": 0, "loss": 1.0}],
        "trainable": {"adapter": 1189632, "head": 7680},
        "notes": list(given.get("notes", [])),
    }
    content["run"] |= {
        "started": "2026-01-01T10:00:00+00:00",
        "finished": "2026-01-01T10:01:00+00:00",
        "seconds": {
            "train": [given["seconds"] * noise.uniform(0.95, 1.05) for _ in matrix],
            "score": [0.2 for _ in matrix],
            "total": 12.3,
        },
        "memory": {"peak_rss_bytes": 500 * 2**20},
        "git": {"commit": "0123456789abcdef", "dirty": False},
        "inputs": given.get("inputs", {}),
    }
    return finished(content)


def finished(content: dict[str, Any]) -> dict[str, Any]:
    """With the id and the seal of what it says now."""
    inputs = essential(content["run"].get("inputs", {}))
    identity = {"settings": deepcopy(content["config"]), "inputs": inputs}
    return sealed(content | {"identity": identity, "id": digest(identity)})


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
    content["result"]["tasks"][0]["name"] = HOSTILE
    content["result"]["scores"][HOSTILE] = content["result"]["scores"]["accuracy"]
    content["result"]["metrics"][HOSTILE] = 1.0
    content["row"]["paper"] = {"table": HOSTILE, "row": HOSTILE, "column": "javascript:alert(1)"}
    content["config"]["rule"][HOSTILE] = seed
    content["run"]["finished"] = HOSTILE
    content["run"]["git"] = {"commit": HOSTILE, "dirty": HOSTILE}
    content["run"]["environment"] = {"python": HOSTILE, "packages": {"torch": HOSTILE}}
    return content


def save(folder: Path, *contents: dict[str, Any]) -> list[Path]:
    """Each in a folder of its own, as ``rise run`` leaves them."""
    paths = []
    for content in contents:
        number = len(list(folder.iterdir())) if folder.exists() else 0
        path = folder / f"run-{number:03d}" / "record.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, finished(content))
        paths.append(path)
    return paths


def whole_study(folder: Path, seeds: int = 3) -> Path:
    """A table beside the paper's, a sweep over q, a language experiment with two scores."""
    column, fo, zo = "CIFAR100 Inc-5", "FO Optimization", "ZO Optimization"
    base = "vit_base_patch16_224"
    cifar = {"model": base, "stream": {"name": "cifar100-inc5", "increment": 5}}
    inr = {"model": base, "stream": {"name": "imagenet-r-inc5", "increment": 5}}
    for seed in range(seeds):
        paper = [
            ("Adapter + Cls.", fo, 88.0, 3.0, "adapter-classifier"),
            ("EASE", fo, 91.0, 2.4, "ease"),
            ("ZO-FC", zo, 86.0, 1.6, "zo-fc"),
        ]
        for name, section, start, loss, host in paper:
            place = {"table": "1", "row": name, "column": column}
            more = {"paper": place, "baseline": name == "ZO-FC", "loss": loss, "start": start}
            more |= cifar | {"host": host, "rule": section[:2].lower()}
            save(
                folder,
                record(name, seed, experiment="cifar100-inc5", section=section, tasks=6, **more),
            )
        place = {"table": "1", "row": "ZO-FC+RISE", "column": column}
        kinds: list[tuple[str, dict[str, Any]]] = [
            (
                "ZO-FC + RISE",
                {"paper": place, "loss": 1.1, "start": 85.5, "seconds": 2.3, "host": "zo-fc-rise"},
            ),
            ("ZO-FC + covariance noise", {"loss": 1.55, "start": 82.0, "seconds": 2.2}),
            ("ZO-FC, scaled FO", {"loss": 1.6, "start": 86.0, "rule": "scaled"}),
        ]
        for label, more in kinds:
            more = cifar | more
            save(
                folder,
                record(label, seed, experiment="cifar100-inc5", section=zo, tasks=6, **more),
            )
        for q in (1, 4, 16, 64):
            place = {"table": "3", "row": f"q={q}", "column": "ImageNet-R Inc-5"}
            more = {"start": 74 + q**0.5 / 2, "loss": 0.6 + q / 60, "paper": place, "tasks": 3}
            more |= inr | {"host": "zo-fc-rise"}
            save(folder, record(f"RISE q={q}", seed, experiment="imagenet-r-queries", q=q, **more))
        for label, start, loss in (("FO", 80.0, 9.0), ("ZO", 60.0, 1.0), ("RISE", 79.0, 2.0)):
            place = {"table": "2", "row": label, "column": "Standard CL Benchmark Order 1"}
            more = {"experiment": "language-order-1", "domain": "language", "section": "SeqLoRA"}
            more |= {"host": "seq-lora", "rule": label.lower(), "model": "google-t5/t5-large"}
            content = record(
                label,
                seed,
                start=start,
                loss=loss,
                tasks=3,
                paper=place,
                baseline=label == "FO",
                stream={"name": "order1"},
                **more,
            )
            matrix = content["result"]["scores"]["accuracy"]["matrix"]
            higher = [[min(100.0, value + 5) for value in line] for line in matrix]
            content["result"]["scores"]["constrained"] = {"matrix": higher, "union": []}
            save(folder, content)
    return folder


NOISE = {0: -1.0, 1: 0.0, 2: 1.0}
"""A point of learning more or less, by seed."""


def swept(
    method: str, rate: float, seed: int, new: float, fgt: float, **row: Any
) -> dict[str, Any]:
    """A record of one point of a sweep, with these measures."""
    content = record(f"{method} (lr={rate})", seed, experiment="turned")
    content["row"] |= {"method": method, "swept": f"lr={rate}"} | row
    content["config"]["adapter"] = {"lr": rate}
    content["result"]["metrics"] |= {
        "plasticity": new + NOISE[seed], "forgetting": fgt, "final_average": 50.0,
    }  # fmt: skip
    content["result"]["before"] = {"accuracy": [40.0] * 5}
    return content


def swept_study(folder: Path) -> Path:
    """FO forgets (New - 60) points; the other one half of that; the idle one learned nothing."""
    curves = {"FO": {0.1: (70, 10), 0.3: (90, 30)}, "gentle": {0.2: (70, 5), 0.4: (80, 10)}}
    curves["idle"] = {0.5: (40, 0), 0.6: (40, 0)}
    points = [(m, rate, at) for m, found in curves.items() for rate, at in found.items()]
    for order, (method, rate, (new, fgt)) in enumerate(points):
        for seed in NOISE:
            row = {"baseline": method == "FO", "order": order}
            save(folder, swept(method, rate, seed, new, fgt, **row))
    return folder


CHAT_RATES = (3e-4, 1e-3, 2e-3)
CHAT_CURVES = {
    "plain": ((8, 8.0), (62, 80.0), (80, 160.0)),
    "KL on dreams": ((8, 2.0), (60, 11.0), (78, 24.0)),
    "keep": ((8, 1.0), (66, 6.0), (82, 14.0)),
}
"""Exact answers, and the drift in hundredths of a nat, at each rate."""


def chat_study(folder: Path) -> Path:
    """A chat model that learns one task; what else changes follows its drift."""
    for order, (method, curve) in enumerate(CHAT_CURVES.items()):
        for place, (rate, (new, drift)) in enumerate(zip(CHAT_RATES, curve, strict=True)):
            for seed, more in NOISE.items():
                content = record(
                    f"{method} (lr={rate:g})", seed, experiment="keep-135", domain="chat", tasks=1,
                    baseline=method == "plain", rule=method,
                )  # fmt: skip
                content["row"] |= {"method": method, "swept": f"lr={rate:g}"}
                content["row"]["order"] = 3 * order + place
                content["config"]["adapter"] = {"lr": rate}
                result = content["result"]
                result["scores"] = {"exact_match": {"matrix": [[new + more]], "union": [new]}}
                result |= {"main_score": "exact_match", "before": {}}
                result["metrics"] |= {
                    "plasticity": new + more, "forgetting": drift, "drift": drift / 100, "nll": 0.5,
                    "agreement": 100 - drift / 4, "wiki": 3.3, "wiki_change": drift / 400,
                    "choice": 48.0, "choice_change": more, "facts": 70.0, "facts_change": -drift,
                    "task_forgetting": None,
                }  # fmt: skip
                if method == "keep":
                    result |= {"memory_bytes": [6_800_000], "data_bytes": [14_000]}
                save(folder, content)
    return folder
