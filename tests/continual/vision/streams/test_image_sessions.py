"""A folder of sessions: files of images side by side, with the classes of all."""

import numpy as np
import pytest

from riselab.continual.vision.streams import ImageStreamSettings, build_stream


def session(folder, name, classes, level, count=6):
    """Gray images of one level, a third of them for testing."""
    labels = np.arange(count * len(classes)) % len(classes)
    images = np.full((len(labels), 4, 4), level, dtype=np.uint8)
    np.savez(folder / f"{name}.npz", train_images=images, train_labels=labels,
             test_images=images[:4], test_labels=labels[:4], class_names=classes)  # fmt: skip


def settings(folder, **changes):
    plain = {"source": "sessions", "data": str(folder), "kind": "domains", "image_size": 4}
    return ImageStreamSettings(**(plain | {"augment": "none", "test_view": "direct"} | changes))


def test_every_entry_is_a_session_with_the_classes_of_all(tmp_path):
    session(tmp_path, "1-new", ["dog", "cow"], 200)
    session(tmp_path, "0-old", ["cat", "dog"], 100)
    stream = build_stream(settings(tmp_path, known=1))
    assert [task.name for task in stream] == ["0-old", "1-new"]
    assert all(task.classes == ("cat", "dog", "cow") for task in stream)
    assert [sorted(set(task.train.labels.tolist())) for task in stream] == [[0, 1], [1, 2]]
    assert [len(task.train) for task in stream] == [12, 12]
    assert stream.known == 1


def test_examples_can_be_limited(tmp_path):
    session(tmp_path, "a", ["x", "y"], 10)
    stream = build_stream(settings(tmp_path, train_per_class=2, test_per_class=1))
    assert (len(stream[0].train), len(stream[0].test)) == (4, 2)


def test_mistakes(tmp_path):
    with pytest.raises(FileNotFoundError, match="no sessions in"):
        build_stream(settings(tmp_path))
    with pytest.raises(ValueError, match='kind must be "domains"'):
        settings(tmp_path, kind="classes")
    with pytest.raises(ValueError, match='kind must be "domains", without turns'):
        settings(tmp_path, turns=(0, 90))
