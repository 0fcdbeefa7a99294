"""Sources of image files: class folders, DomainNet's lists, broken images."""

import pickle
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from riselab.continual.vision.streams import (
    BrokenImage,
    ImageStreamSettings,
    build_stream,
    named_stream,
)
from riselab.continual.vision.streams.sources import DOMAINS, domainnet, folder


def shown(stream):
    """All colors of a stream's images by position label, split by split."""
    return {
        part: sorted(
            (int(label), *(split.image(index, train=False)[:, 0, 0] * 255).round().int().tolist())
            for task in stream
            for split in [getattr(task, part)]
            for index, label in enumerate(split.labels)
        )
        for part in ("train", "validation", "test")
    }


def settings(root, **changes):
    fields = {"source": "folder", "data": str(root), "increment": 2, "image_size": 8}
    return ImageStreamSettings(**fields | changes)


def test_folders(image_folder, color_of):
    source = folder(image_folder, 0.2)
    assert source.train.class_names == ("ant", "bee", "cat", "dog")
    assert np.array_equal(source.train.labels, np.repeat(range(4), 6))
    assert np.array_equal(source.test.labels, np.repeat(range(4), 3))
    assert source.train.load(13)[:, 0, 0].tolist() == color_of(2, 1)
    assert source.train.load(13).shape == (3, 10, 12)
    assert source.train.where(13) == str(image_folder / "train" / "cat" / "1.png")


def test_every_image_comes_with_the_label_of_its_class(image_folder, color_of):
    stream = build_stream(settings(image_folder))
    parts, names = shown(stream), ["ant", "bee", "cat", "dog"]
    order = enumerate(names.index(name) for task in stream for name in task.classes)
    expected = [(pos, *color_of(number, n)) for pos, number in order for n in range(9)]
    assert sorted(parts["train"] + parts["test"]) == sorted(expected)


def test_one_folder_is_split_by_a_fixed_seed(image_folder):
    sources = [folder(image_folder / "train", 0.34) for _ in range(2)]
    for source in sources:
        assert np.array_equal(np.bincount(source.test.labels), [2] * 4)
        assert np.array_equal(np.bincount(source.train.labels), [4] * 4)
    names = [[s.test.where(index) for index in range(8)] for s in sources]
    assert names[0] == names[1]
    train = {sources[0].train.where(index) for index in range(16)}
    assert len(train | set(names[0])) == 24
    assert sources[0].notes[0].startswith("no test split in the source: 0.34 of every class")


def test_other_files_are_passed_over(image_folder):
    (image_folder / "train" / "ant" / "notes.txt").write_text("no image")
    (image_folder / "train" / "ant" / "._0.png").write_text("a trace of another system")
    (image_folder / "train" / ".cache").mkdir()
    (image_folder / "train" / "README.txt").write_text("read me")
    assert len(folder(image_folder, 0.2).train) == 24


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK"])
def test_every_kind_of_image_becomes_rgb(image_folder, mode):
    suffix = "tif" if mode == "CMYK" else "png"
    Image.new("RGB", (5, 6), (255, 255, 255)).convert(mode).save(
        image_folder / "train" / "ant" / f"00.{suffix}"
    )
    loaded = [folder(image_folder, 0.2).train.load(index) for index in range(2)]
    (odd,) = (image for image in loaded if image.shape == (3, 6, 5))
    assert torch.all(odd == 255)


def test_missing_folders_are_errors(image_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "no image folders in .*/data/imagenet-r: it must have train/CLASS/.* as data"
    with pytest.raises(FileNotFoundError, match=message):
        build_stream(named_stream("imagenet-r-inc5"))
    shutil.move(image_folder / "test" / "bee", image_folder / "test" / "wasp")
    with pytest.raises(ValueError, match=r"must be one of .*train, got wasp in test only"):
        folder(image_folder, 0.2)
    shutil.rmtree(image_folder / "test")
    with pytest.raises(FileNotFoundError, match="has a train folder but no test folder"):
        folder(image_folder, 0.2)
    (tmp_path / "empty" / "ant").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"no images in the class folders of .*/empty"):
        folder(tmp_path / "empty", 0.2)


def test_a_class_without_images_is_an_error(image_folder):
    for file in (image_folder / "train" / "cat").iterdir():
        file.unlink()
    message = r"must have a training image, got none for 'cat' \(class 2\)"
    with pytest.raises(ValueError, match=message):
        build_stream(settings(image_folder))
    # A class that is not used may be empty.
    used = settings(image_folder, class_order="natural", classes=2)
    assert len(build_stream(used)) == 1


def test_a_session_without_test_images_is_an_error(image_folder):
    for name in ("ant", "bee"):
        shutil.rmtree(image_folder / "test" / name)
    message = r"every session must have a test image, got none in session 0 \(ant, bee\)"
    with pytest.raises(ValueError, match=message):
        build_stream(settings(image_folder, class_order="natural"))


@pytest.fixture
def broken(image_folder):
    """A truncated file, one that is no image, and one that is empty, in training and test."""
    whole = (image_folder / "train" / "ant" / "0.png").read_bytes()
    files = [
        image_folder / "train" / "ant" / "0.png",
        image_folder / "train" / "cat" / "3.png",
        image_folder / "test" / "dog" / "7.png",
    ]
    for file, content in zip(files, (whole[:-30], b"no image", b""), strict=True):
        file.write_bytes(content)
    return files


def test_a_broken_image_stops_and_is_named(image_folder, broken):
    stream = build_stream(settings(image_folder, class_order="natural"))
    message = r"cannot decode .*/train/ant/0.png \(.*\): replace or remove it"
    with pytest.raises(BrokenImage, match=message):
        stream[0].train.image(0, train=True, seed=0)
    with pytest.raises(BrokenImage, match=r"dog/7.png"):
        stream[1].test.images(range(6), train=False)


def test_the_error_comes_back_from_another_process(image_folder, broken):
    with pytest.raises(BrokenImage) as caught:
        folder(image_folder, 0.2).train.load(0)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, BrokenImage)
    assert str(copy) == str(caught.value)


@pytest.fixture
def domains(tmp_path, write_image):
    """Three classes, two training images and one test image of each in every domain."""
    root = tmp_path / "domainnet"
    for place, domain in enumerate(DOMAINS):
        lines = {"train": [], "test": []}
        for label, name in enumerate(["axe", "bat wing", "cow"]):
            for number in range(3):
                file = f"{domain}/{name}/{domain}_{number}.png"
                write_image(root / file, label, place)
                lines["test" if number == 2 else "train"].append(f"{file} {label}")
        for part, listed in lines.items():
            (root / f"{domain}_{part}.txt").write_text("\n".join(listed) + "\n")
    return root


def test_domainnet_pools_its_domains(domains, color_of):
    source = domainnet(domains)
    assert source.train.class_names == ("axe", "bat wing", "cow")
    assert np.array_equal(np.bincount(source.train.labels), [12] * 3)
    assert np.array_equal(np.bincount(source.test.labels), [6] * 3)
    colors = {tuple(source.test.load(index)[:, 0, 0].tolist()) for index in range(18)}
    assert colors == {tuple(color_of(label, place)) for label in range(3) for place in range(6)}
    stream = build_stream(named_stream("domainnet-inc69", data=str(domains), increment=2))
    assert [len(task.train) for task in stream] == [24, 12]
    assert stream.notes == (
        "differs from the named stream domainnet-inc69: increment=2",
        "the last session has 1 classes, fewer than increment=2",
    )


def test_incomplete_domainnet_is_an_error(domains, tmp_path, monkeypatch):
    (domains / "real_test.txt").unlink()
    shutil.rmtree(domains / "sketch")
    message = r"not complete in .*: real_test.txt, sketch/ not found; get .* http://ai.bu.edu/M3SDA"
    with pytest.raises(FileNotFoundError, match=message):
        domainnet(domains)
    monkeypatch.chdir(tmp_path / "domainnet" / "real")
    with pytest.raises(
        FileNotFoundError, match=r"not complete in .*/real/data/domainnet: clipart_"
    ):
        build_stream(named_stream("domainnet-inc69"))


def test_wrong_lists_are_errors(domains):
    file = domains / "real_test.txt"
    right = file.read_text()
    file.write_text(right + "real/axe/1.png\n")
    with pytest.raises(
        ValueError, match=r"line 4 of .*real_test.txt must be 'path label', got 'real"
    ):
        domainnet(domains)
    file.write_text(right + "real/owl/1.png 1\n")
    with pytest.raises(ValueError, match=r"label 1 must mean one class .* got bat wing and owl"):
        domainnet(domains)
    file.write_text(right + f"real/axe/1.png {2**40}\n")
    with pytest.raises(ValueError, match=r"line 4 of .*real_test.txt must be 'path label', got"):
        domainnet(domains)
    file.write_text(right + "real/owl/1.png 999999999\n")
    message = r"class ids within 0\.\.54 \(55 images .* got 999999999 for owl"
    with pytest.raises(ValueError, match=message):
        domainnet(domains)
    file.write_text(right + "real/axe/missing.png 0\n")
    test = domainnet(domains).test
    place = next(i for i in range(len(test)) if test.where(i).endswith("missing.png"))
    with pytest.raises(BrokenImage, match=r"cannot decode .*real/axe/missing.png"):
        test.load(place)
