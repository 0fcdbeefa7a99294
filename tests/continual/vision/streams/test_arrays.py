"""Sources in memory: npz, digits, CIFAR-100."""

import pickle

import numpy as np
import pytest
import torch
from torchvision.datasets import CIFAR100

from riselab.continual.vision.streams import ImageStreamSettings, build_stream, named_stream
from riselab.continual.vision.streams.sources import cifar100, digits, npz


def test_npz(npz_file):
    source, content = npz(npz_file), np.load(npz_file)
    for part in ("train", "test"):
        images = getattr(source, part)
        assert np.array_equal(images.labels, content[f"{part}_labels"])
        assert images.labels.dtype == np.int64
        assert images.load(3).dtype == torch.uint8
        expected = content[f"{part}_images"][3].transpose(2, 0, 1)
        assert np.array_equal(images.load(3).numpy(), expected)
    assert source.train.class_names == tuple("012345")


@pytest.mark.parametrize("shape", [(4, 8, 9), (4, 8, 9, 1)])
def test_gray_images_get_three_channels(tmp_path, shape):
    images = np.arange(4 * 72, dtype=np.uint8).reshape(shape)
    labels = np.array([0, 1, 0, 1])
    names = np.array(["left", "right"])
    np.savez(
        tmp_path / "gray.npz",
        train_images=images,
        train_labels=labels,
        test_images=images,
        test_labels=labels,
        class_names=names,
    )
    source = npz(tmp_path / "gray.npz")
    assert source.train.class_names == ("left", "right")
    loaded = source.train.load(2).numpy()
    assert loaded.shape == (3, 8, 9)
    assert all(np.array_equal(channel, images[2].reshape(8, 9)) for channel in loaded)


def changed(file, **changes):
    content = {**np.load(file), **changes}
    np.savez(file, **{key: value for key, value in content.items() if value is not None})
    return file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_labels": None}, "must have the keys train_images, .*; test_labels not found"),
        (
            {"train_images": np.zeros((60, 8, 9, 3))},
            r"train_images of .* got float64 \[60, 8, 9, 3",
        ),
        (
            {"test_images": np.zeros((24, 3, 8, 9), np.uint8)},
            r"test_images .* got uint8 \[24, 3, 8",
        ),
        ({"train_images": np.zeros((60, 8), np.uint8)}, r"must be uint8 .* got uint8 \[60, 8\]"),
        ({"train_labels": np.zeros(60)}, r"train_labels of .* must be integers, .* got float64"),
        ({"test_labels": np.zeros(3, int)}, r"one for each of 24 images .* got int64 \[3\]"),
        (
            {"test_labels": np.full(24, 6)},
            r"labels must be class ids within 0\.\.5, got 6\.\.6",
        ),
        ({"train_labels": np.full(60, -1)}, r"train_labels of .* within 0\.\.59 .*, got -1\.\.-1"),
        (
            {"train_labels": np.arange(60) * 2**40},
            r"train_labels of .* within 0\.\.59 \(.* at most\), got 0\.\.",
        ),
        ({"train_labels": np.full(60, 2**64 - 1, np.uint64)}, r"got 18446744073709551615\.\."),
        ({"train_labels": np.zeros((60, 1), int)}, r"one for each of 60 images .* \[60, 1\]"),
        (
            {"class_names": np.array(["a", "b"])},
            r"train_labels of .* within 0\.\.1 .*, got 0\.\.5",
        ),
        ({"class_names": np.array("a")}, r"train_labels of .* within 0\.\.0 .*, got 0\.\.5"),
        ({"train_labels": np.array([{}] * 60)}, "must be an .npz of plain arrays, got Object arr"),
    ],
)
def test_a_wrong_npz_is_an_error(npz_file, changes, message):
    with pytest.raises(ValueError, match=message):
        npz(changed(npz_file, **changes))


def test_a_file_that_is_no_npz_is_an_error(tmp_path):
    (tmp_path / "text.npz").write_text("not a zip")
    np.save(tmp_path / "array.npy", np.zeros(3))
    for name in ("text.npz", "array.npy"):
        with pytest.raises(ValueError, match=f"{name} must be an .npz of plain arrays"):
            npz(tmp_path / name)


def test_a_missing_npz_is_an_error_that_says_how_to_make_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ImageStreamSettings(source="npz", data="no.npz")
    with pytest.raises(
        FileNotFoundError, match=r"no .npz at .*/no.npz: write one with numpy.savez"
    ):
        build_stream(settings)


def test_digits_have_a_fixed_stratified_split():
    source = digits(0.2)
    assert len(source.train) + len(source.test) == 1797
    shares = np.bincount(source.test.labels) / (
        np.bincount(source.train.labels) + np.bincount(source.test.labels)
    )
    assert np.all(abs(shares - 0.2) < 0.005)
    assert np.array_equal(digits(0.2).test.labels, source.test.labels)
    image = source.train.load(0)
    assert image.shape == (3, 8, 8)
    assert image.min() == 0
    assert max(int(source.train.load(index).max()) for index in range(20)) == 255
    assert source.notes == (
        "no test split in the source: 0.2 of every class held out by a fixed seed",
    )


def test_the_digits_stream():
    stream = build_stream(named_stream("digits"))
    assert [len(task.classes) for task in stream] == [4, 2, 2, 2]
    assert stream[0].train.image(0, train=True, seed=0).shape == (3, 32, 32)
    assert stream.name == "digits"


@pytest.fixture
def fake_cifar(tmp_path, monkeypatch):
    """Files in CIFAR-100's own format, with three images per class and no checksums."""
    folder = tmp_path / CIFAR100.base_folder
    folder.mkdir()
    random = np.random.default_rng(0)
    for part, each in (("train", 2), ("test", 1)):
        labels = np.repeat(np.arange(100), each).tolist()
        data = random.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
        (folder / part).write_bytes(pickle.dumps({"data": data, "fine_labels": labels}))
    names = [f"thing {number:02}" for number in range(100)]
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": names}))
    monkeypatch.setattr(CIFAR100, "train_list", [["train", None]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", None]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": None})
    return tmp_path


def test_cifar100(fake_cifar):
    source = cifar100(fake_cifar, download=False)
    assert (len(source.train), len(source.test)) == (200, 100)
    assert source.train.load(5).shape == (3, 32, 32)
    raw = pickle.loads((fake_cifar / CIFAR100.base_folder / "train").read_bytes())["data"]
    assert np.array_equal(source.train.load(5).numpy(), raw[5].reshape(3, 32, 32))


def test_the_cifar100_streams_have_the_published_classes(fake_cifar):
    for name, count in (("cifar100-inc5", 20), ("cifar100-inc10", 10)):
        stream = build_stream(named_stream(name, data=str(fake_cifar)))
        assert len(stream) == count
        assert stream[0].classes[:3] == ("thing 68", "thing 56", "thing 78")
        assert stream.notes == ()
        assert stream[0].train.image(0, train=True, seed=0).shape == (3, 224, 224)


def test_missing_cifar100_is_an_error_that_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = r"not complete in .*/cifar-100-python .*download=true gets it, or unpack https://"
    with pytest.raises(FileNotFoundError, match=message):
        build_stream(named_stream("cifar100-inc5"))
