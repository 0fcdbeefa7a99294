"""Hugging Face datasets, all of them local: save_to_disk, parquet, imagefolder."""

import io

import numpy as np
import pytest
from PIL import Image

from riselab.continual.vision.streams import BrokenImage, ImageStreamSettings, build_stream

datasets = pytest.importorskip("datasets")
hub_module = pytest.importorskip("riselab.continual.vision.streams.hub")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def png(label, number, color_of):
    file = io.BytesIO()
    Image.new("RGB", (6, 5), tuple(color_of(label, number))).save(file, format="png")
    return {"bytes": file.getvalue(), "path": f"{label}-{number}.png"}


@pytest.fixture
def rows(color_of):
    """A maker of datasets of three classes: ``each`` images of every class, from ``first`` on."""

    def make(each, first=0, names=("ant", "bee", "cat"), label="label", image="image"):
        places = [(n % 3, first + n // 3) for n in range(3 * each)]
        columns = {
            image: [png(n, number, color_of) for n, number in places],
            label: [n for n, _ in places],
        }
        features = {image: datasets.Image(), label: datasets.ClassLabel(names=list(names))}
        return datasets.Dataset.from_dict(columns, features=datasets.Features(features))

    return make


def hub(data, image_column="", label_column="", test_fraction=0.25):
    return hub_module.hub(str(data), image_column, label_column, test_fraction)


def test_saved_to_disk(rows, tmp_path, color_of):
    splits = {"train": rows(4), "test": rows(2, first=4)}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    source = hub(tmp_path / "saved")
    assert source.train.class_names == ("ant", "bee", "cat")
    assert np.array_equal(source.train.labels, [0, 1, 2] * 4)
    assert np.array_equal(source.test.labels, [0, 1, 2] * 2)
    assert source.test.load(4)[:, 0, 0].tolist() == color_of(1, 5)
    assert source.test.load(4).shape == (3, 5, 6)
    assert source.notes == ()
    settings = ImageStreamSettings(
        source="hub", data=str(tmp_path / "saved"), increment=3, image_size=8
    )
    stream = build_stream(settings)
    assert stream[0].sizes() == {"train": 12, "validation": 0, "test": 6}
    assert stream[0].train.images(range(12), train=True, seed=0).shape == (12, 3, 8, 8)


def test_one_split_is_cut_by_a_fixed_seed(rows, tmp_path):
    rows(4).save_to_disk(tmp_path / "saved")
    source = hub(tmp_path / "saved")
    assert np.array_equal(np.bincount(source.train.labels), [3] * 3)
    assert np.array_equal(np.bincount(source.test.labels), [1] * 3)
    assert source.notes[0].startswith("no test split in the source: 0.25")


def test_parquet(rows, tmp_path, color_of):
    (tmp_path / "tables").mkdir()
    rows(4).to_parquet(tmp_path / "tables" / "train.parquet")
    rows(2, first=4).to_parquet(tmp_path / "tables" / "test.parquet")
    both = hub(tmp_path / "tables")
    assert (len(both.train), len(both.test)) == (12, 6)
    assert both.test.load(0)[:, 0, 0].tolist() == color_of(0, 4)
    one = hub(tmp_path / "tables" / "train.parquet")
    assert (len(one.train), len(one.test)) == (9, 3)


def test_a_folder_of_images(image_folder, color_of):
    source = hub(image_folder)
    assert source.train.class_names == ("ant", "bee", "cat", "dog")
    assert (len(source.train), len(source.test)) == (24, 12)
    label = source.train.labels[7]
    assert source.train.load(7)[0, 0, 0] == color_of(label, 0)[0]
    assert f"row 7 of {image_folder} (train), " in source.train.where(7)


def test_labels_that_are_numbers_or_words(rows, tmp_path):
    whole = rows(4)
    for number, (kind, values) in enumerate(
        [("string", ["wasp", "ant", "bee"]), ("int64", [70, 10, 20])]
    ):
        labels = [values[n] for n in whole["label"]]
        plain = whole.remove_columns("label").add_column("label", labels)
        splits = {"train": plain, "validation": plain.select([2, 0])}
        datasets.DatasetDict(splits).save_to_disk(tmp_path / kind)
        source = hub(tmp_path / kind)
        assert source.train.class_names == (("ant", "bee", "wasp"), ("10", "20", "70"))[number]
        assert source.train.labels.tolist() == [2, 0, 1] * 4
        assert source.test.labels.tolist() == [1, 2]


def test_columns_can_be_named(rows, tmp_path):
    fine = rows(4, image="img", label="fine_label")
    fine.save_to_disk(tmp_path / "two")
    with pytest.raises(ValueError, match=r"image_column must be .* got 'image'; there are img \(I"):
        hub(tmp_path / "two")
    with pytest.raises(ValueError, match=r"label_column must be a column .* got 'label'"):
        hub(tmp_path / "two", image_column="img")
    found = hub(tmp_path / "two", image_column="img", label_column="fine_label")
    assert found.train.class_names[0] == "ant"


def test_other_splits_and_unknown_labels_are_errors(rows, tmp_path):
    datasets.DatasetDict({"one": rows(2), "two": rows(2)}).save_to_disk(tmp_path / "odd")
    with pytest.raises(
        ValueError, match=r"must have a split train and one of test, .* got one, two"
    ):
        hub(tmp_path / "odd")
    words = rows(2).remove_columns("label")
    splits = {
        "train": words.add_column("label", list("ababab")),
        "test": words.add_column("label", list("abcabc")),
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "words")
    with pytest.raises(ValueError, match=r"must be in the training split too, got \['c'\]"):
        hub(tmp_path / "words")


def test_a_broken_row_is_named(rows, tmp_path):
    whole = rows(4).cast_column("image", datasets.Image(decode=False)).to_dict()
    whole["image"][5] = {"bytes": b"no image", "path": "bad.png"}
    broken = datasets.Dataset.from_dict(whole, features=rows(1).features)
    datasets.DatasetDict({"train": broken, "test": rows(1)}).save_to_disk(tmp_path / "saved")
    with pytest.raises(BrokenImage, match=r"cannot decode row 5 of .*saved \(train\), bad.png"):
        hub(tmp_path / "saved").train.load(5)


@pytest.mark.parametrize("name", ["nobody/such-a-dataset", "no-such-folder/x.parquet"])
def test_a_missing_dataset_is_an_error(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = rf"no dataset '{name}': nothing at .*/{name} that datasets can read, .* give a hub"
    with pytest.raises(FileNotFoundError, match=message):
        hub(name)
