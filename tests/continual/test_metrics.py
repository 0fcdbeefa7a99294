"""Every metric on one hand-made matrix, what must hold on all of them, and bad input."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from riselab.continual import metrics

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")

# Task 0 falls and recovers a little; task 1 is best in the middle; task 2 gets better at the end.
A = [
    [90, 12],
    [80, 71, 21],
    [85, 73, 88, 30],
    [74, 65, 92, 96],
]
SIZES = [100, 100, 200, 400]
# 90; (80 + 71)/2; (85 + 73 + 2*88)/4; (74 + 65 + 2*92 + 4*96)/8
UNION = [90, 75.5, 83.5, 88.375]
BASELINE = [None, 10, 5, 33]
JOINT = [91, 80, 88, 95]

BY_HAND = {
    # (90 + 75.5 + 83.5 + 88.375) / 4 = 337.375 / 4
    "average_incremental": (lambda: metrics.average_incremental(UNION), 84.34375),
    "final_union": (lambda: metrics.final_union(UNION), 88.375),
    # (74 + 65 + 92 + 96) / 4 = 327 / 4
    "final_average": (lambda: metrics.final_average(A), 81.75),
    "last_task": (lambda: metrics.last_task(A), 96),
    # (90 - 74) + (73 - 65) + (92 - 92) = 16 + 8 + 0, over 3
    "forgetting_max_last": (lambda: metrics.forgetting_max_last(A), 8),
    # (90 - 74) + (71 - 65) + (88 - 92) = 16 + 6 - 4, over 3
    "forgetting_diagonal_last": (lambda: metrics.forgetting_diagonal_last(A), 6),
    "backward_transfer": (lambda: metrics.backward_transfer(A), -6),
    # (12 - 10) + (21 - 5) + (30 - 33) = 2 + 16 - 3, over 3
    "forward_transfer": (lambda: metrics.forward_transfer(A, BASELINE), 5),
    # (90 + 71 + 88 + 96) / 4 = 345 / 4
    "new_task_plasticity": (lambda: metrics.new_task_plasticity(A), 86.25),
    # (91 - 90) + (80 - 71) + (88 - 88) + (95 - 96) = 1 + 9 + 0 - 1, over 4
    "intransigence": (lambda: metrics.intransigence(A, JOINT), 2.25),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name):
    compute, expected = BY_HAND[name]
    assert compute() == expected
    assert type(compute()) is float


def test_union_accuracies_by_hand():
    assert metrics.union_accuracies(A, SIZES) == UNION
    # 90; (80 + 71)/2; (85 + 73 + 88)/3; (74 + 65 + 92 + 96)/4
    assert metrics.union_accuracies(A) == [90, 75.5, 82, 81.75]


def test_summaries_are_the_columns_of_the_tables():
    assert metrics.summary_vision(A, UNION) == metrics.Summary(84.34375, 88.375, 8.0)
    assert metrics.summary_language(A) == metrics.Summary(81.75, 96.0, 8.0)


def test_known_tasks_by_hand():
    """Task 0 is known: what is learned counts from task 1 on."""
    assert metrics.new_task_plasticity(A, known=1) == 85  # (71 + 88 + 96) / 3
    assert metrics.forward_transfer(A, BASELINE, known=1) == 6.5  # (21 - 5 + 30 - 33) / 2
    assert metrics.intransigence(A, JOINT, known=1) == pytest.approx(8 / 3)  # 9 + 0 - 1
    average = (75.5 + 83.5 + 88.375) / 3
    assert metrics.average_incremental(UNION, known=1) == pytest.approx(average)
    assert metrics.summary_vision(A, UNION, known=1).avg == pytest.approx(average)
    assert f"= {average:.4f}`" in PAGE
    for text in ("/ 3 = 85`", "/ 2 = 6.5`"):
        assert text in PAGE
    assert math.isnan(metrics.forward_transfer(A, BASELINE, known=3))


@pytest.mark.parametrize("known", [-1, 4])
def test_known_tasks_leave_one_to_learn(known):
    message = f"known must be at least 0 and less than the 4 tasks, got {known}"
    for compute in (
        lambda: metrics.new_task_plasticity(A, known),
        lambda: metrics.average_incremental(UNION, known),
        lambda: metrics.forward_transfer(A, BASELINE, known),
        lambda: metrics.intransigence(A, JOINT, known),
    ):
        with pytest.raises(ValueError, match=message):
            compute()


def test_the_page_shows_the_same_numbers():
    rows = re.findall(r"^\| `(\w+)\([^`]*\)` \| .* \| (-?[\d.]+) \|$", PAGE, flags=re.MULTILINE)
    assert {name: float(value) for name, value in rows} == {
        name: expected for name, (_, expected) in BY_HAND.items()
    }
    table = re.findall(r"^\| \d \|(.*)\|$", PAGE, flags=re.MULTILINE)
    cells = [[cell.strip() for cell in row.split("|")] for row in table]
    assert [[float(cell) for cell in row if cell] for row in cells] == A


def test_what_the_page_says_of_others():
    """Their formulas, written for indices from 1 as they write them."""
    T = 4

    def R(i, j):
        return A[i - 1][j - 1]

    forgetting = sum(R(T - 1, j) - R(j, j) for j in range(1, T - 1)) / (T - 1)
    transfer = sum(R(i, j) - R(j, j) for i in range(3, T + 1) for j in range(1, i - 1))
    before = [max(R(t, j) for t in range(j, T)) - R(T, j) for j in range(1, T)]
    assert (forgetting, transfer / (T * (T - 1) / 2)) == (-1, -4.5)
    assert sum(before) / 3 == pytest.approx(20 / 3)
    assert "LibContinual's forgetting is -1 and its backward transfer -4.5" in PAGE
    # Zeros above the diagonal, as PILOT has them, change nothing.
    square = np.tril(np.array([row + [0] * (T - len(row)) for row in A], dtype=float))
    assert np.mean((square.max(0) - square[-1])[:-1]) == metrics.forgetting_max_last(A)
    # The values of the language table that show what its columns mean.
    assert pytest.approx(41.11, abs=5e-3) == (4 * 53.33 - 89.99) / 3


# --- forms of input ---

FULL = [row + [math.nan] * (4 - len(row)) for row in A]
FORMS = {
    "numpy": np.array(FULL),
    "torch": torch.tensor(FULL, dtype=torch.float64),
    "float32": torch.tensor(FULL),
    "rows of tensors": [torch.tensor(row) for row in FULL],
    "scalars": [[torch.tensor(float(v)) for v in row] for row in FULL],
    "None": [[None if math.isnan(v) else v for v in row] for row in FULL],
    "tuples": tuple(tuple(row) for row in A),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_the_matrix_gives_the_same(form):
    assert metrics.summary_language(FORMS[form]) == metrics.summary_language(A)
    assert metrics.forward_transfer(FORMS[form], np.array([math.nan, 10, 5, 33])) == 5
    assert metrics.average_incremental(torch.tensor(UNION)) == 84.34375


def test_input_is_left_as_it_was():
    rows = [[90], [70, 80]]
    metrics.summary_vision(rows, union=[90, 75])
    metrics.forgetting_diagonal_last(rows)
    assert rows == [[90], [70, 80]]


def test_one_task_has_nothing_to_forget():
    one = [[80.0]]
    for metric in (
        metrics.forgetting_max_last,
        metrics.forgetting_diagonal_last,
        metrics.backward_transfer,
    ):
        assert math.isnan(metric(one))
    assert math.isnan(metrics.forward_transfer(one, [10]))
    assert metrics.new_task_plasticity(one) == metrics.final_average(one) == 80.0
    assert metrics.last_task(one) == 80.0
    summary = metrics.summary_vision(one, [80.0])
    assert (summary.avg, summary.last) == (80.0, 80.0)
    assert math.isnan(summary.forgetting)


# --- what must hold on every matrix ---

accuracies = st.floats(0, 100, allow_subnormal=False)


@st.composite
def matrices(draw, least=2):
    count = draw(st.integers(least, 6))
    return [draw(st.lists(accuracies, min_size=t + 1, max_size=t + 1)) for t in range(count)]


@given(matrices())
@settings(max_examples=60, deadline=None)
def test_max_last_is_at_least_diagonal_last_and_zero(matrix):
    most = metrics.forgetting_max_last(matrix)
    assert most >= metrics.forgetting_diagonal_last(matrix) - 1e-9
    assert most >= 0


@given(matrices())
@settings(max_examples=60, deadline=None)
def test_backward_transfer_is_minus_diagonal_forgetting(matrix):
    assert metrics.backward_transfer(matrix) == -metrics.forgetting_diagonal_last(matrix)


@given(st.lists(accuracies, min_size=2, max_size=6))
@settings(max_examples=30, deadline=None)
def test_perfect_memory_forgets_nothing(learned):
    matrix = [learned[: t + 1] for t in range(len(learned))]
    assert metrics.forgetting_max_last(matrix) == 0
    assert metrics.forgetting_diagonal_last(matrix) == 0
    assert metrics.final_average(matrix) == metrics.new_task_plasticity(matrix)


@given(matrices(least=1))
@settings(max_examples=60, deadline=None)
def test_final_average_is_plasticity_and_what_became_of_it(matrix):
    count = len(matrix)
    later = metrics.backward_transfer(matrix) * (count - 1) / count if count > 1 else 0.0
    whole = metrics.new_task_plasticity(matrix) + later
    assert metrics.final_average(matrix) == pytest.approx(whole, abs=1e-9)
    assert metrics.final_union(metrics.union_accuracies(matrix)) == pytest.approx(
        metrics.final_average(matrix)
    )
    diagonal = [matrix[i][i] for i in range(count)]
    assert metrics.intransigence(matrix, diagonal) == 0


@given(matrices())
@settings(max_examples=30, deadline=None)
def test_fractions_give_the_same_as_percent(matrix):
    fractions = [[value / 100 for value in row] for row in matrix]
    for metric in (metrics.forgetting_max_last, metrics.backward_transfer, metrics.final_average):
        assert 100 * metric(fractions) == pytest.approx(metric(matrix), abs=1e-9)


# --- bad input ---

OF_THE_MATRIX = [
    metrics.final_average,
    metrics.last_task,
    metrics.new_task_plasticity,
    metrics.forgetting_max_last,
    metrics.forgetting_diagonal_last,
    metrics.backward_transfer,
    metrics.union_accuracies,
    metrics.summary_language,
    lambda matrix: metrics.forward_transfer(matrix, BASELINE),
    lambda matrix: metrics.intransigence(matrix, JOINT),
    lambda matrix: metrics.summary_vision(matrix, UNION),
]


@pytest.mark.parametrize(
    ("matrix", "kind", "message"),
    [
        ([], ValueError, "A must be square with at least one task.*got 0 rows of length none"),
        ([[]], ValueError, r"A must be square.*got 1 rows of length \[0\]"),
        (np.ones((3, 4)), ValueError, r"A must be square.*got 3 rows of length \[4\]"),
        (np.ones((4, 3)), ValueError, r"A must be square.*got 4 rows of length \[3\]"),
        ([[1], [1, 2, 3]], ValueError, r"A must be square.*got 2 rows of length \[1, 3\]"),
        ([1.0, 2.0], TypeError, r"A\[0\] must be a sequence of numbers, got float"),
        (5.0, TypeError, "A must be rows of accuracies, got float"),
        ("90 80", TypeError, "A must be rows of accuracies, got str"),
        ([[90], [80, "70"]], TypeError, r"A\[1\]\[1\] must be a number, got '70' \(str\)"),
    ],
)
def test_matrices_that_are_none(matrix, kind, message):
    for metric in OF_THE_MATRIX:
        with pytest.raises(kind, match=message):
            metric(matrix)


def changed(t, i, value):
    rows = [list(row) for row in A]
    rows[t][i] = value
    return rows


@pytest.mark.parametrize(
    ("metric", "t", "i"),
    [
        (metrics.final_average, 3, 1),
        (metrics.last_task, 3, 3),
        (metrics.new_task_plasticity, 2, 2),
        (metrics.forgetting_max_last, 2, 0),
        (metrics.forgetting_diagonal_last, 1, 1),
        (metrics.backward_transfer, 3, 2),
        (metrics.union_accuracies, 1, 0),
        (lambda matrix: metrics.forward_transfer(matrix, BASELINE), 1, 2),
        (lambda matrix: metrics.intransigence(matrix, JOINT), 0, 0),
        (lambda matrix: metrics.summary_vision(matrix, UNION), 3, 0),
    ],
)
def test_a_needed_entry_that_is_missing_or_no_accuracy_is_named(metric, t, i):
    metric(A)
    with pytest.raises(ValueError, match=rf"A\[{t}\]\[{i}\] is needed, got NaN or nothing"):
        metric(changed(t, i, math.nan))
    for value in (-0.5, 100.5, math.inf):
        message = rf"A\[{t}\]\[{i}\] must be an accuracy in \[0, 100\], got {value}"
        with pytest.raises(ValueError, match=message):
            metric(changed(t, i, value))


def test_entries_that_are_not_needed_may_be_missing():
    assert metrics.final_average(changed(1, 0, math.nan)) == 81.75
    assert metrics.forgetting_diagonal_last(changed(2, 0, None)) == 6
    assert metrics.forward_transfer(changed(3, 0, math.nan), BASELINE) == 5
    with pytest.raises(ValueError, match=r"A\[0\]\[1\] is needed"):
        metrics.forward_transfer([row[: t + 1] for t, row in enumerate(A)], BASELINE)


def test_a_little_rounding_is_no_error():
    assert metrics.last_task([[100.0005]]) == 100.0005


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (lambda: metrics.forward_transfer(A, [1, 2]), "baseline must have one number per task, 4"),
        (lambda: metrics.forward_transfer(A, [0, None, 0, 0]), r"baseline\[1\] is needed"),
        (lambda: metrics.intransigence(A, JOINT[:3]), "joint must have one number per task, 4"),
        (lambda: metrics.intransigence(A, [1, 2, 3, 101]), r"joint\[3\] must be an accuracy"),
        (lambda: metrics.union_accuracies(A, [1, 2, 3]), "sizes must have one number per task, 4"),
        (lambda: metrics.union_accuracies(A, [1, 0, 3, 4]), r"got sizes\[1\] = 0"),
        (lambda: metrics.average_incremental([]), "union must have at least one accuracy"),
        (lambda: metrics.final_union([90, None]), r"union\[1\] is needed"),
        (lambda: metrics.average_incremental([90, 7550]), r"union\[1\] must be an accuracy"),
        (
            lambda: metrics.summary_vision(A, UNION[:3]),
            "union must have one accuracy per session, 4 here, got 3",
        ),
    ],
)
def test_bad_references_are_named(compute, message):
    with pytest.raises(ValueError, match=message):
        compute()
