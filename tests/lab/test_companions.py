"""Several processes for one run: the same record as one process, and no waiting for the dead."""

from pathlib import Path

import pytest

from risegrad.cli import main
from risegrad.lab.commands.run import NAME
from risegrad.lab.records import read_records

TINY = """
name = "tiny"
domain = "vision"
[stream]
name = "digits"
image_size = 8
base = 2
increment = 2
classes = 4
train_per_class = 8
test_per_class = 6
[model]
name = "vit_tiny_patch16_224"
pretrained = false
width = 16
depth = 1
heads = 2
patch = 4
adapter_width = 4
adapter_dropout = 0.0
[host]
name = "zo-fc-rise"
[adapter]
epochs = 2
lr = 0.1
[head]
epochs = 1
[loop]
batch = 6
device = "cpu"
[[rows]]
label = "RISE"
"""


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def real(*words: object, workload: str = "risegrad.continual.run") -> int:
    """Not the fake workload of the other tests here."""
    return main([*map(str, words), "--workload", workload])


def test_two_processes_leave_the_record_of_one(tiny: Path, tmp_path: Path) -> None:
    results = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        code = real(NAME, tiny, "--out", out, "--processes", processes, "--threads", 1)
        assert code == 0, [path.read_text() for path in out.rglob("*.txt")]
        ((record,), problems) = read_records([out])
        assert not problems
        results.append(record.result)
    one, two = results
    assert one.scores == two.scores
    for first, second in zip(one.losses, two.losses, strict=True):
        assert second.loss == pytest.approx(first.loss, rel=1e-4)


def test_a_process_that_dies_ends_the_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first would wait for ever for one that failed."""
    out = tmp_path / "out"
    words = (NAME, tiny, "--out", out, "--processes", 2, "--threads", 1)
    code = real(*words, workload="tests.lab.dies_alone")
    assert code == 1
    assert "its process ended with code 1" in capsys.readouterr().err
    assert "a process of this run ended with code" in next(out.rglob("log.txt")).read_text()


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one(tiny: Path, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert real(NAME, tiny, "--processes", count) == 2
    assert f"--processes must be at least 1, got {count}" in capsys.readouterr().err
