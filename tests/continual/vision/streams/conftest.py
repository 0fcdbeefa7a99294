"""Datasets made on the spot: every image is a plain color that tells its class and number."""

import numpy as np
import pytest
from PIL import Image


def color(label, number):
    return [40 * label, 200 - 20 * number, 7]


def write(path, label, number):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (12, 10), tuple(color(label, number))).save(path)


@pytest.fixture
def color_of():
    return color


@pytest.fixture
def write_image():
    return write


@pytest.fixture
def image_folder(tmp_path):
    """Four classes, six training and three test images each, as lossless files."""
    root = tmp_path / "images"
    for label, name in enumerate(["ant", "bee", "cat", "dog"]):
        for number in range(6):
            write(root / "train" / name / f"{number}.png", label, number)
        for number in range(6, 9):
            write(root / "test" / name / f"{number}.png", label, number)
    return root


@pytest.fixture
def npz_file(tmp_path):
    """Six classes, ten training and four test images each, 8 x 9, with random pixels."""
    random = np.random.default_rng(0)
    parts = {}
    for part, each in (("train", 10), ("test", 4)):
        labels = random.permutation(np.repeat(np.arange(6), each))
        parts[f"{part}_labels"] = labels.astype(np.uint8)
        shape = (len(labels), 8, 9, 3)
        parts[f"{part}_images"] = random.integers(0, 256, shape, dtype=np.uint8)
    file = tmp_path / "small.npz"
    np.savez(file, **parts)
    return file
