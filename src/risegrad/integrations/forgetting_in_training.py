"""What both trainers' ``ForgettingCallback`` do: meter, record, sign the folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from risegrad.common.checks import check_positive_int
from risegrad.core.attachment import shaping
from risegrad.curvature.memory.memory import Memory, check_memory
from risegrad.integrations.forgetting_meter import (
    EVERY,
    FORETELL,
    Budget,
    ForgettingMeter,
    MeterReading,
    budget_of,
)
from risegrad.integrations.kept_scores import Metric, Scoring
from risegrad.integrations.model_folder import sign
from risegrad.lab.records.own_runs import MeteredRun

RECORD = "record.json"


class ForgettingInTraining:
    """``keep``: tasks by name, each a dataset, or a list or loader of batches, that must be kept;
    ``metric``: "accuracy", a function of (model, batch) with a score in [0, 1] for each example, or
    a ``Scoring``; ``new``: one task by name, of what is learned, to see both sides; ``every``:
    steps between two measurements, or "epoch"; ``budget``: nats on what is kept, or a ``Budget``;
    ``memory``: for a forecast between measurements, every ``foretell`` steps; ``run``: where the
    record stands in a table.

    ``meter`` is the ``ForgettingMeter`` once training has begun. Measurements go to the trainer's
    loggers, and a record to ``record.json`` in its output folder, which ``rise report`` reads.
    """

    def __init__(
        self,
        keep: Mapping[str, Any],
        metric: Metric | Scoring = "accuracy",
        *,
        new: Mapping[str, Any] | None = None,
        every: int | Literal["epoch"] = EVERY,
        budget: float | Budget | None = None,
        memory: Memory | None = None,
        foretell: int = FORETELL,
        run: MeteredRun | None = None,
    ) -> None:
        if isinstance(every, str) and every != "epoch":
            raise ValueError(f"every must be a number of steps or 'epoch', got {every!r}")
        self.keep, self.new, self.every, self.run = keep, new, every, run
        # Checked here, too: training may begin hours later.
        self._options: dict[str, Any] = {
            "metric": metric if isinstance(metric, Scoring) else Scoring(metric),
            "every": None if every == "epoch" else check_positive_int("every", every),
            "budget": budget_of(budget),
            "memory": check_memory(memory),
            "foretell": check_positive_int("foretell", foretell),
        }
        self.meter: ForgettingMeter | None = None

    def save(self, folder: str | Path) -> None:
        """Put rule, settings and measured forgetting into a folder that a model was saved in."""
        meter = self._running()
        sign(Path(folder), [attached.settings() for attached in shaping(meter.model)], meter)

    def _running(self) -> ForgettingMeter:
        if self.meter is None:
            raise ValueError("nothing was measured yet: training has not begun")
        return self.meter

    def _begin(self, model: nn.Module, keep: Any, new: Any) -> MeterReading:
        self.meter = ForgettingMeter(model, keep, new, **self._options)
        return self.meter.start

    def _write_record(self, path: Path, seed: int, config: Mapping[str, Any]) -> None:
        meter = self._running()
        rules = [attached.settings() for attached in shaping(meter.model)]
        run = self.run or MeteredRun(label=" + ".join(map(_label, rules)) or "plain training")
        settings = {"rules": [_without_layout(rule) for rule in rules], **config, **run.config}
        meter.write_record(path, replace(run, seed=run.seed or seed, config=settings))


def _label(rule: Mapping[str, Any]) -> str:
    """Such as ``Rise keep=0.5`` or ``Informed damping=0.3``."""
    q = rule.get("q")
    shown = q if isinstance(q, Mapping) else {"q": q}
    if "damping" in rule:
        shown = {"damping": rule["damping"], **({} if q is None else shown)}
    return " ".join([str(rule["rule"]), *(f"{name}={value}" for name, value in shown.items())])


def _without_layout(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in rule.items() if name != "layout"}
