"""``rise run`` and ``rise show``: what is done, what is repeated, what is said, exit codes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from risegrad.common.seal import sealed
from riselab.records.record import read_records

from .conftest import EXPERIMENT, cells_of, rise

Write = Callable[..., Path]
Capture = pytest.CaptureFixture[str]

ONE = EXPERIMENT.replace("seeds = [0, 1]", "seeds = [0]").split('[[rows]]\nlabel = "RISE"')[0]


def with_host(name: str) -> str:
    """A row that is well, and one with such a host."""
    return f'{ONE}\n[[rows]]\nlabel = "odd"\nhost = {{ name = "{name}" }}\n'


def record_of(path: Path, out: Path, number: int = 0, *overrides: str) -> Path:
    return out / cells_of(path, *overrides)[number].folder / "record.json"


def without_run(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    del content["run"]
    return content


def test_the_whole_grid_then_nothing_more(small: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    assert rise("run", small, "--out", out) == 0
    text, err = capsys.readouterr()
    assert err == ""
    assert text.count(": started\n") == text.count(": done in") == 6
    head = r"\nMethod +Avg↑ +Last↑ +Fgt↓ .*Seeds"
    assert re.search(head + r"\nFO +48\.00 ± 65\.05 .* 2\nRISE \(q=4\)", text)
    assert f"6 of 6 runs done; records in {out / 'small'}\n'rise report " in text
    records, problems = read_records([out])
    assert (len(records), problems) == (6, [])
    before = {record.path: record.path.stat().st_mtime_ns for record in records}

    assert rise("run", small, "--out", out) == 0
    text = capsys.readouterr().out
    assert "started" not in text
    assert "6 of 6 runs done, 6 of them before" in text
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_why_a_row_trains_otherwise_is_shown_kept_and_reported(
    write: Write, tmp_path: Path, capsys: Capture
) -> None:
    path, out = write(ONE.replace('"FO"', '"FO"\nwhy = "as the paper does"')), tmp_path / "out"
    assert rise("show", path, "--out", out) == 0
    assert "\nFO: as the paper does\n" in capsys.readouterr().out
    assert rise("show", path, "--out", out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["why"] == "as the paper does"
    assert rise("run", path, "--out", out) == 0
    ((record,), _) = read_records([out])
    assert record.row.why == "as the paper does"
    assert rise("report", out, "--out", tmp_path / "report.html") == 0
    text = (tmp_path / "report.html").read_text()
    assert "small, FO, seed 0: as the paper does" in text


def test_a_record_has_what_it_should(write: Write, tmp_path: Path) -> None:
    data, out = tmp_path / "data.bin", tmp_path / "out"
    data.write_bytes(b"abc")
    path = write(ONE)
    assert rise("run", path, "--out", out, "--set", f"stream.data={data}", "--threads", 1) == 0
    (cell,) = cells_of(path, f"stream.data={data}")
    content = json.loads((out / cell.folder / "record.json").read_text())
    expected = "schema id identity experiment row seed config result run seal"
    assert list(content) == expected.split()
    assert content["id"] == cell.id
    assert content["config"] == cell.config
    assert content["row"] == {
        "label": "FO", "section": "", "paper": None, "baseline": True, "order": 0, "why": ""
    }  # fmt: skip
    run = content["run"]
    assert run["resumed"] == 0
    assert run["seconds"]["train"] == [0.5, 0.5]
    assert run["memory"]["peak_rss_bytes"] > 1e6
    assert run["environment"]["packages"]["torch"]
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert run["inputs"] == {"stream.data": {"name": "data.bin", "sha256": digest}}
    assert str(tmp_path) not in json.dumps(content), "no paths of this machine"


def test_a_failure_does_not_stop_the_others(write: Write, tmp_path: Path, capsys: Capture) -> None:
    path, out = write(with_host("fails-once")), tmp_path / "out"
    assert rise("run", path, "--out", out, "--workers", 1) == 1
    text, err = capsys.readouterr()
    assert "1 of 2 runs done" in text
    assert "odd seed 0: failed" in text
    assert "1 failed:\n\nodd seed 0: " in err
    assert "Traceback" in err
    assert "ArithmeticError: the loss is not a number" in err
    error = record_of(path, out, 1).with_name("error.txt")
    assert "ArithmeticError" in error.read_text()

    assert rise("run", path, "--out", out) == 1, "it is not repeated without being asked"
    text, err = capsys.readouterr()
    assert "started" not in text
    assert "ArithmeticError: the loss is not a number" in err

    assert rise("run", path, "--out", out, "--retry-failed") == 0
    assert not error.exists()
    assert json.loads(record_of(path, out, 1).read_text())["run"]["resumed"] == 1


def test_a_worker_that_dies_goes_on(write: Write, tmp_path: Path, capsys: Capture) -> None:
    path, out = write(with_host("dies-once")), tmp_path / "out"
    assert rise("run", path, "--out", out) == 0
    text = capsys.readouterr().out
    assert "its process was ended by SIGKILL; continues from its last checkpoint" in text
    assert json.loads(record_of(path, out, 1).read_text())["run"]["resumed"] == 1


def test_a_worker_that_always_dies_is_a_failure(
    write: Write, tmp_path: Path, capsys: Capture
) -> None:
    path, out = write(with_host("dies")), tmp_path / "out"
    assert rise("run", path, "--out", out) == 1
    text, err = capsys.readouterr()
    assert text.count("continues from its last checkpoint") == 3
    assert "its process was ended by SIGKILL, 4 times; see log.txt" in err


@pytest.mark.parametrize("damage", ["truncated", "empty", "another"])
def test_a_damaged_record_is_named_and_made_again(
    write: Write, tmp_path: Path, capsys: Capture, damage: str
) -> None:
    path, out = write(ONE), tmp_path / "out"
    assert rise("run", path, "--out", out) == 0
    record = record_of(path, out)
    good, text = without_run(record), record.read_text()
    other = cells_of(path, "rule.q=2")[0]
    content = json.loads(text) | {
        "id": other.id,
        "identity": other.identity,
        "config": other.config,
    }
    another = json.dumps(sealed(content))
    record.write_text(
        {"truncated": text[: len(text) // 2], "empty": "", "another": another}[damage]
    )
    capsys.readouterr()
    assert rise("show", path, "--out", out) == 0
    assert "1 runs: 1 broken" in capsys.readouterr().out
    assert rise("run", path, "--out", out) == 0
    shown = capsys.readouterr().out
    assert f"{record} is " in shown
    assert "set aside as record.json.broken, the run is repeated" in shown
    assert without_run(record) == good
    assert record.with_name("record.json.broken").exists()
    assert json.loads(record.read_text())["run"]["resumed"] == 1
    assert not (record.parent / "checkpoints").exists(), "a finished run leaves its record only"


def test_a_part_of_the_grid(small: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out"
    args = ["run", small, "--out", out, "--set", "loop.steps=1"]
    assert rise(*args, "--only", "FO", "--seeds", "7") == 0
    assert "1 of 1 runs done" in capsys.readouterr().out
    cell = cells_of(small, "loop.steps=1")[3]
    assert rise(*args, "--only", cell.id[:8]) == 0
    assert (out / cell.folder / "record.json").exists()
    assert len(read_records([out])[0]) == 2


def test_what_a_run_prints_is_in_its_log(write: Write, tmp_path: Path, capsys: Capture) -> None:
    path, out = write(with_host("talks")), tmp_path / "out"
    assert rise("run", path, "--out", out) == 0
    assert "hello" not in capsys.readouterr().out
    assert record_of(path, out, 1).with_name("log.txt").read_text() == "hello from the run\n"


@pytest.mark.slow
def test_tensorboard_files_are_written(write: Write, tmp_path: Path) -> None:
    path, out = write(ONE), tmp_path / "out"
    assert rise("run", path, "--out", out, "--track", "tensorboard") == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(record_of(path, out).with_name("tensorboard")))
    events.Reload()
    assert [(e.step, round(e.value, 2)) for e in events.Scalars("loss")] == [
        (1, 1.0), (2, 0.5), (3, 0.33), (4, 1.0), (5, 0.5), (6, 0.33)
    ]  # fmt: skip
    assert [(e.step, e.value) for e in events.Scalars("union")] == [(2, 50.0)]


def test_show_says_what_is_there_and_what_is_left(
    small: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "out"
    assert rise("run", small, "--out", out, "--only", "FO") == 0
    capsys.readouterr()
    assert rise("show", small, "--out", out) == 0
    text = capsys.readouterr().out
    assert text.startswith("small - A small one\n")
    assert re.search(r"\n +seeds +state\nFO +0, 1 +2 done\nRISE \(q=4\) +0, 1 +2 new\n", text)
    assert "6 runs: 2 done, 4 new\nleft to do: 24 steps\n" in text
    assert rise("show", small, "--out", out, "--json", "--set", "host.lr=3", "--seeds", "4") == 0
    content = json.loads(capsys.readouterr().out)
    assert content["left"] == {"steps": 18}
    assert [run["config"]["host"]["lr"] for run in content["runs"]] == [3.0] * 3
    assert not any(Path("small").glob("*")), "nothing is written"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-such"], "experiment 'no-such': unknown"),
        (["SMALL", "--set", "host.rate=1"], "host.rate: unknown"),
        (["SMALL", "--set", "hst.lr=1"], "hst: unknown, did you mean 'host'?"),
        (["SMALL", "--set", "lr"], "lr: unknown"),
        (["SMALL", "--set", "=3"], "an override must look like section.key=value, got '=3'"),
        (["SMALL", "--set", "rule.q=" + "[" * 9000], "[[[... is nested too deeply"),
        (["SMALL", "--set", 'rule.q="' + "x" * 900], "xxx... has no TOML value after '='"),
        (["SMALL", "--only", ""], "--only '': unknown. There are FO, RISE (q=4), RISE (q=8)"),
        (["SMALL", "--only", "FOO"], "--only 'FOO': unknown, did you mean 'FO'?"),
        (["SMALL", "--seeds", "a"], "--seeds must be integers like 0,1,2, got 'a'"),
        (["SMALL", "--seeds", "1,1"], "seeds must be different integers, got [1, 1]"),
        (["SMALL", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["SMALL", "--engine", "slurm"], "engine must be one of local, ray; got 'slurm'"),
    ],
)
def test_mistakes_are_two_lines_and_exit_code_two(
    small: Path, tmp_path: Path, capsys: Capture, argv: list[str], message: str
) -> None:
    argv = [str(small) if word == "SMALL" else word for word in argv]
    assert rise("run", *argv, "--out", tmp_path / "out") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert len(err.splitlines()) == 2
    assert err.endswith("See 'rise run --help'.\n")
    assert not (tmp_path / "out").exists()
