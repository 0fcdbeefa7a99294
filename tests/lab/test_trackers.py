"""Trackers, each in its offline mode: what a run says arrives there."""

import os
from pathlib import Path
from typing import Any

import pytest

from riselab.running import trackers
from riselab.running.trackers import TrackedRun, Tracking, check_trackers

NEWS: list[dict[str, Any]] = [
    {"task": 1, "tasks": 1, "epochs": 1, "batches": 2, "batch": 1, "loss": 1.0},
    {"task": 1, "tasks": 1, "epochs": 1, "batches": 2, "batch": 2, "loss": 0.5},
    {"task": 1, "tasks": 1, "union": 50.0},
]


@pytest.fixture
def run(tmp_path: Path) -> TrackedRun:
    config = {"rule": {"name": "rise", "q": 4}, "seed": 3}
    return TrackedRun("a" * 64, "digits", "RISE", 3, tmp_path, config)


def begin(name: str, run: TrackedRun) -> Tracking:
    """A run that is done, but for the last goodbye."""
    tracking = Tracking([name], run)
    for news in NEWS:
        tracking.add(news, news)
    tracking.finish({"last": 75.0, "forgetting": None})
    return tracking


def test_mlflow_offline(run: TrackedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    begin("mlflow", run).close()
    begin("mlflow", run).close()  # a resumed run goes on in the same place
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("digits")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_name == "RISE seed 3"
    assert found.data.params == {"rule.name": "rise", "rule.q": "4", "seed": "3"}
    assert found.data.metrics == {"loss": 0.5, "union": 50.0, "last": 75.0}
    steps = {(m.step, m.value) for m in client.get_metric_history(found.info.run_id, "loss")}
    assert steps == {(1, 1.0), (2, 0.5)}


def test_wandb_offline(run: TrackedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    for name, value in {"MODE": "offline", "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    tracking = begin("wandb", run)
    session = tracking.trackers[0].session  # type: ignore[attr-defined]
    assert (session.project, session.name, session.offline) == ("digits", "RISE seed 3", True)
    assert session.config["rule.q"] == 4
    assert session.summary["last"] == 75.0
    tracking.close()
    assert list(run.folder.rglob("*.wandb")), "the curves are in the run's folder"


def test_a_package_that_is_not_there_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "absent", lambda package: True)
    with pytest.raises(
        ImportError, match=r'wandb is needed for --track wandb: .*risegrad\[track\]"'
    ):
        check_trackers(["wandb"])
    with pytest.raises(ValueError, match=r"--track must be one of tensorboard, wandb, mlflow; got"):
        check_trackers(["wandbb"])


def test_trackers_are_closed_when_one_cannot_begin(
    run: TrackedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class First(trackers.Tracker):
        def log(self, values: Any, step: int, task: int) -> None: ...

        def close(self) -> None:
            closed.append(os.getpid())

    class Second(First):
        def __init__(self, run: TrackedRun) -> None:
            raise RuntimeError("no account")

    monkeypatch.setattr(trackers, "TRACKERS", {"first": First, "second": Second})
    with pytest.raises(RuntimeError, match="no account"):
        Tracking(["first", "second"], run)
    assert len(closed) == 1
