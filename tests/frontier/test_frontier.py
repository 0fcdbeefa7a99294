"""Curves with known answers, what may not be compared, and intervals that cover the truth."""

import numpy as np
import pytest

from riselab.frontier.curves import RunPoint, curves, together
from riselab.frontier.equal_learning import Frontier, common_range, compare

RATES = (1.0, 2.0, 3.0, 4.0)


def runs(method, learned, forgotten, seeds=(0, 1, 2), start=None, rates=RATES):
    """One run per rate and seed from two functions of (rate, seed)."""
    return [
        RunPoint(method, f"lr={r}", s, learned(r, s), forgotten(r, s), 50.0, start)
        for r in rates
        for s in seeds
    ]


def line(method, slope, offset=0.0, scatter=0.0):
    """Forgetting ``offset + slope * learning``, learning 10 per rate; seeds along the line."""
    learned = lambda r, s: 10 * r + scatter * (s - 1)  # noqa: E731
    return runs(method, learned, lambda r, s: offset + slope * learned(r, s))


def test_a_line_is_read_exactly_between_its_points():
    curve = curves(line("FO", 0.5))["FO"]
    assert curve.range == (10, 40)
    for level in (10, 17, 25, 40):
        assert curve.forgotten_at(level) == pytest.approx(dict.fromkeys((0, 1, 2), 0.5 * level))


def test_seeds_that_lie_along_the_line_do_not_scatter():
    """A seed that learned more forgot more; at equal learning that is no difference."""
    curve = curves(line("FO", 0.5, scatter=3.0))["FO"]
    assert curve.forgotten_at(25) == pytest.approx({0: 12.5, 1: 12.5, 2: 12.5})


def test_each_seed_is_read_between_its_own_runs():
    """By hand, at a quarter of the way from 4 to 8 and from 2 to 22."""
    forgotten = {(1.0, 0): 4.0, (2.0, 0): 8.0, (1.0, 1): 2.0, (2.0, 1): 22.0}
    points = runs("FO", lambda r, s: 10 * r, lambda r, s: forgotten[r, s], (0, 1), rates=(1.0, 2.0))
    assert curves(points)["FO"].forgotten_at(12.5) == pytest.approx({0: 5.0, 1: 7.0})


def test_a_setting_beaten_in_both_respects_is_not_on_the_curve():
    wild = runs(
        "FO", lambda r, s: {5.0: 30.0}.get(r, 10 * r), lambda r, s: 5 * r, rates=(*RATES, 5.0)
    )
    curve = curves(wild)["FO"]
    assert [setting.name for setting in curve.front] == ["lr=1.0", "lr=2.0", "lr=3.0", "lr=4.0"]
    assert len(curve.settings) == 5


def test_which_settings_are_on_the_curve_is_decided_by_means():
    """Seed 0 alone would prefer b, seed 1 alone a: the mean decides, and for both seeds."""
    points = [
        RunPoint("m", "a", 0, 50, 20, 50),
        RunPoint("m", "a", 1, 50, 10, 50),
        RunPoint("m", "b", 0, 50, 12, 50),
        RunPoint("m", "b", 1, 50, 20, 50),
    ]
    (setting,) = curves(points)["m"].front
    assert setting.name == "a"
    assert curves(points)["m"].forgotten_at(50) == {0: 20, 1: 10}


def test_a_known_difference():
    noisy = line("FO", 0.5) + runs(
        "informed", lambda r, s: 10 * r, lambda r, s: 2 * r + (s - 1), seeds=(0, 1, 2)
    )
    found = Frontier(noisy, ["FO"]).compare("informed", 25)
    assert found.level == 25
    assert found.difference.mean == pytest.approx(5 - 12.5)
    # By hand: deviations -1, 0, 1 of three seeds, t(0.975; 2) = 4.302653.
    assert found.difference.high - found.difference.mean == pytest.approx(4.302653 / 3**0.5, 1e-5)
    assert found.verdict == "less"


def test_the_most_learning_in_common_is_the_default():
    other = runs("slow", lambda r, s: 6 * r, lambda r, s: r)
    frontier = Frontier(line("FO", 0.5) + other, ["FO"])
    assert common_range(frontier.curves["slow"], frontier.reference) == (10, 24)
    assert frontier.compare("slow").level == 24


def test_nothing_is_said_outside_the_common_range():
    far = runs("far", lambda r, s: 50 + r, lambda r, s: 0.0)
    found = Frontier(line("FO", 0.5) + far, ["FO"]).compare("far")
    assert (found.level, found.difference, found.verdict) == (None, None, "no common range")
    inside = Frontier(line("FO", 0.5) + line("x", 0.1), ["FO"]).compare("x", 45)
    assert inside.verdict == "no common range"
    with pytest.raises(ValueError, match=r"curve of 'FO' covers 10 to 40 \(learned\), got 45"):
        curves(line("FO", 0.5))["FO"].forgotten_at(45)


def test_a_dead_model_wins_nothing():
    """No forgetting because nothing was learned: zero-shot is 20 and seeds scatter around it."""
    dead = runs("dead", lambda r, s: 20 + (s - 1), lambda r, s: 0.0, start=20.0)
    frontier = Frontier(line("FO", 0.5) + dead, ["FO"])
    assert len(frontier.curves["dead"].dead) == len(RATES)
    assert frontier.compare("dead").verdict == "learned nothing"
    assert "no learning in common" in frontier.sentence()
    assert frontier.best().method == "FO"


@pytest.mark.parametrize("gains", [(42.0,), (42.0, 60.0), (3.0, 42.0, 60.0)])
def test_more_seeds_do_not_undo_what_each_of_them_learned(gains):
    """Two seeds have a t interval of 12.7 standard errors on either side: 42 and 60 reach zero."""
    points = [
        RunPoint("FO", "lr=1", s, 20 + gain, 5.0, 50.0, start=20.0, noise=2.0)
        for s, gain in enumerate(gains)
    ]
    assert curves(points)["FO"].settings[0].learned_something


def test_one_of_two_seeds_is_not_most_of_them():
    points = [RunPoint("FO", "lr=1", s, 20 + gain, 5.0, 50.0, start=20.0, noise=2.0)
              for s, gain in enumerate((3.0, 42.0))]  # fmt: skip
    assert not curves(points)["FO"].settings[0].learned_something


def test_the_reference_is_the_best_of_several():
    adam, sgd = line("AdamW", 0.5), runs("SGD", lambda r, s: 10 * r, lambda r, s: 20 - 4 * (r == 4))
    frontier = Frontier(adam + sgd + line("RISE", 0.5), ["AdamW", "SGD"])
    assert frontier.reference.name == "best of AdamW and SGD"
    assert frontier.reference.forgotten_at(40)[0] == 16  # SGD's, where AdamW has 20
    assert frontier.compare("RISE", 10).difference.mean == 0
    both = together("both", [frontier.curves["AdamW"], frontier.curves["SGD"]])
    assert both.front == frontier.reference.front


def test_the_best_setting():
    frontier = Frontier(line("FO", 0.5) + line("informed", 0.1), ["FO"])
    assert frontier.best(learning=25).method == "informed"
    assert frontier.best(learning=25).name == "lr=3.0"
    with pytest.raises(
        ValueError, match="learning must be at most 40, the most of any setting, got 60"
    ):
        frontier.best(learning=60)


def test_of_those_that_learned_nothing_none_is_best():
    dead = runs("dead", lambda r, s: 20 + (s - 1), lambda r, s: 0.0, start=20.0)
    frontier = Frontier(dead, ["dead"])
    for learning in (None, 60):
        with pytest.raises(ValueError, match="no setting learned more than an untrained model"):
            frontier.best(learning=learning)


def test_settings_are_in_the_order_of_their_sweep():
    """Numbers by size, whatever was learned there, and whatever order they were run in."""
    learned = {0.001: 50.0, 0.01: 40.0, 3e-05: 45.0, 0.003: 60.0}
    points = [RunPoint("FO", f"lr={r}", s, learned[r], r, 50.0) for r in learned for s in (0, 1)]
    found = curves(points)["FO"].settings
    assert [setting.name for setting in found] == ["lr=3e-05", "lr=0.001", "lr=0.003", "lr=0.01"]
    assert {setting.line for setting in found} == {""}


def test_two_things_that_were_swept_make_a_line_for_each_value_of_the_first():
    pairs = [(r, share) for r in (0.01, 0.001) for share in (0.5, 0.25)]
    points = [RunPoint("m", f"m (lr={r}, share={s})", 0, 10 * s, r, 50.0) for r, s in pairs]
    found = curves(points)["m"].settings
    assert [(setting.line, setting.knobs["share"]) for setting in found] == [
        ("lr=0.001", "0.25"), ("lr=0.001", "0.5"), ("lr=0.01", "0.25"), ("lr=0.01", "0.5"),
    ]  # fmt: skip


def test_names_without_numbers_stay_as_they_came():
    points = [RunPoint("m", name, 0, at, 0.0, 50.0) for at, name in enumerate(("b", "a", "c"))]
    assert [setting.name for setting in curves(points)["m"].settings] == ["b", "a", "c"]
    words = [RunPoint("m", f"on={w}, lr={r}", 0, 1.0, 0.0, 0.0) for w in "ba" for r in (10, 9)]
    assert [s.name for s in curves(words)["m"].settings] == [
        "on=a, lr=9", "on=a, lr=10", "on=b, lr=9", "on=b, lr=10"
    ]  # fmt: skip


def test_the_sentence_says_what_is_undecided():
    noise = {0: 4.0, 1: -5.0, 2: 1.0}
    near = runs("near", lambda r, s: 10 * r, lambda r, s: 5 * r + noise[s])
    frontier = Frontier(line("FO", 0.5) + near, ["FO"])
    assert frontier.compare("near").verdict == "open"
    said = "At equal learning no method forgets less than FO by more than noise."
    assert frontier.sentence() == said
    few = Frontier([point for point in frontier.runs if point.seed < 2], ["FO"])
    assert few.sentence() == (
        f"{said} At equal learning (40.0 % on new tasks), near forgets 19.5 points, FO 20.0: "
        "0.5 less, 95 % interval -56.7 to 57.7; 2 seeds."
    )


def test_bad_input():
    with pytest.raises(ValueError, match="reference must be one of FO; got 'fo'"):
        Frontier(line("FO", 0.5), ["fo"])
    with pytest.raises(ValueError, match=r"two runs of 'FO' at 'lr=1\.0' have the seed 0"):
        curves(line("FO", 0.5) + line("FO", 0.5))


def test_intervals_cover_the_truth():
    """Made-up sweeps with a known difference of 4 points: about 95 % of the intervals hold it.

    A seed moves a run along its curve (easier data: more learned, more forgotten) and beside it.
    """
    rng, hits, trials = np.random.default_rng(0), 0, 600
    for _ in range(trials):
        points = []
        ease = rng.normal(0, 2, 5)
        for method, less in (("FO", 0.0), ("informed", 4.0)):
            for rate in (60.0, 70.0, 80.0):
                for seed in range(5):
                    learned = rate + ease[seed] + rng.normal(0, 1)
                    forgotten = (0.8 * (learned - 50) - less) + rng.normal(0, 1)
                    points.append(RunPoint(method, f"lr={rate}", seed, learned, forgotten, 0.0))
        frontier = Frontier(points, ["FO"])
        found = compare(frontier.curves["informed"], frontier.reference, 72.0)
        hits += found.difference.low <= -4.0 <= found.difference.high
    error = (0.95 * 0.05 / trials) ** 0.5
    assert abs(hits / trials - 0.95) < 4 * error


def test_a_curve_that_ends_upright_is_read_below_its_end():
    """The last step learns 0.1 more and forgets 30 more: noise in learning would decide there."""
    steep = [("a", 80.0, 10.0), ("b", 90.0, 20.0), ("c", 90.1, 50.0)]
    flat = [("a", 80.0, 5.0), ("b", 92.0, 8.0)]
    noise = {0: -0.05, 1: 0.0, 2: 0.05}
    points = [
        RunPoint(method, name, seed, learned + noise[seed], forgotten, 50.0)
        for method, curve in (("FO", steep), ("informed", flat))
        for name, learned, forgotten in curve
        for seed in noise
    ]
    (found,) = Frontier(points, reference=["FO"]).comparisons
    assert found.level == pytest.approx(90.0)
    assert found.verdict == "less"
    assert found.of_reference.mean == pytest.approx(20.0)
    near_the_end = compare(*(curves(points)[name] for name in ("informed", "FO")), level=90.05)
    assert near_the_end.of_reference.mean == pytest.approx(35.0)


def test_one_seed_is_not_judged_however_large_the_difference():
    """It is neither noise nor a finding: nothing says how much seeds scatter."""
    points = [p for p in line("FO", 0.9) + line("informed", 0.3) if p.seed == 0]
    found = Frontier(points, ["FO"])
    assert found.comparisons[0].verdict == "one seed"
    assert found.sentence() == (
        "With one seed, a difference between methods may be noise. At equal "
        "learning (40.0 % on new tasks), informed forgets 12.0 points, FO 36.0: 24.0 less."
    )
    judged = runs("more", lambda r, s: 10 * r, lambda r, s: 20.0 * r)
    several = Frontier(line("FO", 0.9) + points[len(points) // 2 :] + judged, ["FO"])
    assert {f.method: f.verdict for f in several.comparisons} == {
        "informed": "one seed",
        "more": "more",
    }
    assert "by more than noise" in several.sentence()


def test_verdicts_are_corrected_for_the_number_of_methods():
    """One barely clear difference among ten is what noise makes; alone it counts."""
    near = runs("near", lambda r, s: 10 * r, lambda r, s: 4 * r + s - 1)
    far = runs("far", lambda r, s: 10 * r, lambda r, s: r + (s - 1) * 0.01)
    same = [point for k in range(8) for point in line(f"same {k}", 0.5, scatter=k + 1.0)]
    alone = Frontier(line("FO", 0.5) + near, ["FO"])
    several = Frontier(line("FO", 0.5) + near + far + same, ["FO"])
    verdict = {one.method: one.verdict for one in several.comparisons}
    assert alone.comparisons[0].verdict == "less"
    assert (verdict["near"], verdict["far"]) == ("open", "less")
    assert several.compare("near").verdict == "less", "of one method nothing is to be corrected"
    (listed,) = [one for one in several.comparisons if one.method == "near"]
    assert listed.difference == alone.comparisons[0].difference, "intervals stay as they are"
