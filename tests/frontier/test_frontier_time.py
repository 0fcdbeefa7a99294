"""A budget of time, with a clock that only moves when a run does."""

import pytest

from riselab.frontier.grid import Ticker, TimeBudget, run_stages

METHODS = ("a", "b")
GRID = [(m, rate, seed) for m in METHODS for rate in range(5) for seed in range(3)]


def placed(cell):
    """Rate and seed."""
    return cell[1:]


class Bench:
    """Runs of ``cost`` seconds each."""

    def __init__(self, seconds, cost, done=()):
        self.now, self.cost, self.done, self.ran = 0.0, cost, set(done), []
        self.following = []
        self.budget = TimeBudget(seconds, lambda: self.now)

    def run(self, cell, following):
        self.following.append(following)
        self.now += self.cost
        self.budget.paces.append(self.cost)
        self.ran.append(cell)
        self.done.add(cell)

    def go(self):
        return run_stages(GRID, placed, self.budget, self.done.__contains__, self.run)


def test_every_method_has_a_rate_before_any_has_two():
    bench = Bench(seconds=1000, cost=1)
    bench.go()
    assert [cell[:2] for cell in bench.ran[:6]] == [(m, r) for r in range(3) for m in METHODS]
    assert [{cell[2] for cell in bench.ran[n : n + 6]} for n in (0, 6, 12)] == [{0}, {1}, {2}]
    assert {cell[1] for cell in bench.ran[:18]} == {0, 1, 2}
    assert sorted(bench.ran) == sorted(GRID)
    assert bench.following[:7] == [5, 4, 3, 2, 1, 0, 5], "of the same stage"


def test_with_enough_time_nothing_is_cut():
    bench = Bench(seconds=1000, cost=1)
    assert bench.go() == []
    assert len(bench.ran) == len(GRID)


@pytest.mark.parametrize(
    ("seconds", "runs", "cut"),
    [
        (29, 18, ["12 runs for up to 5 rates with up to 3 seeds"]),
        (17, 12, ["6 runs for up to 3 rates with up to 3 seeds", "12 runs for up to 5 rates"]),
        (4, 4, ["2 of 6 runs for up to 3 rates with one seed", "6 runs for up to 3 rates"]),
    ],
)
def test_a_stage_is_run_whole_or_not_at_all_and_the_first_as_far_as_it_goes(seconds, runs, cut):
    bench = Bench(seconds, cost=1)
    told = bench.go()
    assert len(bench.ran) == runs
    assert [text.startswith(wanted) for text, wanted in zip(told, cut, strict=False)] == [
        True for _ in cut
    ]


@pytest.mark.parametrize("cost", [0.7, 3.0, 11.0, 100.0])
@pytest.mark.parametrize("seconds", [1, 10, 60])
def test_it_never_takes_longer_than_one_run_more(seconds, cost):
    bench = Bench(seconds, cost)
    bench.go()
    assert bench.now <= max(seconds, cost) + 1e-9
    assert bench.ran  # the pace cannot be known without one run


def test_runs_that_become_slower_stop_it_too():
    bench = Bench(seconds=20, cost=1)

    def slower(cell, following):
        bench.cost *= 1.5
        Bench.run(bench, cell, following)

    assert run_stages(GRID, placed, bench.budget, bench.done.__contains__, slower)
    assert bench.now <= 20 + bench.cost


def test_what_is_done_is_not_repeated_and_its_time_counts():
    whole = Bench(seconds=1000, cost=1)
    whole.go()
    half = Bench(seconds=30, cost=1, done=whole.ran[:6])
    half.budget.earlier, half.budget.paces = 6.0, [1.0] * 6
    assert half.go() == []
    assert half.ran == whole.ran[6:]
    late = Bench(seconds=6, cost=1, done=whole.ran[:6])
    late.budget.earlier, late.budget.paces = 6.0, [1.0] * 6
    assert len(late.go()) == 3
    assert late.ran == []


def test_a_long_run_says_now_and_then_how_far_it_is():
    now, said = [0.0], []
    ticker = Ticker("keep seed 0", said.append, lambda: now[0])
    for at, news in (
        (50, {"task": 1, "tasks": 1}),  # writing old chats: no pace
        (60, {"task": 1, "tasks": 1, "batch": 1, "batches": 5}),
        (70, {"task": 1, "tasks": 1, "batch": 2, "batches": 5}),
        (80, {"task": 1, "tasks": 1, "batch": 3, "batches": 5}),
        (100, {"task": 1, "tasks": 1, "batch": 5, "batches": 5}),
    ):
        now[0] = at
        ticker.tick(news)
    assert said == [
        "keep seed 0: task 1/1, batch 2/5, about 30 s",
        "keep seed 0: task 1/1, batch 5/5, about 0 s",
    ]
