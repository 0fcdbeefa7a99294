"""Every tracker that ``report_to`` names gets all measurements, in the Trainer's own run."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from integrations.test_forgetting_transformers import kept
from integrations.test_transformers import STEPS, tiny, trainer

pytest.importorskip("accelerate")
from risegrad.integrations.transformers import ForgettingCallback

NAME = "eval/kept_old_loss"


def measured(folder: Path, tracker: str, every: int = 3) -> dict[int, float]:
    """Train with a tracker; what it should have: the last step is none of the regular ones."""
    callback = ForgettingCallback(kept(), every=every)
    trainer(
        tiny(), folder, callbacks=[callback], report_to=[tracker], logging_steps=1, run_name="mine"
    ).train()
    assert callback.meter is not None
    found = {reading.step: reading.scores["old"].loss for reading in callback.meter.readings}
    assert list(found) == [0, every, STEPS]
    return found


def approximately(values: dict[int, float]) -> Any:
    return pytest.approx(values, rel=1e-5)


def test_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tb"))
    wanted = measured(tmp_path, "tensorboard")
    events = reading.EventAccumulator(str(tmp_path / "tb")).Reload()
    found = {event.step: event.value for event in events.Scalars(NAME)}
    assert found == approximately(wanted)


def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="W&B is not installed")
    wandb.teardown()  # it keeps the folder of the first run of a process, which another test had
    monkeypatch.chdir(tmp_path)
    for name, value in {"MODE": "offline", "SILENT": "true", "DIR": str(tmp_path)}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    wanted = measured(tmp_path, "wandb")
    summary = dict(wandb.run.summary)
    wandb.finish()
    assert summary[NAME] == pytest.approx(wanted[STEPS], rel=1e-5)
    assert len(list(tmp_path.rglob("*.wandb"))) == 1, "one run, the Trainer's"


def test_mlflow_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    mlflow.set_experiment("mine")  # it keeps the experiment that another test had chosen
    wanted = measured(tmp_path, "mlflow")
    client = mlflow.MlflowClient()
    places = [each.experiment_id for each in client.search_experiments()]
    (run,) = client.search_runs(places)  # one run, the Trainer's
    history = client.get_metric_history(run.info.run_id, NAME.replace("eval/", "eval_"))
    assert {entry.step: entry.value for entry in history} == approximately(wanted)
    assert run.info.status == "FINISHED"


def test_trackio_in_files(tmp_path: Path) -> None:
    """In a process of its own: Trackio reads its folder when it is first imported."""
    if find_spec("trackio") is None:
        pytest.skip("Trackio is not installed")
    changes = {"TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", TRACKIO, str(tmp_path)]
    result = subprocess.run(command, env=os.environ | changes, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
    assert result.stdout.count("Created new run") == 1, "one run, the Trainer's"


TRACKIO = """
import sys
from pathlib import Path
from integrations.test_forgetting_trackers import NAME, measured
wanted = measured(Path(sys.argv[1]), "trackio")
from trackio.sqlite_storage import SQLiteStorage
logs = SQLiteStorage.get_logs("huggingface", "mine")
found = [(entry["train/global_step"], entry[NAME]) for entry in logs if NAME in entry]
assert [step for step, _ in found] == list(wanted), found
assert all(abs(value - wanted[step]) < 1e-5 for step, value in found), (found, wanted)
"""
