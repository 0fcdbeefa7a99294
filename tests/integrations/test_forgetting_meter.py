"""The meter in a plain loop: true scores, forecasts that decide nothing, budgets, records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import risegrad
from integrations.old_and_new import NEW, OLD, batches, knowing, learn_metered, percent, train
from risegrad.integrations.forgetting_meter import Budget, ForgettingMeter
from risegrad.integrations.kept_scores import KeptScore, Scoring
from risegrad.integrations.records import MeteredRun
from riselab.cli import main
from riselab.records.record import read_record


def meter_of(model: nn.Module, **more: Any) -> ForgettingMeter:
    new = {"5-9": batches(NEW, True)}
    return ForgettingMeter(model, {"0-4": batches(OLD, True)}, **{"new": new, **more})


def true_loss(model: nn.Module, classes: range) -> float:
    with torch.no_grad():
        parts = [(model(x).double(), y) for x, y in batches(classes, True)]
        total = sum(cross_entropy(p, y, reduction="sum").item() for p, y in parts)
    return total / sum(len(y) for _, y in parts)


def test_scores_are_the_true_ones() -> None:
    model = knowing()
    meter = meter_of(model, every=20)
    before = true_loss(model, OLD)
    learn_metered(model, meter)
    assert [reading.step for reading in meter.readings] == [0, 20, 40]
    end = meter.last
    assert end.scores["0-4"].loss == pytest.approx(true_loss(model, OLD), rel=1e-5)
    assert end.scores["0-4"].percent == pytest.approx(percent(model, OLD))
    assert end.scores["5-9"].percent == pytest.approx(percent(model, NEW))
    assert end.rises["0-4"] == pytest.approx(true_loss(model, OLD) - before, rel=1e-4)
    assert meter.start.scores["0-4"].percent > 90
    assert end.scores["5-9"].percent > 75 > 50 > end.scores["0-4"].percent
    assert str(end).startswith("step 40: 0-4 ")


def test_measuring_changes_nothing() -> None:
    def trained(metered: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Dropout(0.1), *knowing(), nn.BatchNorm1d(10))
        every = 1 if metered else None
        meter = meter_of(model, every=every)
        assert model.training
        learn_metered(model, meter, steps=8)
        return model.state_dict()

    one, other = trained(True), trained(False)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_budget_stops() -> None:
    model = knowing()
    meter = meter_of(model, every=5, budget=0.5)
    assert learn_metered(model, meter) < 40
    assert meter.last.stop
    assert meter.last.rise > 0.5
    assert all(reading.rise <= 0.5 for reading in meter.readings[:-1])


def test_a_budget_goes_back_to_the_last_good_point() -> None:
    model = knowing()
    meter = meter_of(model, every=5, budget=Budget(0.5, "back"))
    taken = learn_metered(model, meter)
    assert taken < 40
    assert meter.last.stop
    assert 0 < meter.last.rise <= 0.5
    over = meter.readings[-2]
    assert (over.step, over.stop, over.back) == (taken, True, False)
    assert over.rise > 0.5, "what went over the budget stands in the readings"
    assert str(meter.last).endswith("nats (gone back)")
    twin, plain = knowing(), meter_of(knowing(), every=None)
    learn_metered(twin, plain, steps=taken - 5)
    pairs = zip(model.parameters(), twin.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_another_loss_metric_and_form() -> None:
    def near(model: nn.Module, batch: Any) -> Any:
        return (model(batch["x"]).argmax(-1) - batch["y"]).abs() <= 1

    def predict(model: nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        hot = nn.functional.one_hot(batch["y"], 10).float()
        return model(batch["x"]).softmax(-1), hot

    kept = [{"x": x, "y": y} for x, y in batches(OLD, True)]
    scoring = Scoring(near, nn.MSELoss(), predict)
    start = ForgettingMeter(knowing(), {"0-4": kept}, metric=scoring).start
    assert 90 < start.scores["0-4"].percent <= 100
    assert 0 < start.scores["0-4"].loss < 0.05


class Bias:
    """Scores in its own way, and takes no care."""

    examples = 3

    def score(self, model: nn.Module) -> KeptScore:
        model.train()
        assert not torch.is_grad_enabled()
        return KeptScore(None, 100 * float(torch.rand(())) * float(model[-1].bias.numel() == 10))


def test_an_evaluator_beside_batches() -> None:
    """It is measured; the budget in nats holds the batches beside it."""
    model = knowing().eval()
    state = torch.get_rng_state()
    kept = {"own": Bias(), "0-4": batches(OLD, True)}
    meter = ForgettingMeter(model, kept, every=5, budget=0.5)
    assert torch.equal(state, torch.get_rng_state())
    assert not any(module.training for module in model.modules())
    assert learn_metered(model, meter) < 40
    alone = ForgettingMeter(knowing(), {"0-4": kept["0-4"]}, every=5, budget=0.5)
    learn_metered(alone.model, alone)
    assert meter.last.rise == alone.last.rise > 0.5
    assert meter.last.rises["own"] is None
    assert meter.last.finite
    percent_now = meter.last.scores["own"].percent
    assert meter.last.numbers() == {**alone.last.numbers(), "kept_own_score": percent_now}
    text = str(alone.last).replace(": ", f": own {percent_now:.1f} %, ", 1)
    assert str(meter.last) == text


def test_an_evaluator_alone_has_no_budget() -> None:
    meter = ForgettingMeter(knowing(), {"own": Bias()})
    assert str(meter.last) == f"step 0: own {meter.last.scores['own'].percent:.1f} %"
    with pytest.raises(ValueError, match=r"no kept task has a loss in nats, got step 0: own"):
        _ = meter.last.rise
    with pytest.raises(ValueError, match=r"a budget in nats needs a kept task .*percents .* own"):
        ForgettingMeter(knowing(), {"own": Bias()}, budget=0.1)


def test_records_are_read_by_report_and_frontier(tmp_path: Path, capsys: Any) -> None:
    """Three rates of plain SGD and of RISE, two seeds each: a report at equal learning."""
    for method, shaper in {"FO": None, "RISE": risegrad.Rise(keep=0.5)}.items():
        for rate in (0.01, 0.05, 0.2):
            for seed in (0, 1):
                model = knowing()
                optimizer = torch.optim.SGD(model.parameters(), lr=rate)
                if shaper is not None:
                    seeded = risegrad.Rise(keep=0.5, seed=seed)
                    risegrad.attach(optimizer, seeded, model.named_parameters())
                meter = meter_of(model)
                train(model, optimizer, batches(NEW, False)[seed:], 2)
                meter.step += 1
                meter.finish()
                swept = f"lr={rate}"
                run = MeteredRun(
                    "my digits", f"{method} ({swept})", seed, {"lr": rate, "rule": method},
                    baseline=method == "FO", method=method, swept=swept,
                )  # fmt: skip
                meter.write_record(tmp_path / f"{method}-{rate}-{seed}.json", run)
    record = read_record(tmp_path / "FO-0.05-0.json")
    assert [task.name for task in record.result.tasks] == ["0-4", "5-9"]
    assert record.result.metrics["plasticity"] == record.result.scores["accuracy"].at(1, 1)
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    assert "equal learning" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "my digits" in capsys.readouterr().out + (tmp_path / "page.html").read_text()


class Unsized:
    def score(self, model: nn.Module) -> KeptScore:
        raise AssertionError


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"keep": {}}, TypeError, r"keep must be tasks by name, .*got \{\}"),
        ({"keep": [1]}, TypeError, r"keep must be tasks by name"),
        (
            {"keep": {"a": "text"}},
            TypeError,
            r"'a' must be a list or a loader of batches, or an Evaluator, got str",
        ),
        ({"keep": {"a": []}}, ValueError, r"'a' must hold at least one batch, got none"),
        ({"keep": {"a": nn.Module}}, TypeError, r"batches, or an Evaluator, got type"),
        ({"keep": {"a": Unsized()}}, TypeError, r"'a' has .* score, so .* examples.* got Unsized"),
        ({"every": 0}, ValueError, r"every must be an integer >= 1, got 0"),
        ({"budget": 0.0}, ValueError, r"budget must be .*got 0"),
        ({"budget": True}, TypeError, r"budget must be a finite number > 0, got True"),
        (
            {"budget": "x"},
            TypeError,
            r"budget must be nats \(a number\) or a Budget, got 'x' \(str",
        ),
        ({"budget": Budget}, TypeError, r"budget must be nats .* or a Budget, .*a class, not"),
        ({"model": "x"}, TypeError, r"model must be a torch module, got 'x' \(str\)"),
        ({"metric": "f1"}, ValueError, r"metric must be 'accuracy' or a function, got 'f1'"),
        ({"new": {"0-4": []}}, ValueError, r"kept or new, not both: 0-4"),
        ({"metric": lambda model, batch: [2.0]}, ValueError, r"one number in \[0, 1\] for each"),
    ],
)
def test_bad_input(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ForgettingMeter(**{"model": knowing(), "keep": {"0-4": batches(OLD, True)}, **given})


def test_a_budget_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"then must be stop or back|then must be one of"):
        Budget(0.1, "panic")  # type: ignore[arg-type]
