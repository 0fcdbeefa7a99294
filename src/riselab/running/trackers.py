"""Trackers: where the curves of a run are also sent, beside its record."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from risegrad.common.checks import check_choice
from risegrad.common.imports import absent, lack, need
from riselab import plugins
from riselab.common.settings import flat

EXTRA = "track"
LONGEST = 500  # characters of a parameter that MLflow takes


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker learns about the run."""

    id: str
    experiment: str
    label: str
    seed: int
    folder: Path
    config: Mapping[str, Any]

    @property
    def title(self) -> str:
        """The name of the run in a tracker's lists."""
        return f"{self.label} seed {self.seed}"


class Tracker(ABC):
    """Takes the numbers of one run; a plugin's tracker is a subclass with a name and a summary."""

    name: ClassVar[str]
    summary: ClassVar[str]
    package: ClassVar[str] = ""
    """The package it needs, if any; looked for before the first run."""

    def __init__(self, run: TrackedRun) -> None:
        self.run = run

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int, task: int) -> None:
        """Numbers of now: ``loss``, or after a task ``union``, the accuracy on all so far.

        ``step`` grows along the run; a resumed run comes by its last steps again.
        """

    def finish(self, metrics: Mapping[str, float]) -> None:  # noqa: B027, need not be there
        """The metrics of the record, once the run is done."""

    def close(self) -> None:  # noqa: B027
        """The run has ended, one way or another."""


class TensorBoard(Tracker):
    """TensorBoard files in the run's folder."""

    name = "tensorboard"
    summary = "TensorBoard files in the runs' folders"
    package = "tensorboard"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        writer = need("torch.utils.tensorboard", EXTRA, "--track tensorboard").SummaryWriter
        self.writer = writer(str(run.folder / "tensorboard"))

    def log(self, values: Mapping[str, float], step: int, task: int) -> None:
        for tag, value in values.items():
            self.writer.add_scalar(tag, value, task if tag == "union" else step)

    def finish(self, metrics: Mapping[str, float]) -> None:
        for tag, value in metrics.items():
            self.writer.add_scalar(f"metrics/{tag}", value, 0)

    def close(self) -> None:
        self.writer.close()


class Wandb(Tracker):
    """Weights & Biases; ``WANDB_MODE=offline`` keeps everything in the run's folder."""

    name = "wandb"
    summary = "Weights & Biases, a project per experiment (WANDB_MODE=offline needs no account)"
    package = "wandb"

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        wandb = need("wandb", EXTRA, "--track wandb")
        self.session = wandb.init(
            project=os.environ.get("WANDB_PROJECT", run.experiment),
            name=run.title,
            id=run.id[:32],
            resume="allow",
            group=run.label,
            config=flat(run.config),
            dir=str(run.folder),
        )

    def log(self, values: Mapping[str, float], step: int, task: int) -> None:
        self.session.log({**values, "task": task}, step=step)

    def finish(self, metrics: Mapping[str, float]) -> None:
        self.session.summary.update(metrics)

    def close(self) -> None:
        self.session.finish()


class Mlflow(Tracker):
    """MLflow; ``MLFLOW_TRACKING_URI`` says where, as everywhere else."""

    name = "mlflow"
    summary = "MLflow, at MLFLOW_TRACKING_URI"
    package = "mlflow"
    NOTE = "mlflow_run.txt"
    """Holds MLflow's own id of the run, so that a resumed one goes on there."""

    def __init__(self, run: TrackedRun) -> None:
        super().__init__(run)
        self.mlflow = need("mlflow", EXTRA, "--track mlflow")
        note = run.folder / self.NOTE
        known = note.read_text(encoding="utf-8") if note.exists() else None
        self.mlflow.set_experiment(run.experiment)
        session = self.mlflow.start_run(run_id=known, run_name=None if known else run.title)
        if known is None:
            note.write_text(session.info.run_id, encoding="utf-8")
            settings = {key: str(value)[:LONGEST] for key, value in flat(run.config).items()}
            self.mlflow.log_params(settings)
            self.mlflow.set_tags({"risegrad.id": run.id, "risegrad.row": run.label})

    def log(self, values: Mapping[str, float], step: int, task: int) -> None:
        self.mlflow.log_metrics(dict(values), step=step)

    def finish(self, metrics: Mapping[str, float]) -> None:
        self.mlflow.log_metrics(dict(metrics))

    def close(self) -> None:
        self.mlflow.end_run()


_ALL: tuple[type[Tracker], ...] = (TensorBoard, Wandb, Mlflow)
plugins.TRACKERS.bring({one.name: one for one in _ALL}, {one.name: one.summary for one in _ALL})
TRACKERS: Mapping[str, type[Tracker]] = plugins.TRACKERS


def check_trackers(names: Iterable[str]) -> None:
    """Every name is that of a tracker, and what it needs is there."""
    for name in names:
        check_choice("--track", name, TRACKERS)
        package = TRACKERS[name].package
        if package and absent(package):
            raise ImportError(lack(package, EXTRA, f"--track {name}"))


class Tracking:
    """All trackers of a run as one."""

    TAGS = ("loss", "union")

    def __init__(self, names: Iterable[str], run: TrackedRun) -> None:
        self.trackers: list[Tracker] = []
        try:
            for name in names:
                self.trackers.append(TRACKERS[name](run))
        except BaseException:
            self.close()
            raise

    def add(self, known: Mapping[str, Any], news: Mapping[str, Any]) -> None:
        """Pass on the news that are numbers of interest; ``known`` is all that is known by now."""
        values = {tag: news[tag] for tag in self.TAGS if isinstance(news.get(tag), int | float)}
        if values:
            for tracker in self.trackers:
                tracker.log(values, step_of(known), int(known.get("task", 0)))

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Pass on the metrics that have a value."""
        numbers = {name: value for name, value in metrics.items() if value is not None}
        for tracker in self.trackers:
            tracker.finish(numbers)

    def close(self) -> None:
        """Close all of them."""
        for tracker in self.trackers:
            tracker.close()


def step_of(known: Mapping[str, Any]) -> int:
    """A count that grows along the run and is the same when a resumed one comes by again."""
    epochs, batches = int(known.get("epochs", 1)), int(known.get("batches", 1))
    epoch = (int(known.get("task", 1)) - 1) * epochs + int(known.get("epoch", 1)) - 1
    return epoch * batches + int(known.get("batch", batches))
