"""Metrics of continual learning from the accuracy matrix: one small function per definition.

``A[t][i]`` is the accuracy on task ``i`` after session ``t``, counted from 0, with ``T`` tasks.
Entries that a metric does not use (usually those above the diagonal) may be NaN, None or absent.
``union[t]`` is the accuracy after session ``t`` on the test data of all tasks seen so far.
Use percent or fractions, not both; a number outside [0, 100] is an error.

The first ``known`` tasks may be known from the start: they are never trained, and their rows are
the scores before any training. What is learned is then counted over the other tasks only.

Where a mean is over earlier tasks and there are none (``T = 1``), the result is NaN: nothing could
be forgotten or transferred yet. ``docs/metrics.md`` says which definition who uses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from numpy.typing import NDArray
from torch import Tensor

Vector = Sequence[float | None] | NDArray[Any] | Tensor
Matrix = Sequence[Vector] | NDArray[Any] | Tensor

SLACK = 1e-3
"""How far accuracies may lie outside [0, 100]: a float32 mean of ones can exceed 1 a little."""


@dataclass(frozen=True)
class Summary:
    """The three columns of the paper's tables."""

    avg: float
    last: float
    forgetting: float


def summary_vision(A: Matrix, union: Vector, known: int = 0) -> Summary:
    """Avg, Last and Fgt of the vision tables (1 and 3).

    Avg is ``average_incremental``, Last is ``final_union``, Fgt is ``forgetting_max_last``.

    >>> summary_vision([[90], [70, 80]], union=[90, 75])
    Summary(avg=82.5, last=75.0, forgetting=20.0)
    """
    seen = _checked_union(union)
    if len(seen) != len(_rows(A)):
        raise ValueError(
            f"union must have one accuracy per session, {len(_rows(A))} here, got {len(seen)}"
        )
    return Summary(average_incremental(seen, known), final_union(seen), forgetting_max_last(A))


def summary_language(A: Matrix) -> Summary:
    """Avg, Last and Fgt of the language table (2).

    Avg is ``final_average``, Last is ``last_task``, Fgt is ``forgetting_max_last``.

    >>> summary_language([[90], [70, 80]])
    Summary(avg=75.0, last=80.0, forgetting=20.0)
    """
    return Summary(final_average(A), last_task(A), forgetting_max_last(A))


def summary_domains(A: Matrix) -> Summary:
    """Avg, Last and Fgt where all tasks share their classes (streams of domains).

    Avg is ``final_average``, Last is ``last_task``, Fgt is ``forgetting_max_last``: as in language,
    because no task adds answers that make the earlier ones harder.

    >>> summary_domains([[90], [70, 80]])
    Summary(avg=75.0, last=80.0, forgetting=20.0)
    """
    return summary_language(A)


def average_incremental(union: Vector, known: int = 0) -> float:
    """``mean_t union[t]``: the accuracy on everything seen so far, averaged over sessions.

    With ``known`` tasks, over the sessions that train.

    >>> average_incremental([90, 75])
    82.5
    """
    seen = _checked_union(union)
    return _mean(seen[_checked_known(known, len(seen)) :])


def final_union(union: Vector) -> float:
    """``union[T-1]``: the accuracy on the test data of all tasks at the end.

    >>> final_union([90, 75])
    75.0
    """
    return _checked_union(union)[-1]


def union_accuracies(A: Matrix, sizes: Vector | None = None) -> list[float]:
    """``union[t] = sum_{i<=t} n_i A[t][i] / sum_{i<=t} n_i`` for tasks with ``n_i`` test examples.

    Without ``sizes`` all tasks count alike: then ``average_incremental`` of it is the mean over
    sessions of the mean over tasks.

    >>> union_accuracies([[90], [70, 80]], sizes=[100, 300])
    [90.0, 77.5]
    """
    rows = _rows(A)
    weights = [1.0] * len(rows) if sizes is None else _vector("sizes", sizes, len(rows))
    for i, weight in enumerate(weights):
        if not 0 < weight < math.inf:
            raise ValueError(f"sizes must be finite numbers > 0, got sizes[{i}] = {weight}")
    return [
        math.fsum(weights[i] * _at(rows, t, i) for i in range(t + 1)) / math.fsum(weights[: t + 1])
        for t in range(len(rows))
    ]


def final_average(A: Matrix) -> float:
    """``mean_i A[T-1][i]``: all tasks count alike, whatever their size.

    >>> final_average([[90], [70, 80]])
    75.0
    """
    rows = _rows(A)
    return _mean(_at(rows, len(rows) - 1, i) for i in range(len(rows)))


def last_task(A: Matrix) -> float:
    """``A[T-1][T-1]``: the accuracy on the last task right after learning it.

    >>> last_task([[90], [70, 80]])
    80.0
    """
    rows = _rows(A)
    return _at(rows, len(rows) - 1, len(rows) - 1)


def new_task_plasticity(A: Matrix, known: int = 0) -> float:
    """``mean_{i>=known} A[i][i]``: how well each task is learned when it is its turn.

    >>> new_task_plasticity([[90], [70, 80]])
    85.0
    >>> new_task_plasticity([[90], [70, 80]], known=1)
    80.0
    """
    rows = _rows(A)
    return _mean(_at(rows, i, i) for i in range(_checked_known(known, len(rows)), len(rows)))


def forgetting_max_last(A: Matrix) -> float:
    """``mean_{i<T-1} ( max_{i<=t<=T-1} A[t][i] - A[T-1][i] )``: from the best to the last.

    The last session is among those of the maximum, so that no term is negative.

    >>> forgetting_max_last([[60], [80, 90], [70, 95, 90]])
    5.0
    """
    rows = _rows(A)
    end = len(rows) - 1
    return _mean(
        max(_at(rows, t, i) for t in range(i, end + 1)) - _at(rows, end, i) for i in range(end)
    )


def forgetting_diagonal_last(A: Matrix) -> float:
    """``mean_{i<T-1} ( A[i][i] - A[T-1][i] )``: from when it was learned to the last.

    Negative if later tasks help earlier ones.

    >>> forgetting_diagonal_last([[60], [80, 90], [70, 95, 90]])
    -7.5
    """
    rows = _rows(A)
    end = len(rows) - 1
    return _mean(_at(rows, i, i) - _at(rows, end, i) for i in range(end))


def backward_transfer(A: Matrix) -> float:
    """``mean_{i<T-1} ( A[T-1][i] - A[i][i] )``: diagonal-last forgetting with the other sign.

    >>> backward_transfer([[60], [80, 90], [70, 95, 90]])
    7.5
    """
    rows = _rows(A)
    end = len(rows) - 1
    return _mean(_at(rows, end, i) - _at(rows, i, i) for i in range(end))


def forward_transfer(A: Matrix, baseline: Vector, known: int = 0) -> float:
    """``mean_{i>known} ( A[i-1][i] - baseline[i] )``: what training gives a task before its turn.

    ``baseline[i]`` is the accuracy on task ``i`` of a model that learned nothing of the stream, at
    random initialization or zero-shot; up to ``baseline[known]`` they are not used.

    >>> forward_transfer([[90, 30], [70, 80]], baseline=[0, 10])
    20.0
    """
    rows = _rows(A)
    reference = _vector("baseline", baseline, len(rows))
    first = _checked_known(known, len(rows)) + 1
    return _mean(
        _at(rows, i - 1, i) - _accuracy(reference[i], f"baseline[{i}]")
        for i in range(first, len(rows))
    )


def intransigence(A: Matrix, joint: Vector, known: int = 0) -> float:
    """``mean_{i>=known} ( joint[i] - A[i][i] )``: what learning in sequence costs each new task.

    ``joint[i]`` is the accuracy on task ``i`` of a model that learned tasks ``0..i`` together.

    >>> intransigence([[90], [70, 80]], joint=[90, 86])
    3.0
    """
    rows = _rows(A)
    reference = _vector("joint", joint, len(rows))
    learned = range(_checked_known(known, len(rows)), len(rows))
    return _mean(_accuracy(reference[i], f"joint[{i}]") - _at(rows, i, i) for i in learned)


def _mean(values: Iterable[float]) -> float:
    terms = list(values)
    return math.fsum(terms) / len(terms) if terms else math.nan


def _rows(A: Matrix) -> list[list[float]]:
    """The matrix as lists, NaN where nothing is given."""
    given = A.tolist() if hasattr(A, "tolist") else A
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"A must be rows of accuracies, got {type(A).__name__}")
    rows = [_vector(f"A[{t}]", row) for t, row in enumerate(given)]
    lengths = {len(row) for row in rows}
    if not rows or max(lengths) > len(rows) or (len(lengths) == 1 and lengths != {len(rows)}):
        raise ValueError(
            "A must be square with at least one task (entries above the diagonal may be absent), "
            f"got {len(rows)} rows of length {sorted(lengths) or 'none'}"
        )
    return [row + [math.nan] * (len(rows) - len(row)) for row in rows]


def _vector(name: str, values: object, length: int | None = None) -> list[float]:
    """Numbers as floats, NaN for None; ``length`` is how many there must be."""
    given = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{name} must be a sequence of numbers, got {type(values).__name__}")
    if length is not None and len(given) != length:
        raise ValueError(f"{name} must have one number per task, {length} here, got {len(given)}")
    return [_number(value, f"{name}[{i}]") for i, value in enumerate(given)]


def _number(value: object, where: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, Tensor):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{where} must be a number, got {value!r} ({type(value).__name__})")
    return float(value)


def _at(rows: list[list[float]], t: int, i: int) -> float:
    return _accuracy(rows[t][i], f"A[{t}][{i}]")


def _accuracy(value: float, where: str) -> float:
    if math.isnan(value):
        raise ValueError(f"{where} is needed, got NaN or nothing")
    if not -SLACK <= value <= 100 + SLACK:
        raise ValueError(f"{where} must be an accuracy in [0, 100], got {value}")
    return value


def _checked_known(known: int, tasks: int) -> int:
    if not 0 <= known < tasks:
        raise ValueError(f"known must be at least 0 and less than the {tasks} tasks, got {known}")
    return known


def _checked_union(union: Vector) -> list[float]:
    values = _vector("union", union)
    if not values:
        raise ValueError("union must have at least one accuracy, got none")
    return [_accuracy(value, f"union[{t}]") for t, value in enumerate(values)]
