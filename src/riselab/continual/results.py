"""From what a run saw to what its record says: accuracy matrices and all metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from riselab.continual import metrics
from riselab.continual.host import Stream, Task
from riselab.continual.learning import History

SessionScores = list[dict[str, list[tuple[int, int]]]]


def result(
    stream: Stream[Any],
    history: History,
    main_score: str,
    summarize: Callable[[list[list[float]], list[float]], metrics.Summary],
) -> dict[str, Any]:
    """The deterministic part of a record, and the seconds that the lab moves elsewhere."""
    matrix, union = matrices(history.scores, main_score)
    names = history.scores[0]
    before = {name: [percent(*counts) for counts in row] for name, row in history.before.items()}
    found = all_metrics(matrix, union, summarize(matrix, union), stream.known)
    # Of tasks that are not scored before they are learned, nothing is known.
    if before and all(len(row) > task + 1 for task, row in enumerate(matrix[:-1])):
        transfer = metrics.forward_transfer(matrix, before[main_score], stream.known)
        found["forward_transfer"] = defined(transfer)
    return {
        "tasks": [_task(task, number < stream.known) for number, task in enumerate(stream)],
        "scores": {
            name: dict(zip(("matrix", "union"), matrices(history.scores, name), strict=True))
            for name in names
        },
        "main_score": main_score,
        "before": before,
        "metrics": found,
        "losses": history.losses,
        "trainable": history.trainable,
        "notes": list(stream.notes),
        "seconds": history.seconds,
        "memory_bytes": history.memory_bytes,
        "data_bytes": history.data_bytes,
    } | ({"line": [_line(point) for point in history.line]} if history.line else {})


def _task(task: Task[Any], known: bool) -> dict[str, Any]:
    """What a record says of a task; of those that are trained it says no more than ever."""
    plain = {"name": task.name, "classes": list(task.classes)} | task.sizes()
    return plain | ({"known": True} if known else {})


def _line(point: dict[str, Any]) -> dict[str, Any]:
    scores = {name: [percent(*counts) for counts in row] for name, row in point["scores"].items()}
    return {"share": point["share"], "scores": scores}


def matrices(scores: SessionScores, name: str) -> tuple[list[list[float]], list[float]]:
    """``A[t][i]`` and the accuracy on the union of all tasks seen, in percent."""
    matrix, union = [], []
    for t, session in enumerate(scores):
        row = session[name]
        matrix.append([percent(hits, total) for hits, total in row])
        seen = row[: t + 1]  # a row may hold tasks whose turn has not come
        union.append(percent(sum(hits for hits, _ in seen), sum(total for _, total in seen)))
    return matrix, union


def percent(hits: int, total: int) -> float:
    """Hits in percent of the total."""
    return 100 * hits / total


def all_metrics(
    matrix: list[list[float]], union: list[float], summary: metrics.Summary, known: int = 0
) -> dict[str, float | None]:
    """Avg, Last and Fgt as the paper's table has them, and every metric by its own name."""
    found = {
        "avg": summary.avg,
        "last": summary.last,
        "forgetting": summary.forgetting,
        "plasticity": metrics.new_task_plasticity(matrix, known),
        "average_incremental": metrics.average_incremental(union, known),
        "final_union": metrics.final_union(union),
        "final_average": metrics.final_average(matrix),
        "last_task": metrics.last_task(matrix),
        "forgetting_max_last": metrics.forgetting_max_last(matrix),
        "forgetting_diagonal_last": metrics.forgetting_diagonal_last(matrix),
        "backward_transfer": metrics.backward_transfer(matrix),
    }
    return {name: defined(value) for name, value in found.items()}


def defined(value: float) -> float | None:
    """None for NaN, which JSON does not have: one task leaves nothing to forget."""
    return None if math.isnan(value) else value
