"""The memory is a uniform sample, and a pure function of seed and moment."""

import math
from collections import Counter

from riselab.continual.additions.replay import ReplaySettings, Reservoir


def filled(size, seed, tasks=3, examples=10):
    memory = Reservoir(size, seed, "test")
    for task in range(tasks):
        memory.see(task, examples)
    return memory


def test_every_example_is_kept_with_the_same_probability():
    seeds, size, seen = 400, 6, 30
    counts = Counter(ref for seed in range(seeds) for ref in filled(size, seed).refs)
    expected = size / seen
    error = math.sqrt(expected * (1 - expected) / seeds)
    shares = [counts[task, index] / seeds for task in range(3) for index in range(10)]
    assert all(abs(share - expected) < 4 * error for share in shares)
    # and together: the sum of squared errors, in units of its own expectation
    spread = sum((share - expected) ** 2 for share in shares) / (seen * error**2)
    assert abs(spread - 1) < 4 * math.sqrt(2 / seen)


def test_it_holds_different_examples_and_never_too_many():
    memory = filled(7, 0)
    assert len(set(memory.refs)) == len(memory.refs) == 7
    assert memory.seen == 30
    assert len(filled(100, 0).refs) == 30


def test_draws_are_different_examples_and_depend_on_the_moment_alone():
    memory = filled(9, 0)
    draw = memory.draw(4, 1, 2, 3)
    assert draw == memory.draw(4, 1, 2, 3)
    assert draw != memory.draw(4, 1, 2, 4)
    assert len(set(draw)) == 4
    assert set(draw) <= set(memory.refs)
    assert sorted(memory.draw(50, 0)) == sorted(memory.refs)
    assert Reservoir(3, 0, "test").draw(2, 0) == []


def test_a_saved_memory_goes_on_as_it_would_have():
    whole, half = filled(5, 4), filled(5, 4, tasks=2)
    resumed = Reservoir(5, 4, "test")
    resumed.load_state_dict(half.state_dict())
    resumed.see(2, 10)
    assert resumed.refs == whole.refs
    assert resumed.draw(3, 1) == whole.draw(3, 1)


def test_a_state_does_not_change_afterwards():
    memory = filled(5, 4, tasks=1)
    state = memory.state_dict()
    before = [list(ref) for ref in state["refs"]]
    memory.see(1, 200)
    assert state["refs"] == before


def test_replay_joins_every_batch_and_the_loss_is_over_all_classes(small):
    replay = ReplaySettings(size=6).make(0)
    small.learn(0, replay)
    assert {task for asked in small.items.asked for task, _ in asked} == {0}
    small.items.asked.clear()
    session = small.session(1, lr=1e-12)
    training = small.training(session, replay)
    loss = training.epoch(0, lambda news: None)
    asked = list(small.items.asked)
    assert [[task for task, _ in refs] for refs in asked] == [[1] * 4 + [0] * 4] * 2
    by_hand = [session.loss(small.items.fetch(refs, 0), True).item() for refs in asked]
    assert math.isclose(loss, sum(by_hand) / 2, rel_tol=1e-6)


def test_replay_takes_a_batch_size_of_its_own(small):
    replay = ReplaySettings(size=6, batch=3).make(0)
    small.learn(0, replay)
    assert len(replay.replayed(1, 0, 0, 48)) == 3
    assert len(ReplaySettings(batch=0).make(0).replayed(0, 0, 0, 48)) == 0
