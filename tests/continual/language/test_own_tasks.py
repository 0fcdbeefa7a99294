"""Tasks of one's own from files as people have them, and what is said where something lacks."""

import csv
import gzip
import json

import datasets
import pytest

from continual.language.tiny_text import config
from riselab.common.inputs import Hub, look_at
from riselab.continual.host import silent
from riselab.continual.language.streams.build import build_stream
from riselab.continual.language.streams.files import texts_of
from riselab.continual.runs import needs, perform, read_config

ROWS = [{"id": n, "body": f"text, {n}\nend", "intent": ("pay", "ask", "sell")[n % 3]}
        for n in range(9)]  # fmt: skip


def stream(own, **settings):
    plain = {"tasks": list(own), "own": own, "prompt": "sentence"} | settings
    return read_config(config("", "model", stream=plain)).stream


def described(path, **changes):
    return {"path": str(path), "text": "body", "label": "intent"} | changes


def write_csv(path, rows=ROWS, delimiter=","):
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # as spreadsheets write it
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_tsv(path):
    return write_csv(path, delimiter="\t")


def write_jsonl(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "\n")
    return path


def write_json(path):
    path.write_text(json.dumps(ROWS))
    return path


def write_zipped(path):
    whole = write_jsonl(path.with_name("whole"))
    path.write_bytes(gzip.compress(whole.read_bytes()))
    return path


def write_parquet(path):
    datasets.Dataset.from_list(ROWS).to_parquet(path)
    return path


WRITERS = {
    "a.csv": write_csv,
    "a.tsv": write_tsv,
    "a.jsonl": write_jsonl,
    "a.json": write_json,
    "a.jsonl.gz": write_zipped,
    "a.parquet": write_parquet,
}


@pytest.mark.parametrize("file", WRITERS)
def test_a_table_of_every_kind(tmp_path, file):
    path = WRITERS[file](tmp_path / file)
    (task,) = build_stream(stream({"my-task": described(path, test=str(path))}))
    assert task.name == "my-task"
    assert task.classes == ("ask", "pay", "sell")
    assert task.train == task.test
    assert task.train.prompts == tuple(row["body"] for row in ROWS)
    assert task.train.answers == tuple(row["intent"] for row in ROWS)


def test_one_file_is_split_and_labels_can_be_numbers(tmp_path):
    rows = [{"text": f"t{n}", "label": n % 2} for n in range(8)]
    names = ["no", "yes"]
    path = write_csv(tmp_path / "a.csv", rows)
    built = build_stream(stream({"mine": {"path": str(path), "labels": names}}))
    assert built[0].sizes() == {"train": 6, "validation": 0, "test": 2}
    assert any("no test split" in note for note in built.notes)
    pairs = zip(built[0].train.prompts, built[0].train.answers, strict=True)
    assert all(answer == names[int(text[1:]) % 2] for text, answer in pairs)


def test_a_folder_in_the_benchmarks_form_and_its_instruction(tmp_path):
    (tmp_path / "train.json").write_text('[{"sentence": "a", "label": "x"}]')
    (tmp_path / "test.json").write_text('[{"sentence": "b", "label": "y"}]')
    own = {"path": str(tmp_path), "labels": ["x", "y"], "instruction": "Which letter?"}
    (task,) = build_stream(stream({"letters": own}, prompt="instruction"))
    assert task.test.prompts == (
        "Task:TC\nDataset:letters\nWhich letter?\nOption: x, y \nb\nAnswer:",
    )


def test_beside_a_task_of_the_pool_and_learned(data, weights, tmp_path):
    path = write_csv(tmp_path / "a.csv")
    own = {"mine": described(path, labels=["pay", "ask", "sell"])}
    plain = config(data, weights, stream={"tasks": ["RTE", "mine"], "own": own})
    assert needs(read_config(plain))["missing"] == []
    found = perform(read_config(plain), tmp_path / "out", silent)
    assert [task["name"] for task in found["tasks"]] == ["RTE", "mine"]


def test_a_dataset_of_the_hub(monkeypatch):
    features = datasets.Features(
        body=datasets.Value("string"), intent=datasets.ClassLabel(names=["pay", "ask"])
    )
    rows = datasets.Dataset.from_dict({"body": ["a", "b"], "intent": [1, 0]}, features=features)
    asked = []
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *a: asked.append(a) or {"train": rows, "dev": rows}
    )
    own = {"hub": "me/mine", "config": "en", "test": "dev", "text": "body", "label": "intent"}
    settings = stream({"mine": own})
    (task,) = build_stream(settings)
    assert asked == [("me/mine", "en")]
    assert task.classes == ("pay", "ask")
    assert task.train.answers == ("ask", "pay")
    assert texts_of(settings) == {"stream.own.mine.hub": Hub("me/mine", "dataset")}
    (task,) = build_stream(stream({"mine": own | {"labels": ["p", "q"]}}))
    assert task.train.answers == ("q", "p")


def test_names_of_a_hub_column_that_are_texts(monkeypatch):
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["x", "w"]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *a: {"train": rows, "test": rows})
    (task,) = build_stream(stream({"mine": {"hub": "me/mine"}}))
    assert task.classes == ("w", "x")
    assert task.train.answers == ("x", "w")


def test_content_is_what_is_read_and_not_where(tmp_path):
    first = write_csv(tmp_path / "a.csv")
    (tmp_path / "b").mkdir()
    same = write_csv(tmp_path / "b" / "a.csv")
    other = write_csv(tmp_path / "c.csv", [*ROWS, *ROWS])
    hashes = [
        look_at(texts_of(stream({"mine": described(path, test=str(first))})))
        for path in (first, same, other)
    ]
    assert list(hashes[0]) == ["stream.own.mine.path", "stream.own.mine.test"]
    contents = [found["stream.own.mine.path"]["sha256"] for found in hashes]
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({}, r"stream\.own\.mine: a task needs either path .* or hub .*got path='', hub=''"),
        ({"path": "a", "hub": "b"}, r"either path .* or hub .*got path='a', hub='b'"),
        ({"path": "a", "text": ""}, r"text must be the name of a column, got ''"),
        ({"path": "a", "label": ""}, r"label must be the name of a column, got ''"),
        ({"path": "a", "config": "c"}, r"config is of a dataset on the hub, got 'c' with a path"),
        ({"path": "a", "labels": ["x", "x"]}, r"labels must be different, got x, x"),
        ({"path": "a", "txt": "b"}, r"stream\.own\.mine\.txt: unknown, did you mean 'text'"),
    ],
)
def test_bad_descriptions(own, message):
    with pytest.raises(ValueError, match=message):
        stream({"mine": own})


def test_a_description_of_no_task():
    with pytest.raises(ValueError, match=r"own must be one of RTE; got 'mine'"):
        stream({"mine": {"path": "a"}}, tasks=["RTE"])


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.csv", "body,what\na,b\n", r"a\.csv: example 0 must have the column 'intent' that "
         r"stream\.own\.mine\.label names, got 'body', 'what'"),
        ("a.csv", "text,intent\na,b\n", r"column 'body' that stream\.own\.mine\.text names"),
        ("a.csv", "body,intent\na,b\nc\n", "example 1 must have as many fields as the first"),
        ("a.csv", "body,intent\na,b,c\n", "example 0 must have as many fields as the first"),
        ("a.csv", 'body,intent\n"a,b\n', r"a\.csv: cannot be read as csv \(unexpected end"),
        ("a.csv", "body,intent\na,\n", r"a\.csv: example 0 must have a label, got none"),
        ("a.csv", "body,intent\n", r"a\.csv: there must be at least one usable example, got none"),
        ("a.csv", b"body,intent\n\xff,b\n", r"cannot be read as csv \('utf-8' .* position 12"),
        ("a.csv.gz", b"no gzip", r"a\.csv\.gz: cannot be read as csv \(Not a gzipped"),
        ("a.jsonl", '{"body": "a", "intent": "b"}\n{\n', r"l: example 1, cannot be read as jsonl"),
        ("a.jsonl", "[1]\n", r"a\.jsonl: example 0 must be an object with names, got list"),
        ("a.json", '{"body": 1}', r"a\.json: must be a list of examples, got dict"),
        ("a.parquet", b"PAR1", r"a\.parquet: cannot be read as parquet \(.*Parquet"),
        ("a.xlsx", b"PK", r"a\.xlsx: must be one of \.csv, .*\.parquet, got '\.xlsx'"),
    ],
)  # fmt: skip
def test_bad_files(tmp_path, file, content, message):
    path = tmp_path / file
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(ValueError, match=message):
        build_stream(stream({"mine": described(path)}))


def test_missing_files_say_what_a_task_needs(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"'mine' needs a file or a folder as stream\.own\.mine\.path"
    ):
        build_stream(stream({"mine": described(tmp_path / "no.csv")}))
    with pytest.raises(
        FileNotFoundError, match=r"must be a folder with train\.json or test\.json, .*has neither"
    ):
        build_stream(stream({"mine": described(tmp_path)}))
    with pytest.raises(
        FileNotFoundError, match=r"for mine in .*needs its table \[stream\.own\.NAME\] with path"
    ):
        build_stream(stream({}, tasks=["mine"], data=str(tmp_path)))


def test_a_second_file_beside_a_folder(tmp_path):
    with pytest.raises(ValueError, match=r"own\.mine\.test belongs to a file; .* is a folder"):
        build_stream(stream({"mine": described(tmp_path, test="b.csv")}))


def test_what_is_missing_is_told_before_a_run(weights, tmp_path, monkeypatch):
    monkeypatch.setattr("riselab.continual.language.run.off_hub", lambda name, kind: "not there")
    own = {"far": {"hub": "me/mine"}, "near": described(tmp_path / "no.csv")}
    plain = config("", weights, stream={"tasks": ["far", "near"], "own": own})
    missing = needs(read_config(plain))["missing"]
    assert "the dataset 'me/mine' is not there" in missing[0]
    assert "the task 'near' needs a file" in missing[1]
