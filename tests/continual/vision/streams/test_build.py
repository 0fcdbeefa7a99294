"""From settings to tasks: labels, counts, seeds, notes."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from riselab.continual.vision.streams import ImageStreamSettings, build_stream, named_stream
from riselab.continual.vision.streams.images import class_order

PARTS = ("train", "validation", "test")


@pytest.fixture
def build(npz_file):
    def build(**changes):
        fields = {"source": "npz", "data": str(npz_file), "increment": 2, "image_size": 8}
        return build_stream(ImageStreamSettings(**fields | changes))

    return build


def places(stream, part):
    """Which images a stream uses, session by session."""
    splits = [getattr(task, part) for task in stream]
    return [[split.where(index) for index in range(len(split))] for split in splits]


def counts(stream, part):
    labels = torch.cat([getattr(task, part).labels for task in stream])
    return torch.bincount(labels, minlength=6).tolist()


def test_labels_are_positions_in_the_order(build, npz_file):
    stream, content = build(), np.load(npz_file)
    order = class_order(6)
    for number, task in enumerate(stream):
        assert task.name == f"session {number}"
        assert task.classes == tuple(str(n) for n in order[2 * number : 2 * number + 2])
        for part in ("train", "test"):
            split = getattr(task, part)
            assert split.labels.dtype == torch.int64
            assert set(split.labels.tolist()) == {2 * number, 2 * number + 1}
            for index, label in enumerate(split.labels.tolist()):
                row = int(split.where(index).split()[1])
                assert content[f"{part}_labels"][row] == order[label]


def test_all_images_are_used_once(build):
    stream = build(validation=0.2)
    train = [place for part in ("train", "validation") for p in places(stream, part) for place in p]
    assert sorted(train) == sorted(f"image {n}" for n in range(60))
    test = [place for session in places(stream, "test") for place in session]
    assert sorted(test) == sorted(f"image {n}" for n in range(24))
    assert [counts(stream, part) for part in PARTS] == [[8] * 6, [2] * 6, [4] * 6]


def test_there_is_no_validation_unless_asked_for(build):
    assert [task.sizes() for task in build()] == [{"train": 20, "validation": 0, "test": 8}] * 3


def test_subsets_per_class(build):
    stream = build(train_per_class=5, test_per_class=3, validation=0.2)
    assert [counts(stream, part) for part in PARTS] == [[4] * 6, [1] * 6, [3] * 6]
    assert counts(build(train_per_class=100), "train") == [10] * 6


def test_sizes_beyond_what_is_there_are_noted(build, npz_file):
    assert build(train_per_class=10, test_per_class=4).notes == ()
    notes = build(class_order="natural", train_per_class=11, test_per_class=5).notes
    every = "0 has {0}, 1 has {0}, 2 has {0}, 3 has {0}, 4 has {0}, 5 has {0}"
    assert notes == (
        f"train_per_class=11 is more than there is: {every.format(10)}",
        f"test_per_class=5 is more than there is: {every.format(4)}",
    )


def test_a_test_set_that_lacks_a_class_is_noted(build, npz_file):
    content = dict(np.load(npz_file))
    content["test_labels"] = np.where(content["test_labels"] == 3, 2, content["test_labels"])
    np.savez(npz_file, **content)
    assert build(class_order="natural", test_per_class=3).notes == ("no test examples for 3",)
    assert build(class_order="natural", classes=2, test_per_class=3).notes == ()


def test_the_split_seed_moves_the_splits_and_nothing_else(build):
    settings = {"train_per_class": 5, "test_per_class": 2, "validation": 0.2}
    one, same, other = (build(**settings, split_seed=seed) for seed in (0, 0, 1))
    for part in PARTS:
        assert places(one, part) == places(same, part)
        assert places(one, part) != places(other, part)
    assert [task.classes for task in one] == [task.classes for task in other]


def test_the_order_seed_moves_the_classes_and_nothing_else(build):
    one, other = (build(train_per_class=5, order_seed=seed) for seed in (1993, 5))
    assert [task.classes for task in one] != [task.classes for task in other]
    used = [{p for session in places(stream, "train") for p in session} for stream in (one, other)]
    assert used[0] == used[1]


def test_orders(build):
    def classes(**changes):
        return [name for task in build(**changes) for name in task.classes]

    assert classes(class_order="natural") == list("012345")
    assert classes(classes=4) == [str(n) for n in class_order(6)[:4]]


def test_base_and_a_smaller_last_session(build):
    stream = build(base=3, increment=2)
    assert [len(task.classes) for task in stream] == [3, 2, 1]
    assert stream.notes == ("the last session has 1 classes, fewer than increment=2",)
    assert build(base=4).notes == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"increment": 7}, r"increment must be within 1\.\.6, the number of classes, got 7"),
        ({"base": 7}, r"base must be within 0\.\.6, the number of classes, got 7"),
        ({"classes": 7}, "classes must be at most 6 here, got 7"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_errors(build, changes, message):
    with pytest.raises(ValueError, match=message):
        build(**changes)


def test_a_named_stream_that_was_changed_says_so(npz_file):
    settings = named_stream("digits", image_size=16, validation=0.1)
    assert build_stream(settings).notes[0] == (
        "differs from the named stream digits: validation=0.1, image_size=16"
    )


def test_importing_the_streams_is_light():
    code = (
        "import sys, riselab.continual.vision.streams;"
        "heavy = 'datasets sklearn torchvision PIL timm';"
        "print([module for module in heavy.split() if module in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
