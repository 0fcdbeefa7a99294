"""Which runs are the same: by what they do and what they read, not by names and places."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest

from risegrad.common.seal import digest
from riselab.common.inputs import Hub, Local, essential, readings_of
from riselab.common.settings import essence, read, without
from riselab.continual.runs import read_config
from riselab.experiments.cells import RunCell, expand
from riselab.experiments.file import load_experiment, public, without_paths
from riselab.records.record import read_record, read_records
from riselab.report.builder import build
from riselab.running import worker as executing
from riselab.running.folder import State, look, placed
from riselab.running.worker import DONE, FAILED, execute, order_for

from . import fake_workload
from .conftest import EXPERIMENT, FAKE, cells_of, rise

Write = Callable[..., Path]
Capture = pytest.CaptureFixture[str]

KEPT = Path(__file__).parents[2] / "experiments" / "records"
ONE = EXPERIMENT.replace("seeds = [0, 1]", "seeds = [0]").split('[[rows]]\nlabel = "RISE"')[0]


def data_in(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "data.npz").write_text(text)
    return folder / "data.npz"


def run_here(cell: RunCell, out: Path) -> tuple[str, str]:
    """Without a process of its own."""
    return execute(order_for(placed([cell], out)[0], out, work=FAKE))


def records_in(out: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(out.rglob("record.json"))]


def test_other_data_of_the_same_name_is_another_run(
    write: Write, tmp_path: Path, capsys: Capture
) -> None:
    a, b = (data_in(tmp_path / name, name) for name in ("a", "b"))
    path, out = write(ONE), tmp_path / "out"
    assert rise("run", path, "--out", out, "--set", f"stream.data={a}") == 0
    capsys.readouterr()
    assert rise("show", path, "--out", out, "--set", f"stream.data={b}") == 0
    assert "1 runs: 1 new" in capsys.readouterr().out
    assert rise("run", path, "--out", out, "--set", f"stream.data={b}") == 0
    assert "of them before" not in capsys.readouterr().out
    hashes = {one["run"]["inputs"]["stream.data"]["sha256"] for one in records_in(out)}
    assert len(hashes) == 2
    shutil.move(a.parent, tmp_path / "moved")
    moved = tmp_path / "moved" / "renamed.npz"
    (tmp_path / "moved" / "data.npz").rename(moved)
    assert rise("run", path, "--out", out, "--set", f"stream.data={moved}") == 0
    assert "1 of 1 runs done, 1 of them before" in capsys.readouterr().out


def test_an_interrupted_run_does_not_go_on_with_another_file(write: Write, tmp_path: Path) -> None:
    out, path = tmp_path / "out", write(ONE)
    a, b = (data_in(tmp_path / name, name) for name in ("a", "b"))
    (first,), (second,) = (cells_of(path, f"stream.data={one}") for one in (a, b))
    half = out / first.folder / "checkpoints" / "state"
    half.parent.mkdir(parents=True)
    half.write_text(json.dumps({"step": 5, "digest": "of the other file"}))
    (out / first.folder / "starts.txt").write_text("2026-01-01T00:00:00+00:00\n")
    assert run_here(second, out) == (DONE, "")
    assert read_record(out / second.folder / "record.json").run.resumed == 0
    assert half.exists()
    assert look(out / first.folder, first)[0] is State.INTERRUPTED


def test_data_that_change_under_a_run_leave_no_record(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = data_in(tmp_path / "a", "one"), tmp_path / "out"
    (cell,) = cells_of(write(ONE), f"stream.data={data}")
    perform = executing.perform

    def changing(*given: Any) -> dict[str, Any]:
        data.write_text("two")
        return perform(*given)

    monkeypatch.setattr(executing, "perform", changing)
    outcome, message = run_here(cell, out)
    assert outcome == FAILED
    assert "was changed after it was planned: stream.data (data.npz 7692c3ad3540, now" in message
    outcome, message = run_here(cell, out)
    assert outcome == FAILED, "and it does not begin with something else either"
    assert not list(out.rglob("record.json"))


def test_a_renamed_row_repeats_nothing_and_gets_its_new_name(
    small: Path, write: Write, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    assert rise("run", small, "--out", out) == 0
    before = {one["id"]: one for one in records_in(out)}
    place = '{ table = "1", row = "EASE", column = "CIFAR100 Inc-5" }'
    new = f'"First order"\nsection = "FO Optimization"\npaper = {place}'
    other = write(EXPERIMENT.replace('"FO"', new).replace("baseline = true\n", ""))
    capsys.readouterr()
    assert rise("show", other, "--out", out) == 0
    assert "6 runs: 6 done" in capsys.readouterr().out
    assert rise("run", other, "--out", out) == 0
    shown = capsys.readouterr().out
    assert "6 of 6 runs done, 6 of them before" in shown
    assert "First order" in shown
    after = {one["id"]: one for one in records_in(out)}
    assert before.keys() == after.keys()
    for name, one in after.items():
        assert one["result"] == before[name]["result"]
        assert one["run"] == before[name]["run"]
    records, problems = read_records([out])
    assert not problems
    labels = [row.label for row in build(records).experiments[0].rows]
    assert labels == ["First order", "RISE (q=4)", "RISE (q=8)"]


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("config.rule.q", 8, "was edited: its seal does not match"),
        ("config.loop.steps", 8, "was edited: config does not match its id in loop.steps"),
        ("run.inputs", {"stream.data": {"sha256": "0"}}, "was edited: its seal does not match"),
        ("seed", 7, "was edited: its seal does not match"),
    ],
)
def test_an_edited_record_is_named_and_left_out(
    write: Write, tmp_path: Path, capsys: Capture, place: str, value: Any, reason: str
) -> None:
    text = ONE.replace("steps = 3", "steps = 4").replace("seeds = [0]", "seeds = [0, 1]")
    path, out = write(text), tmp_path / "out"
    first, second = cells_of(path)
    assert run_here(first, out) == run_here(second, out) == (DONE, "")
    file = out / first.folder / "record.json"
    content = json.loads(file.read_text())
    *parents, last = place.split(".")
    inner = content
    for key in parents:
        inner = inner[key]
    inner[last] = value
    file.write_text(json.dumps(content, indent=1))
    assert rise("report", out, "--out", tmp_path / "report.html") == 0
    shown, warned = capsys.readouterr()
    assert f"left out {file}: {reason}" in warned
    assert "FO" in shown
    assert look(out / first.folder, first) == (State.BROKEN, read_problem(file))


def read_problem(file: Path) -> str:
    _, (problem,) = read_records([file])
    return problem.reason


def test_layout_of_the_file_does_not_matter(write: Write, tmp_path: Path) -> None:
    (cell,) = cells_of(write(ONE))
    assert run_here(cell, tmp_path) == (DONE, "")
    file = tmp_path / cell.folder / "record.json"
    file.write_text(json.dumps(json.loads(file.read_text()), sort_keys=True))
    assert look(file.parent, cell) == (State.DONE, "")


def changed_class(name: str, **fields: Any) -> type:
    """One of the fake workload's tables with fields that are new, or have another default."""
    base = getattr(fake_workload, name)
    more = [(key, type(value), field(default=value)) for key, value in fields.items()]
    return make_dataclass(name, more, bases=(base,), frozen=True)


def cells_with(path: Path, name: str, **fields: Any) -> list[RunCell]:
    kind = changed_class(name, **fields)
    key = name.lower()
    config = make_dataclass(
        "Config", [(key, kind, field(default_factory=kind))], bases=(fake_workload.Config,),
        frozen=True,
    )  # fmt: skip
    return expand(load_experiment(path), lambda plain: read(config, plain))


def test_a_field_that_is_added_with_its_default_changes_no_id(small: Path, tmp_path: Path) -> None:
    before = cells_of(small)
    for new in ({"exempt": ()}, {"scale": 0.5}, {"kind": "usual"}, {"deep": True}):
        after = cells_with(small, "Rule", **new)
        assert [cell.id for cell in after] == [cell.id for cell in before], new
        assert after[0].config["rule"].keys() > before[0].config["rule"].keys()
    assert run_here(before[0], tmp_path) == (DONE, "")
    assert look(tmp_path / after[0].folder, after[0])[0] is State.DONE


def test_a_default_that_was_changed_is_another_run(small: Path, tmp_path: Path) -> None:
    """The id cannot tell, the full configuration in the record can."""
    before = cells_of(small)[0]
    assert run_here(before, tmp_path) == (DONE, "")
    after = cells_with(small, "Host", lr=0.2)[0]
    assert after.id == before.id
    found = look(tmp_path / before.folder, after)
    assert found == (State.BROKEN, "was made with other defaults (host.lr)")


def digits(**sections: dict[str, Any]) -> dict[str, Any]:
    base = {"stream": {"name": "digits"}, "host": {"name": "simple-cil"}, "domain": "vision"}
    given = {"model": {"pretrained": False}, "seed": 0}
    return base | given | sections


def real_id(tmp_path: Path, **sections: dict[str, Any]) -> str:
    tables = "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in table.items())
        for name, table in digits(**sections).items()
        if isinstance(table, dict)
    )
    (tmp_path / "x.toml").write_text(
        f'name = "x"\ndomain = "vision"\n{tables}\n[[rows]]\nlabel = "a"\n'
    )
    (cell,) = expand(load_experiment(tmp_path / "x.toml"), read_config)
    return cell.id


def test_what_cannot_change_numbers_is_no_part_of_a_real_run(tmp_path: Path) -> None:
    base = real_id(tmp_path)
    assert real_id(tmp_path, loop={"workers": 4, "checkpoint_seconds": 5.0}) == base
    assert real_id(tmp_path, loop={"batch": 48}) == base, "the default, said"
    assert real_id(tmp_path, loop={"batch": 47}) != base
    assert real_id(tmp_path, loop={"device": "cpu"}) != base
    assert real_id(tmp_path, host={"name": "learnable-classifier"}) != base


def test_what_its_reader_checks_is_the_same_before_and_after_it_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stream = {"name": "cifar100-inc5", "data": "data"}
    before = real_id(tmp_path, stream=stream | {"download": True})
    (tmp_path / "data" / "cifar-100-python").mkdir(parents=True)
    (tmp_path / "data" / "another-data-set").touch()
    assert real_id(tmp_path, stream=stream) == before
    (cell,) = expand(load_experiment(tmp_path / "x.toml"), read_config)
    assert cell.settings["stream"]["data"] == str(tmp_path / "data"), "for workers elsewhere"
    assert cell.config["stream"]["data"] == "data"


HOLDERS = [
    read_config(digits()),
    read_config(digits(host={"name": "adapter-classifier"}) | {"additions": [{"name": "ewc"}]}),
    read_config(
        {"domain": "language", "stream": {"name": "order1"}, "host": {"name": "o-lora"}, "seed": 0}
    ),
]


@pytest.mark.parametrize("settings", HOLDERS)
def test_every_setting_counts_unless_it_is_set_apart(settings: Any) -> None:
    """A setting that fell out of the essence would let another run pass as done."""
    apart = {"workers", "checkpoint_seconds", "keep_weights", "download"}
    parts = [getattr(settings, f.name) for f in fields(settings)]
    tables = [settings, *filter(is_dataclass, parts), *settings.additions]
    before, changed = essence(settings), 0
    for table in tables:
        for one in fields(table):
            if not one.init:
                continue
            value = getattr(table, one.name)
            object.__setattr__(table, one.name, "something else")
            assert (essence(settings) == before) == (one.name in apart), one.name
            object.__setattr__(table, one.name, value)
            changed += 1
    assert changed > 50
    assert essence(settings) == before


GONE: dict[str, dict[str, Any]] = {
    "vision": {"permutations": [], "noises": [], "given_order": [], "on_broken": "stop"},
    "language": {"source": "folder", "one_file": "split", "unknown_labels": "keep"},
}
"""Settings of streams that went, with the defaults that every record of them has."""


@pytest.mark.parametrize("name", sorted(path.name for path in KEPT.iterdir()))
def test_kept_records_have_the_ids_that_their_settings_have_today(name: str) -> None:
    """Fields that were added since, with their defaults, do not count; nor do some that went."""
    records, problems = read_records([KEPT / name])
    assert not problems
    for record in records:
        gone = GONE.get(record.config["domain"], {})
        stream = record.config["stream"]
        assert all(stream.get(key, default) == default for key, default in gone.items())
        left = {key: value for key, value in stream.items() if key not in gone}
        settings = read_config({**record.config, "stream": left})
        readings = readings_of(settings)
        own = public(without(essence(settings), readings), readings)
        identity = {"settings": own, "inputs": essential(record.run.inputs)}
        assert record.id == digest(identity), record.path
        assert record.path.stem.endswith(record.id[:12])


def test_names_on_the_hub_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    ids = {
        real_id(tmp_path, stream={"name": "mine", "source": "hub", "data": name})
        for name in ("uoft-cs/cifar100", "somebody/cifar100")
    }
    assert len(ids) == 2


def fetch(cache: Path, commit: str) -> None:
    ref = cache / "datasets--a--b" / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


def test_a_revision_that_becomes_known_repeats_nothing_and_another_does(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, out = tmp_path / "hub", tmp_path / "out"
    monkeypatch.setenv("HF_HUB_CACHE", str(cache))
    reads = {"stream.data": Hub("a/b", "dataset")}
    monkeypatch.setattr(fake_workload.Config, "reads", lambda self: reads)
    path = write(ONE)
    (unknown,) = cells_of(path)
    perform = executing.perform

    def fetching(*given: Any) -> dict[str, Any]:
        fetch(cache, "a" * 40)
        return perform(*given)

    monkeypatch.setattr(executing, "perform", fetching)
    assert run_here(unknown, out) == (DONE, "")
    (known,) = placed(cells_of(path), out)
    assert known.id != unknown.id
    assert look(out / known.folder, known)[0] is State.DONE
    (record,) = records_in(out)
    assert record["run"]["inputs"]["stream.data"] == {"hub": "a/b", "revision": "a" * 40}
    fetch(cache, "b" * 40)
    (other,) = placed(cells_of(path), out)
    assert look(out / other.folder, other)[0] is State.NEW


def test_a_report_never_mixes_inputs(write: Write, tmp_path: Path, capsys: Capture) -> None:
    path, out = write(ONE.replace("seeds = [0]", "seeds = [0, 1]")), tmp_path / "out"
    a, b = (data_in(tmp_path / name, name) for name in ("a", "b"))
    first, second = cells_of(path, f"stream.data={a}")[0], cells_of(path, f"stream.data={b}")[1]
    assert run_here(first, out) == run_here(second, out) == (DONE, "")
    assert rise("report", out, "--out", tmp_path / "report.html") == 0
    shown, warned = capsys.readouterr()
    assert "runs of the row 'FO' differ in stream.data, not only in the seed" in warned
    assert "rows differ in what was read as stream.data" in warned
    assert "FO, stream.data=data.npz ca978112ca1b" in shown
    assert "FO, stream.data=data.npz 3e23e8160039" in shown


def test_the_report_names_torch_and_commit_of_real_records(write: Write, tmp_path: Path) -> None:
    (cell,) = cells_of(write(ONE))
    assert run_here(cell, tmp_path) == (DONE, "")
    record = read_record(tmp_path / cell.folder / "record.json")
    assert rise("report", tmp_path, "--out", tmp_path / "report.html", "--quiet") == 0
    page = (tmp_path / "report.html").read_text()
    assert f"torch {record.run.environment['packages']['torch']}" in page
    if (Path(__file__).parents[2] / ".git").exists():
        assert f"commit {record.run.git['commit'][:12]}" in page


def test_no_path_of_this_machine_in_a_record(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = data_in(tmp_path / "my data", "x")
    (cell,) = cells_of(write(ONE), f"stream.data={data}")
    told = [f"left out: {data}; {tmp_path}/other/y.jpg and C:\\Users\\me\\z.jpg, see a/b", "1/2"]
    perform = executing.perform

    def telling(*given: Any) -> tuple[dict[str, Any], dict[str, int]]:
        result, memory = perform(*given)
        return result | {"notes": told}, memory

    monkeypatch.setattr(executing, "perform", telling)
    assert run_here(cell, tmp_path / "out") == (DONE, "")
    text = (tmp_path / "out" / cell.folder / "record.json").read_text()
    assert str(tmp_path) not in text
    expected = ["left out: data.npz; y.jpg and z.jpg, see a/b", "1/2"]
    assert json.loads(text)["result"]["notes"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see http://ai.bu.edu/M3SDA/ and data/x", "see http://ai.bu.edu/M3SDA/ and data/x"),
        ("broken: /data/imagenet-r/train/a/1.jpg", "broken: imagenet-r/train/a/1.jpg"),
        ("'/home/u/x.npz' is short", "'x.npz' is short"),
        ("~/x/y.npz, and/or", "y.npz, and/or"),
    ],
)
def test_paths_within_texts(text: str, expected: str) -> None:
    assert without_paths(text, {"d": Local("/data/imagenet-r")}) == expected


def test_seeds_beyond_64_bits_are_refused(write: Write) -> None:
    for seed in (2**64, -(2**63) - 1, 10**400):
        with pytest.raises(ValueError, match=r"seeds must have at most 64 bits, got -?[0-9]+"):
            cells_of(write(ONE.replace("seeds = [0]", f"seeds = [{seed}]")))
    with pytest.raises(ValueError, match=r"small.toml: is not TOML: Exceeds the limit"):
        cells_of(write(ONE.replace("seeds = [0]", f"seeds = [1{'0' * 5000}]")))
    with pytest.raises(ValueError, match=r"small.toml: is (nested too deeply|not TOML)"):
        cells_of(write(f"{ONE}\nx = {'[' * 100_000}"))
    assert cells_of(write(ONE.replace("seeds = [0]", f"seeds = [{2**64 - 1}]")))


def test_nothing_from_a_file_acts_on_the_terminal(
    write: Write, tmp_path: Path, capsys: Capture
) -> None:
    bad = "\\u001b]0;evil\\u0007\\u001b[2J\\u202e"
    text = ONE.replace("A small one", f"{bad}title").replace('"FO"', f'"{bad}FO"')
    text = f'description = "{bad}one\\n  two"\n{text}'
    path, out = write(text), tmp_path / "out"
    assert rise("show", path, "--out", out) == 0
    assert rise("run", path, "--out", out) == 0
    assert rise("report", out, "--out", tmp_path / "report.html") == 0
    shown = "".join(capsys.readouterr())
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert "\n  two\n" in shown, "indentation stays"


def test_a_folder_that_cannot_be_written_keeps_old_names(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(ONE)
    (cell,) = cells_of(path)
    assert run_here(cell, tmp_path) == (DONE, "")

    def full(*given: Any) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("riselab.records.record.write_json", full)
    assert rise("run", write(ONE.replace('"FO"', '"Other"')), "--out", tmp_path) == 0
