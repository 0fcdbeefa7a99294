"""The class order is the published one; sessions cover the classes."""

import numpy as np
import pytest

from riselab.continual.vision.streams import sessions
from riselab.continual.vision.streams.images import class_order

CIFAR100 = """68 56 78 8 23 84 90 65 74 76 40 89 3 92 55 9 26 80 43 38 58 70 77 1 85 19 17 50 28 53
13 81 45 82 6 59 83 16 15 44 91 41 72 60 79 52 20 10 31 54 37 95 14 71 96 98 97 2 64 66 42 22 35 86
24 34 87 21 99 0 88 27 18 94 11 12 47 25 30 46 62 69 36 61 7 63 75 5 32 4 51 48 73 93 39 67 29 49 57
33"""

PUBLISHED = {
    100: [int(number) for number in CIFAR100.split()],
    200: [168, 136, 51, 9, 183, 101, 171, 99, 42, 159],
    345: [214, 80, 343, 268, 224, 97, 253, 55, 165, 170],
}


@pytest.mark.parametrize("count", PUBLISHED)
def test_the_default_order_is_the_published_one(count):
    order = class_order(count).tolist()
    assert order[: len(PUBLISHED[count])] == PUBLISHED[count]
    assert sorted(order) == list(range(count))


def test_the_order_is_that_of_the_global_generator_which_is_left_alone():
    np.random.seed(7)
    expected = np.random.permutation(30)
    np.random.seed(3)
    assert np.array_equal(class_order(30, seed=7), expected)
    after = np.random.rand()
    np.random.seed(3)
    assert after == np.random.rand()


@pytest.mark.parametrize(
    ("count", "base", "increment", "sizes"),
    [
        (100, 0, 5, [5] * 20),
        (200, 0, 5, [5] * 40),
        (345, 0, 69, [69] * 5),
        (10, 4, 2, [4, 2, 2, 2]),
        (10, 0, 4, [4, 4, 2]),
        (10, 10, 3, [10]),
        (10, 9, 10, [9, 1]),
        (1, 0, 1, [1]),
    ],
)
def test_sessions_cover_the_classes_in_order(count, base, increment, sizes):
    cuts = sessions(count, base, increment)
    assert [len(cut) for cut in cuts] == sizes
    assert [position for cut in cuts for position in cut] == list(range(count))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10, 11, 1), r"base must be within 0\.\.10, the number of classes, got 11"),
        ((10, -1, 1), r"base must be within 0\.\.10, .* got -1"),
        ((10, 0, 11), r"increment must be within 1\.\.10, the number of classes, got 11"),
        ((10, 0, 0), r"increment must be within 1\.\.10, .* got 0"),
        ((0, 0, 1), "count must be at least 1 class, got 0"),
    ],
)
def test_impossible_sessions_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        sessions(*arguments)
