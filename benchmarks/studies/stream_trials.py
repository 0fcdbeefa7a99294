"""One task after another with and without a memory, and what was forgotten at equal learning."""

import copy
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import risegrad

Batch = Any


class Problem(Protocol):
    """A model and tasks in their order; the same for every method of a seed."""

    name: str
    epochs: int
    base_rate: float
    """Of the first task, which every method learns plainly."""
    tasks: int

    def model(self, seed: int) -> nn.Module: ...

    def batches(self, task: int, seed: int) -> list[Batch]:
        """One epoch of training, shuffled."""

    def loss(self, model: nn.Module, batch: Batch, task: int) -> Tensor: ...

    def score(self, model: nn.Module, task: int) -> float:
        """Percent of the task's test examples."""

    def memory(self, model: nn.Module, task: int, of: str, seed: int) -> risegrad.Memory:
        """Of training examples, never of those that are scored."""


@dataclass(frozen=True)
class Method:
    """``of``: what is remembered, or "nothing"."""

    of: str
    rates: tuple[float, ...]
    damping: float = 0.3

    @property
    def label(self) -> str:
        return "plain" if self.of == "nothing" else f"{self.of}, damping {self.damping:g}"


@dataclass(frozen=True)
class Outcome:
    """One run. ``new``: later tasks when learned; ``forgotten``: points lost until the end."""

    problem: str
    method: str
    rate: float
    seed: int
    new: float
    forgotten: float
    average: float
    seconds: float
    """Of one core."""


def learn(
    problem: Problem,
    model: nn.Module,
    task: int,
    rate: float,
    seed: int,
    shaper: risegrad.Informed | None = None,
) -> None:
    """AdamW with clipping at 1, for every method the same batches."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=rate, weight_decay=0.0)
    if shaper is not None:
        risegrad.attach(optimizer, shaper, params=trained, on="update")
    model.train()
    for epoch in range(problem.epochs):
        for batch in problem.batches(task, 1000 * seed + 10 * task + epoch):
            optimizer.zero_grad()
            problem.loss(model, batch, task).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(trained.values(), 1.0)
            optimizer.step()
    model.eval()


def run_stream(
    problem: Problem, begun: nn.Module, first: float, method: Method, rate: float, seed: int
) -> Outcome:
    """All later tasks from a model that knows the first, with the score ``first``."""
    start = time.process_time()
    torch.manual_seed(seed)
    model = copy.deepcopy(begun)
    learned = [first]
    shaped = method.of != "nothing"
    memory = problem.memory(model, 0, method.of, seed) if shaped else None
    for task in range(1, problem.tasks):
        shaper = None if memory is None else risegrad.Informed(memory, damping=method.damping)
        learn(problem, model, task, rate, seed, shaper)
        learned.append(problem.score(model, task))
        if memory is not None and task + 1 < problem.tasks:
            memory = memory + problem.memory(model, task, method.of, seed)
    last = [*(problem.score(model, task) for task in range(problem.tasks - 1)), learned[-1]]
    drops = [before - after for before, after in zip(learned[:-1], last[:-1], strict=True)]
    return Outcome(
        problem.name, method.label, rate, seed,
        statistics.mean(learned[1:]), statistics.mean(drops), statistics.mean(last),
        time.process_time() - start,
    )  # fmt: skip


def trials(problem: Problem, methods: Sequence[Method], seed: int) -> Iterator[Outcome]:
    """Every method at every rate, all from the same model."""
    torch.manual_seed(seed)
    begun = problem.model(seed)
    learn(problem, begun, 0, problem.base_rate, seed)
    first = problem.score(begun, 0)
    for method in methods:
        for rate in method.rates:
            outcome = run_stream(problem, begun, first, method, rate, seed)
            print(outcome, flush=True)
            yield outcome


def at_equal_learning(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Of one problem: each method's forgetting where all have learned equally much.

    Seed by seed: New is the most that every method reached, and each method's forgetting there lies
    on the line between its two rates next to it (at its highest New, if its own line is above).
    """
    found: dict[str, list[float]] = {}
    levels = []
    for seed in sorted({outcome.seed for outcome in outcomes}):
        curves = _curves([outcome for outcome in outcomes if outcome.seed == seed])
        level = min(max(new for new, _ in curve) for curve in curves.values())
        levels.append(level)
        for method, curve in curves.items():
            found.setdefault(method, []).append(_on_line(curve, level))
    rows = [
        {"method": method, "forgotten": round(statistics.mean(values), 2),
         "deviation": deviation(values), "by seed": [round(v, 2) for v in values]}
        for method, values in found.items()
    ]  # fmt: skip
    return {"new": round(statistics.mean(levels), 2), "methods": rows}


def deviation(values: Sequence[float]) -> float | None:
    """Over seeds; None for one."""
    return round(statistics.stdev(values), 3) if len(values) > 1 else None


def _curves(outcomes: Sequence[Outcome]) -> dict[str, list[tuple[float, float]]]:
    curves: dict[str, list[tuple[float, float]]] = {}
    for outcome in outcomes:
        curves.setdefault(outcome.method, []).append((outcome.new, outcome.forgotten))
    return {method: sorted(curve) for method, curve in curves.items()}


def _on_line(curve: list[tuple[float, float]], level: float) -> float:
    """Below its least New a method is taken at that point, which flatters no smaller rate."""
    if level <= curve[0][0]:
        return curve[0][1]
    for (low, f), (high, g) in itertools.pairwise(curve):
        if low <= level <= high:
            return f + (g - f) * (level - low) / (high - low) if high > low else min(f, g)
    return curve[-1][1]


def commit() -> str:
    """What the results were made with; a dirty tree says so."""
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parent, check=True
    )
    return found.stdout.strip()


COMMIT = commit()
"""As the run began: later edits do not belong to it."""


def keep(path: Path, part: str, content: dict[str, Any], about: dict[str, Any]) -> None:
    """Write one part of a study's results and leave the others as they are."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    environment = {"commit": COMMIT, "torch": torch.__version__, "command": sys.argv[1:]}
    kept[part] = {**environment, **about, **content}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def as_rows(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Dataclasses as plain data with as many digits as mean something."""
    return [
        {key: round(v, 3) if isinstance(v, float) and key != "rate" else v
         for key, v in asdict(one).items()}
        for one in found
    ]  # fmt: skip
