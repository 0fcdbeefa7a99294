"""Tasks, prompts, files and splits; and what is said about bad input."""

import gzip
import json

import pytest

from continual.language.tiny_text import write_task
from riselab.continual.language.streams.build import build_stream
from riselab.continual.language.streams.settings import ORDERS, POOL, LanguageStreamSettings


def stream_of(data, *tasks, **changes):
    return build_stream(LanguageStreamSettings(tasks=tasks, data=str(data), **changes))


def test_pool_and_orders():
    assert len(POOL) == 15
    assert [len(order) for order in ORDERS.values()] == [4, 4, 15]
    assert set(ORDERS["order3"]) == set(POOL)
    assert LanguageStreamSettings(name="order2").order == ("dbpedia", "amazon", "agnews", "yahoo")


def test_prompts_to_the_letter():
    assert POOL["agnews"].prompt("Title: a\nText: b\n") == (
        "Task:TC\nDataset:agnews\nWhat is the topic of the following paragraph? Choose one from "
        "the option.\nOption: World, Sports, Business, Science or Technology \n"
        "Title: a\nText: b\n\nAnswer:"
    )
    assert POOL["COPA"].prompt("Which?") == "Task:COPA\nDataset:COPA\nWhich?\nAnswer:"
    assert "Option: a, b \n" in POOL["RTE"].prompt("x", labels=("a", "b"))


@pytest.mark.parametrize("zipped", [True, False])
def test_both_layouts_plain_and_zipped(tmp_path, zipped):
    write_task(tmp_path, "agnews", zipped=zipped)
    write_task(tmp_path / "SC", "SST-2", zipped=zipped)  # KIND/NAME, as the benchmark itself
    stream = stream_of(tmp_path, "agnews", "SST-2")
    assert [task.sizes()["train"] for task in stream] == [12, 12]
    assert stream[0].test.answers[:2] == ("World", "Sports")
    assert stream[0].test.labels[:2] == (0, 1)
    assert stream.notes == ()


@pytest.mark.parametrize("deeper", [True, False])
@pytest.mark.parametrize("name", ["BoolQA", "COPA", "MultiRC", "QQP", "WiC"])
def test_tasks_of_their_own_kind_lie_one_level_deeper_in_the_benchmark(tmp_path, name, deeper):
    write_task(tmp_path / name if deeper else tmp_path, name, labels=["one", "two"])
    task = stream_of(tmp_path, name)[0]
    assert task.sizes() == {"train": 12, "validation": 0, "test": 6}
    assert task.classes == ("one", "two"), "the labels beside the examples"


def test_the_nearer_folder_with_examples_is_taken(tmp_path):
    write_task(tmp_path / "TC", "agnews", train=4)
    (tmp_path / "agnews").mkdir()
    assert len(stream_of(tmp_path, "agnews")[0].train) == 4
    write_task(tmp_path, "agnews", train=8)
    assert len(stream_of(tmp_path, "agnews")[0].train) == 8


def test_one_file_is_split_by_a_fixed_seed(tmp_path):
    write_task(tmp_path, "agnews", train=None, test=40)
    stream = stream_of(tmp_path, "agnews")
    again = stream_of(tmp_path, "agnews")
    other = stream_of(tmp_path, "agnews", split_seed=1)
    assert stream[0].sizes() == {"train": 30, "validation": 0, "test": 10}
    assert stream[0].test == again[0].test != other[0].test
    assert "no train split; 10 of its 40 test examples are for testing" in stream.notes[0]


def test_sizes_and_validation(tmp_path):
    folder = write_task(tmp_path, "SST-2", train=1, test=1)
    for split, count in (("train", 50), ("test", 20)):
        examples = [{"sentence": f"{split} {n}", "label": "Good"} for n in range(count)]
        (folder / f"{split}.json").write_text(json.dumps(examples))
    stream = stream_of(tmp_path, "SST-2", train_size=40, test_size=5, validation=0.25)
    task = stream[0]
    assert task.sizes() == {"train": 30, "validation": 10, "test": 5}
    assert not set(task.train.prompts) & set(task.validation.prompts)
    assert all("train " in prompt for prompt in task.validation.prompts)


def test_sizes_beyond_what_is_there_are_noted(tmp_path):
    write_task(tmp_path, "SST-2", train=12, test=6)
    write_task(tmp_path, "RTE", train=20, test=8)
    assert stream_of(tmp_path, "SST-2", "RTE", train_size=12, test_size=6).notes == ()
    assert stream_of(tmp_path, "SST-2", "RTE", train_size=13, test_size=10).notes == (
        "train_size=13 is more than there is: SST-2 has 12",
        "test_size=10 is more than there is: SST-2 has 6, RTE has 8",
    )


def test_a_test_set_that_lacks_a_class_is_noted(tmp_path):
    folder = write_task(tmp_path, "agnews", test=2)
    assert stream_of(tmp_path, "agnews").notes == (
        "agnews: no test examples for Business, Science or Technology",
    )
    odd = [{"sentence": f"Text: {label}", "label": label} for label in POOL["agnews"].labels]
    (folder / "test.json").write_text(json.dumps([*odd[1:], odd[1]]))
    assert stream_of(tmp_path, "agnews").notes == ("agnews: no test examples for World",)
    assert len(stream_of(tmp_path, "agnews", test_size=1).notes) == 1


def test_a_missing_task_must_be_left_out_on_purpose(tmp_path):
    write_task(tmp_path, "agnews")
    (tmp_path / "yahoo").mkdir()
    with pytest.raises(
        FileNotFoundError,
        match=r"neither .* for yahoo, SST-2 in .*; looked for train and test\.json and \.json\.gz "
        r"in yahoo, TC/yahoo, SST-2, SC/SST-2; .*leave_out=\[\"y",
    ):
        stream_of(tmp_path, "yahoo", "agnews", "SST-2")
    stream = stream_of(tmp_path, "yahoo", "agnews", leave_out=("yahoo",))
    assert [task.name for task in stream] == ["agnews"]
    assert stream.notes == ("left out of the stream: yahoo",)


def test_a_named_order_with_other_tasks_says_so(tmp_path):
    write_task(tmp_path, "agnews")
    stream = stream_of(tmp_path, "agnews", name="order1")
    assert stream.notes == ("differs from order1: tasks are agnews",)


def test_labels_outside_the_set_are_counted(tmp_path):
    folder = write_task(tmp_path, "SST-2")
    odd = [{"sentence": "Text: a", "label": "-"}] * 2 + [{"sentence": "Text: b", "label": "Good"}]
    (folder / "test.json").write_text(json.dumps(odd))
    kept = stream_of(tmp_path, "SST-2")
    assert kept[0].test.labels == (-1, -1, 0)
    assert (
        "2 of 3 examples of test.json have labels outside the label set ('-' 2x): kept"
        in (kept.notes[0])
    )
    dropped = stream_of(tmp_path, "SST-2", unknown_labels="drop")
    assert dropped[0].test.answers == ("Good",)
    assert "left out" in dropped.notes[0]


@pytest.mark.parametrize("nothing", [" \n", "Text: \n", "Title: \nText:", "sentence 1:\n"])
def test_empty_texts(tmp_path, nothing):
    folder = write_task(tmp_path, "SST-2")
    odd = [{"sentence": "Text: a", "label": "Good"}, {"sentence": nothing, "label": "Bad"}]
    (folder / "train.json").write_text(json.dumps(odd))
    with pytest.raises(ValueError, match=r"train\.json: every example .* empty one in example 1;"):
        stream_of(tmp_path, "SST-2")
    stream = stream_of(tmp_path, "SST-2", empty_texts="drop")
    assert len(stream[0].train) == 1
    assert stream.notes == ("SST-2: 1 examples with empty text left out (example 1)",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            '[{"sentence": "a", "label": }]',
            r"train\.json: cannot be read .*line 1 column 29",
        ),
        ('{"sentence": "a"}', r"train\.json: must be a list of examples, got dict"),
        ('[{"sentence": "a"}]', r'example 0 must have the texts "sentence" and "label", got'),
        ('[{"sentence": 3, "label": "b"}]', r'example 0 must have the texts "sentence"'),
        ("[]", r"train\.json: there must be at least one usable example, got none"),
        (b"\xff\xfe", r"train\.json: cannot be read .*in position 0"),
        ("[" * 100_000, r"train\.json: cannot be read as JSON \(.*recursion"),
        ("[" + "1" * 5000 + "]", r"train\.json: cannot be read as JSON \(Exceeds the limit"),
    ],
)
def test_bad_files(tmp_path, content, message):
    folder = write_task(tmp_path, "SST-2")
    raw = content if isinstance(content, bytes) else content.encode()
    (folder / "train.json").write_bytes(raw)
    with pytest.raises(ValueError, match=message):
        stream_of(tmp_path, "SST-2")


def test_a_cut_gzip_file(tmp_path):
    folder = write_task(tmp_path, "SST-2")
    (folder / "train.json.gz").write_bytes(gzip.compress(b"[]" * 100)[:-9])
    with pytest.raises(
        ValueError, match=r"train\.json\.gz: cannot be read .*Compressed file ended"
    ):
        stream_of(tmp_path, "SST-2")


def test_bad_labels_file(tmp_path):
    folder = write_task(tmp_path, "SST-2")
    (folder / "labels.json").write_text('["a", "a"]')
    with pytest.raises(ValueError, match=r"labels\.json: must be a list of different label texts"):
        stream_of(tmp_path, "SST-2")


def test_no_folder():
    with pytest.raises(FileNotFoundError, match=r"got '': give it with --set stream\.data=PATH"):
        stream_of("", "SST-2")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "order4"}, r"name must be one of order1, .*did you mean"),
        ({"tasks": ("../agnews",)}, r"tasks must be names of letters, .*got '\.\./agnews'"),
        ({"tasks": ("RTE", "RTE")}, r"tasks must be different, got RTE, RTE"),
        ({"name": "order1", "leave_out": ("RTE",)}, r"leave_out must be one of dbpedia"),
        ({"tasks": ("RTE",), "leave_out": ("RTE",)}, r"leave at least one task"),
        ({"name": "order1", "validation": 1.0}, r"validation must be a finite number >= 0 and < 1"),
        ({"name": "order1", "train_size": -1}, r"train_size must be an integer >= 0, got -1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        LanguageStreamSettings(**settings)
