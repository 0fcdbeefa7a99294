"""Datasets of the hub as tasks of one's own, on rows written out here."""

import datasets
import pytest

from riselab.continual.language.streams.build import build_stream
from riselab.continual.language.streams.settings import LanguageStreamSettings, OwnTextTask


def settings(**few):
    own = OwnTextTask(hub="me/mine", config="en", text="body", label="intent", test="dev")
    return LanguageStreamSettings(tasks=("mine",), own={"mine": own}, **few)


def given(monkeypatch, **splits):
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a: asked.append(a) or splits)
    return asked


class Counting(datasets.Dataset):
    """Only what is asked for is looked at: some datasets have millions of rows."""

    def select(self, indices):
        assert len(indices) < 10
        return super().select(indices)


def test_only_chosen_rows_are_looked_at(monkeypatch):
    made = Counting.from_dict({"body": [*map(str, range(99))], "intent": ["a", "b", "c"] * 33})
    asked = given(monkeypatch, train=made, dev=made)
    few = settings(train_size=6, test_size=4)
    first, again = (build_stream(few)[0] for _ in range(2))
    assert first.sizes() == {"train": 6, "validation": 0, "test": 4}
    assert first.train == again.train
    assert asked[0] == ("me/mine", "en")


def test_a_text_that_is_none_is_empty(monkeypatch):
    rows = datasets.Dataset.from_dict({"body": ["a", None], "intent": ["x", "y"]})
    given(monkeypatch, train=rows, dev=rows)
    (task,) = build_stream(settings(empty_texts="drop"))
    assert task.train.answers == ("x",)


def test_files_of_the_hubs_form_are_read_by_the_library(monkeypatch, tmp_path):
    """Through the library itself, from parquet files in a folder with the dataset's name."""
    rows = {"body": ["a", "b", "c"], "intent": [0, 1, 1]}
    names = datasets.ClassLabel(names=["pay", "ask"])
    features = datasets.Features(body=datasets.Value("string"), intent=names)
    folder = tmp_path / "me" / "mine"
    folder.mkdir(parents=True)
    for split in ("train", "dev"):
        made = datasets.Dataset.from_dict(rows, features=features)
        made.to_parquet(folder / f"{split}-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: en\n  data_files:\n"
        "  - split: train\n    path: train-*\n  - split: dev\n    path: dev-*\n---\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert build_stream(settings())[0].train.answers == ("pay", "ask", "ask")


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (("train", "test"), "mine: 'me/mine' must have the splits train and dev, got train, test"),
        (("train", "dev"), "mine: 'me/mine' must have the column body, got intent"),
    ],
)
def test_what_a_dataset_lacks(monkeypatch, splits, message):
    rows = datasets.Dataset.from_dict({"intent": ["x"]})
    given(monkeypatch, **dict.fromkeys(splits, rows))
    with pytest.raises(ValueError, match=message):
        build_stream(settings())


@pytest.mark.parametrize(
    "error", [ConnectionError("offline"), RuntimeError("Dataset scripts are no longer supported")]
)
def test_no_network(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(FileNotFoundError, match=r"mine: .*not reachable .*own\.mine\.path"):
        build_stream(settings())
