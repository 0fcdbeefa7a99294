"""Datasets of the hub in the benchmark's form, on rows written out here."""

import datasets
import pytest

from risegrad.continual.language import hub
from risegrad.continual.language.build import build_stream
from risegrad.continual.language.settings import LanguageStreamSettings
from risegrad.continual.language.tasks import POOL


def test_every_task_has_a_dataset_with_its_labels():
    assert set(hub.HUB) == set(POOL)
    for name, task in hub.HUB.items():
        assert set(task.labels) == set(POOL[name].labels), name


@pytest.mark.parametrize(
    ("name", "row", "sentence", "label"),
    [
        ("RTE", {"sentence1": "a", "sentence2": "b", "label": 1},
         "sentence 1: a\nsentence 2: b", "contradiction"),
        ("QQP", {"question1": "a", "question2": "b", "label": 1},
         "first sentence: a\nsecond sentence: b", "True"),
        ("dbpedia", {"title": "a", "content": "b", "label": 13},
         "Title: a\nText: b\n", "Written Work"),
        ("amazon", {"review_title": "a", "review_text": "b", "class_index": 1},
         "Title: a\nText: b\n", "very negative"),
        ("COPA", {"premise": "p", "question": "cause", "choice1": "c", "choice2": "d", "label": 0},
         'Which sentence is the cause of "p"? Choose one between A and B.\nA: c\nB: d', "A"),
        ("MNLI", {"premise": "a", "hypothesis": "b", "label": -1},
         "sentence 1: a\nsentence 2: b", "-1"),
    ],
)  # fmt: skip
def test_rows(name, row, sentence, label):
    (example,) = hub.as_examples(hub.HUB[name], [row])
    assert (example.sentence, example.label) == (sentence, label)


def settings():
    return LanguageStreamSettings(tasks=("RTE",), source="hub")


def test_a_stream_from_the_hub(monkeypatch):
    rows = {"sentence1": ["a"] * 3000, "sentence2": ["b"] * 3000, "label": [0, 1] * 1500}
    found = datasets.DatasetDict(
        train=datasets.Dataset.from_dict(rows), validation=datasets.Dataset.from_dict(rows)
    )
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *a: asked.append(a) or found)
    stream = build_stream(settings())
    assert asked == [("nyu-mll/glue", "rte")]
    assert stream[0].sizes() == {"train": 2000, "validation": 0, "test": 277}  # the benchmark's
    assert stream[0].classes == POOL["RTE"].labels


def test_a_dataset_without_the_split(monkeypatch):
    rows = datasets.Dataset.from_dict({"label": [0]})
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a: datasets.DatasetDict(train=rows, other=rows)
    )
    with pytest.raises(ValueError, match=r"RTE: .* must have the splits train and validation, got"):
        build_stream(settings())


def test_no_network(monkeypatch):
    def fail(*_):
        raise ConnectionError("offline")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(FileNotFoundError, match=r"RTE: .*not reachable .* stream\.source=folder"):
        build_stream(settings())
