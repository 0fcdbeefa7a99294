"""Datasets of the hub in the benchmark's form, on rows written out here."""

import datasets
import pytest

from riselab.continual.language.streams import hub as text_hub
from riselab.continual.language.streams.build import build_stream
from riselab.continual.language.streams.settings import POOL, LanguageStreamSettings


def test_every_task_has_a_dataset_with_its_labels():
    assert set(text_hub.HUB) == set(POOL)
    for name, task in text_hub.HUB.items():
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
        ("MNLI", {"premise": "a", "hypothesis": "b", "label": 1},
         "sentence 1: a\nsentence 2: b", "neutral"),
        ("CB", {"premise": "a", "hypothesis": "b", "label": 1},
         "sentence 1: a\nsentence 2: b", "contradiction"),
        ("SST-2", {"sentence": "a ", "label": 0}, "Text: a ", "Bad"),
        ("IMDB", {"text": "a", "label": 1}, "a", "Good"),
        ("yelp", {"text": "a", "label": 4}, "Text: a\n", "very positive"),
        ("agnews", {"text": "a", "label": 3}, "Text: a\n", "Science or Technology"),
        ("yahoo", {"topic": 3, "question_title": "a", "question_content": "b", "best_answer": "c"},
         "Title: a\nText: b c\n", "Education & Reference"),
        ("WiC", {"word": "w", "sentence1": "a", "sentence2": "b", "label": 1},
         "word: w\na\nb", "True"),
        ("BoolQA", {"question": "q", "passage": "p", "label": 0},
         "question: q\npassage: p", "False"),
        ("MultiRC", {"paragraph": "p", "question": "q", "answer": "a", "label": 1},
         "paragraph: p\nquestion: q\ncandidate answer: a", "True"),
        ("amazon", {"review_title": None, "review_text": "b", "class_index": 5},
         "Title: \nText: b\n", "very positive"),
        ("RTE", {"sentence1": "a", "sentence2": "b", "label": None},
         "sentence 1: a\nsentence 2: b", "None"),
    ],
)  # fmt: skip
def test_rows(name, row, sentence, label):
    (example,) = text_hub.as_examples(text_hub.HUB[name], [row])
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


def test_files_of_the_hubs_form_are_read_by_the_library(monkeypatch, tmp_path):
    """Through the library itself, from parquet files in a folder with the dataset's name."""
    rows = {"sentence1": ["a", "b", "c"], "sentence2": ["d", "e", "f"], "label": [0, 1, 1]}
    features = datasets.Features(
        sentence1=datasets.Value("string"),
        sentence2=datasets.Value("string"),
        label=datasets.ClassLabel(names=["entailment", "not_entailment"]),
    )
    made = datasets.Dataset.from_dict(rows, features=features)
    for split in ("train", "validation"):
        path = tmp_path / "nyu-mll" / "glue" / "rte" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        made.to_parquet(path)
    (tmp_path / "nyu-mll" / "glue" / "README.md").write_text(
        "---\nconfigs:\n- config_name: rte\n  data_files:\n"
        "  - split: train\n    path: rte/train-*\n"
        "  - split: validation\n    path: rte/validation-*\n---\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    stream = build_stream(settings())
    assert stream[0].train.answers == ("entailment", "contradiction", "contradiction")
    assert "sentence 1: b\nsentence 2: e" in stream[0].test.prompts[1]


class Counting(datasets.Dataset):
    """Only what is asked for is looked at: some datasets have millions of rows."""

    def select(self, indices):
        assert len(indices) < 10
        return super().select(indices)


def test_only_chosen_rows_are_looked_at(monkeypatch):
    rows = {"sentence1": map(str, range(99)), "sentence2": ["b"] * 99, "label": [0] * 99}
    made = Counting.from_dict(rows | {"sentence1": list(rows["sentence1"])})
    monkeypatch.setattr(datasets, "load_dataset", lambda *a: {"train": made, "validation": made})
    few = {"train_size": 6, "test_size": 4}
    first, again = (
        build_stream(LanguageStreamSettings(tasks=("RTE",), source="hub", **few))[0]
        for _ in range(2)
    )
    assert first.sizes() == {"train": 6, "validation": 0, "test": 4}
    assert first.train == again.train


def test_a_dataset_without_the_column(monkeypatch):
    rows = datasets.Dataset.from_dict({"sentence1": ["a"], "label": [0]})
    found = {"train": rows, "validation": rows}
    monkeypatch.setattr(datasets, "load_dataset", lambda *a: found)
    with pytest.raises(
        ValueError, match=r"RTE: .* must have the column 'sentence2', got sentence1, label"
    ):
        build_stream(settings())


def test_a_dataset_without_the_split(monkeypatch):
    rows = datasets.Dataset.from_dict({"label": [0]})
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a: datasets.DatasetDict(train=rows, other=rows)
    )
    with pytest.raises(ValueError, match=r"RTE: .* must have the splits train and validation, got"):
        build_stream(settings())


@pytest.mark.parametrize(
    "error", [ConnectionError("offline"), RuntimeError("Dataset scripts are no longer supported")]
)
def test_no_network(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(FileNotFoundError, match=r"RTE: .*not reachable .* stream\.source=folder"):
        build_stream(settings())
