"""Training that diverges: the meter sees it, budgets hold, and files can be written and read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from integrations.old_and_new import OLD, batches, knowing, learn_metered
from risegrad.integrations.forgetting_meter import Budget, ForgettingMeter, MeterReading
from risegrad.integrations.kept_scores import KeptScore
from risegrad.integrations.records import sign

NAN = float("nan")


def meter_of(model: nn.Module, **more: Any) -> ForgettingMeter:
    return ForgettingMeter(model, {"0-4": batches(OLD, True)}, **more)


def diverge(model: nn.Module, meter: ForgettingMeter) -> int:
    """Steps of a rate at which nothing stays finite."""
    return learn_metered(model, meter, rate=1e30, steps=12)


def test_no_number_is_beyond_every_budget() -> None:
    model = knowing()
    meter = meter_of(model, every=5, budget=0.05)
    assert diverge(model, meter) == 5
    assert math.isnan(meter.last.rise)
    assert meter.last.stop
    assert not meter.last.finite


def test_going_back_from_it() -> None:
    model = knowing()
    meter = meter_of(model, every=5, budget=Budget(0.05, "back"))
    assert diverge(model, meter) == 5
    start, over, back = meter.readings
    assert math.isnan(over.rise)
    assert (over.stop, back.stop, back.back) == (True, True, True)
    assert back.scores == start.scores
    pairs = zip(model.parameters(), knowing().parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_point_whose_reading_is_not_finite_is_no_good_one() -> None:
    """The new task's inputs overflow while the kept ones, zeros, do not see it."""
    model = nn.Linear(2, 2, bias=False)
    new = {"new": [(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))]}
    kept = {"kept": [(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))]}
    meter = ForgettingMeter(model, kept, new, every=None, budget=Budget(0.5, "back"))
    before = model.weight.detach().clone()
    model.weight.data[0].fill_(3e38)
    assert not meter.measure().stop
    assert not meter.last.finite
    model.weight.data.fill_(NAN)
    assert meter.measure().back
    assert torch.equal(model.weight, before)


def test_of_several_tasks_the_one_without_a_number_is_the_worst() -> None:
    scores = dict.fromkeys(("a", "b", "c"), KeptScore(NAN, 0.0))
    for names in ("abc", "bca", "cab"):
        found = {"a": 0.1, "b": NAN, "c": 0.3}
        reading = MeterReading(1, scores, {name: found[name] for name in names})
        assert math.isnan(reading.rise)
        assert str(reading).endswith("b +nan nats")


def test_a_budget_needs_a_start() -> None:
    model = knowing()
    model[0].weight.data.fill_(NAN)
    with pytest.raises(FloatingPointError, match=r"a finite loss of every kept task .*loss nan"):
        meter_of(model, budget=0.1)
    assert math.isnan(meter_of(model).start.rise), "without one there is nothing to hold"


def test_a_metric_may_have_no_number_then() -> None:
    def sureness(model: nn.Module, batch: Any) -> Any:
        return model(batch[0]).softmax(-1).amax(-1)

    model = knowing()
    meter = meter_of(model, every=5, metric=sureness, budget=0.05)
    assert diverge(model, meter) == 5
    assert meter.last.scores["0-4"].percent == 0


def test_the_folder_says_null_and_is_read_again(tmp_path: Path) -> None:
    model = knowing()
    meter = meter_of(model, every=5)
    diverge(model, meter)
    (tmp_path / "README.md").write_text("# A card\n", encoding="utf-8")
    sign(tmp_path, [], [meter])
    text = (tmp_path / "risegrad.json").read_text(encoding="utf-8")
    assert "NaN" not in text
    end = json.loads(text)["forgetting"][1]
    assert end["scores"]["0-4"]["loss"] is None
    assert end["rises"] == {"0-4": None}
    assert "| nan |" in (tmp_path / "README.md").read_text(encoding="utf-8")
    sign(tmp_path, [])  # reads what it wrote, and leaves it
    assert json.loads((tmp_path / "risegrad.json").read_text())["forgetting"][1] == end


def test_a_resumed_run_may_be_beyond_its_budget_already() -> None:
    """Counted from its first scores: the point it resumes from is no good one to go back to."""
    first, model = meter_of(knowing()), knowing()
    model[0].weight.data *= 3
    meter = meter_of(model, every=None, budget=Budget(1e-3, "back"))
    meter.step = 7
    meter.count_from(first.start.scores)
    assert [(r.step, r.stop, r.back) for r in meter.readings] == [
        (0, False, False), (7, True, False),
    ]  # fmt: skip
