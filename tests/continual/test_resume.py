"""A killed run goes on from its last checkpoint and ends with the same numbers."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from continual.tiny import config
from riselab.continual.host import silent
from riselab.continual.runs import perform, read_config
from tail import PATIENCE

RUN = """
import json, sys, torch
from pathlib import Path
from riselab.continual.runs import perform, read_config
torch.set_num_threads(1)
folder = Path(sys.argv[2])
found = perform(read_config(json.loads(sys.argv[1])), folder, lambda news: print(news, flush=True))
(folder / "result.json").write_text(json.dumps(found))
"""


class KilledHere(Exception):
    pass


def dying_after(count):
    """A report that stops the run when it is called for the ``count``-th time."""
    calls = itertools.count(1)

    def report(news):
        if next(calls) == count:
            raise KilledHere

    return report


def without_seconds(result):
    return {name: value for name, value in result.items() if name != "seconds"}


@pytest.mark.parametrize(
    ("host", "rule"),
    [
        ("adapter-classifier", "rise"),
        ("zo-fc", "zo"),
        ("ease", "covariance-noise"),
        ("aper", "fo"),
        ("learnable-classifier", "rise"),
        ("simple-cil", "fo"),
    ],
)
def test_stopped_anywhere_the_result_is_the_same(tmp_path, host, rule):
    """Every batch in turn is where it stops, until nothing is left to stop."""
    settings = read_config(
        config(host={"name": host}, rule={"name": rule}, loop={"checkpoint_seconds": 0})
    )
    expected = perform(settings, tmp_path / "undisturbed", silent)
    stops = 0
    while True:
        try:
            # Enough to get on, and not always at the same place.
            found = perform(settings, tmp_path / "disturbed", dying_after(5 + stops % 7))
            break
        except KilledHere:
            stops += 1
    assert stops >= 1 or host == "simple-cil"
    assert without_seconds(found) == without_seconds(expected)


@pytest.mark.slow  # stopped at every batch above, and workers are killed in tests/lab
def test_killed_for_real(tmp_path):
    """SIGKILL in the middle of a session, twice."""
    plain = config(rule={"name": "rise"}, loop={"checkpoint_seconds": 0}, adapter={"epochs": 6})
    expected = perform(read_config(plain), tmp_path / "undisturbed", silent)
    folder = tmp_path / "disturbed"
    folder.mkdir()
    command = [sys.executable, "-c", RUN, json.dumps(plain), str(folder)]
    for lines in (8, 40):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for _ in range(lines):
            process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found = json.loads((folder / "result.json").read_text())
    assert without_seconds(found) == without_seconds(json.loads(json.dumps(expected)))


def test_a_damaged_checkpoint_costs_one_step_back(tmp_path):
    settings = read_config(config(loop={"checkpoint_seconds": 0}))
    expected = perform(settings, tmp_path / "undisturbed", silent)
    folder = tmp_path / "disturbed"
    with pytest.raises(KilledHere):
        perform(settings, folder, dying_after(20))
    newest = sorted((folder / "checkpoints").glob("*.ckpt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-10])
    with pytest.warns(UserWarning, match=f"{newest.name} .* is damaged"):
        found = perform(settings, folder, silent)
    assert without_seconds(found) == without_seconds(expected)


def test_a_finished_run_repeats_nothing(tmp_path):
    settings = read_config(config())
    first = perform(settings, tmp_path, silent)
    news = []
    assert perform(settings, tmp_path, news.append) == first
    assert not news, "nothing is left to do"


def test_one_and_two_processes_agree(tmp_path):
    """Under torchrun two processes share each batch; the accuracies are those of one."""
    plain = config(model={"adapter_dropout": 0.0}, rule={"name": "rise"})
    expected = perform(read_config(plain), tmp_path / "one", silent)
    folder = tmp_path / "two"
    folder.mkdir()
    script = tmp_path / "run.py"
    script.write_text(RUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script), json.dumps(plain), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((folder / "result.json").read_text())
    assert found["scores"] == expected["scores"]
    for a, b in zip(found["losses"], expected["losses"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    assert len(list(Path(folder / "checkpoints").glob("*.ckpt"))) <= 2


def test_an_interrupted_run_refuses_another_file(tmp_path):
    """Even in the same folder, which the lab never gives to two runs."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        arrays = {
            f"{part}_{what}": values
            for part in ("train", "test")
            for what, values in (
                ("images", rng.integers(0, 255, (24, 8, 8, 3), dtype=np.uint8)),
                ("labels", np.repeat(np.arange(6), 4)),
            )
        }
        np.savez(tmp_path / name / "data.npz", **arrays)

    def settings(place, **loop):
        stream = {"name": "mine", "source": "npz", "data": str(tmp_path / place / "data.npz")}
        limits = {"train_per_class": 0, "test_per_class": 0}
        return read_config(config(stream=stream | limits, loop=loop | {"checkpoint_seconds": 0}))

    with pytest.raises(KilledHere):
        perform(settings("a"), tmp_path / "run", dying_after(20))
    assert list((tmp_path / "run" / "checkpoints").iterdir())
    with pytest.raises(ValueError, match=r"other inputs or settings: stream\.data \(data\.npz"):
        perform(settings("b"), tmp_path / "run", silent)
    with pytest.raises(ValueError, match="with other inputs or settings: the settings"):
        perform(settings("a", batch=5), tmp_path / "run", silent)
    (tmp_path / "a").rename(tmp_path / "moved")
    assert perform(settings("moved"), tmp_path / "run", silent)["metrics"]["avg"] is not None
