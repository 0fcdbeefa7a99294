"""The Trainer with a meter: scores, trackers, records, budgets, resuming, signed adapters."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import risegrad
from integrations.test_transformers import STEPS, OldExamples, tiny, tokens, trainer
from riselab.records.record import read_record

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
from risegrad.core.attachment import shaping  # noqa: E402
from risegrad.integrations.forgetting_meter import Budget  # noqa: E402
from risegrad.integrations.keep import KeepCallback  # noqa: E402
from risegrad.integrations.records import MeteredRun  # noqa: E402
from risegrad.integrations.transformers import (  # noqa: E402
    ForgettingCallback,
    RiseCallback,
)


def adapted() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return peft.get_peft_model(
            tiny(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
        )


def kept() -> dict[str, Any]:
    return {"old": OldExamples()}


def new() -> dict[str, Any]:
    return {"texts": [{"input_ids": part, "labels": part} for part in tokens().split(4)]}


def loss_on_old(model: Any) -> float:
    """The model's own loss, text by text: all have the same number of tokens."""
    with torch.no_grad():
        rows = tokens().flip(1)
        losses = [model.eval()(input_ids=row[None], labels=row[None]).loss for row in rows]
    return float(torch.stack(losses).double().mean())


def test_scores_go_to_the_log_and_to_a_record(tmp_path: Path) -> None:
    model = tiny()
    callback = ForgettingCallback(kept(), new=new(), every=2)
    training = trainer(model, tmp_path, callbacks=[callback], learning_rate=0.01)
    before = loss_on_old(tiny())
    training.train()
    meter = callback.meter
    assert meter is not None
    assert [reading.step for reading in meter.readings] == [0, 2, STEPS]
    assert meter.start.scores["old"].loss == pytest.approx(before, rel=1e-5)
    assert meter.last.scores["old"].loss == pytest.approx(loss_on_old(model), rel=1e-5)
    logged = [entry for entry in training.state.log_history if "eval_kept_old_loss" in entry]
    assert [entry["step"] for entry in logged] == [0, 2, STEPS]
    assert logged[-1]["eval_kept_old_rise"] == meter.last.rises["old"]
    record = read_record(tmp_path / "record.json")
    assert record.row.label == "plain training"
    assert [task.name for task in record.result.tasks] == ["old", "texts"]
    assert record.config["steps"] == STEPS


def test_measuring_changes_nothing(tmp_path: Path) -> None:
    one, other = tiny(), tiny()
    callbacks = [ForgettingCallback(kept(), every=1)]
    trainer(one, tmp_path / "one", callbacks=callbacks).train()
    trainer(other, tmp_path / "other").train()
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(p, q) for p, q in pairs)


def test_every_epoch(tmp_path: Path) -> None:
    callback = ForgettingCallback(kept(), every="epoch")
    trainer(tiny(), tmp_path, callbacks=[callback]).train()
    assert callback.meter is not None
    assert [reading.step for reading in callback.meter.readings] == [0, STEPS]


def test_a_budget_stops_or_goes_back(tmp_path: Path) -> None:
    model = tiny()
    callback = ForgettingCallback(kept(), every=1, budget=Budget(1e-9, "back"))
    training = trainer(model, tmp_path, callbacks=[callback], learning_rate=1.0)
    training.train()
    assert callback.meter is not None
    assert training.state.global_step < STEPS
    assert callback.meter.last.stop
    good = next(r for r in reversed(callback.meter.readings) if not r.stop)
    assert loss_on_old(model) == pytest.approx(good.scores["old"].loss, rel=1e-5)


@pytest.mark.parametrize("then", ["stop", "back"])
def test_a_budget_ends_the_run_and_leaves_a_checkpoint(tmp_path: Path, then: Any) -> None:
    """One like any other: a model that can be loaded, and training that can go on from it."""
    budget = Budget(0.1, then)
    callback = ForgettingCallback(kept(), every=1, budget=budget)
    changes: dict[str, Any] = {"learning_rate": 0.2, "save_strategy": "steps", "save_steps": 99}
    training = trainer(tiny(), tmp_path, callbacks=[callback], **changes)
    training.train()
    meter = callback.meter
    assert meter is not None
    stopped = training.state.global_step
    assert stopped == 2
    over = meter.last if then == "stop" else meter.readings[-2]
    assert over.rise > budget.nats
    assert all(reading.rise <= budget.nats for reading in meter.readings[:stopped])
    folder = tmp_path / f"checkpoint-{stopped}"
    left = type(tiny()).from_pretrained(folder)
    assert loss_on_old(left) == pytest.approx(meter.last.scores["old"].loss, rel=1e-5)
    signed = json.loads((folder / "risegrad.json").read_text())
    assert signed["forgetting"][1]["rises"] == dict(meter.last.rises)
    more = trainer(tiny(), tmp_path, callbacks=[ForgettingCallback(kept())], **changes)
    more.train(resume_from_checkpoint=str(folder))
    assert more.state.global_step == STEPS, "without the budget it goes on to the end"


@pytest.mark.parametrize("budget", [None, 0.05, Budget(0.05, "back")])
def test_a_run_that_diverges(tmp_path: Path, budget: Any) -> None:
    """Stopped where there is a budget; in any case it ends, and its files are whole."""
    model = tiny()
    callback = ForgettingCallback(kept(), every=2, budget=budget)
    training = trainer(
        model, tmp_path, callbacks=[callback], learning_rate=1e30, optim="sgd", max_grad_norm=0.0
    )
    training.train()
    meter = callback.meter
    assert meter is not None
    assert training.state.global_step == (STEPS if budget is None else 2)
    end = json.loads((tmp_path / "risegrad.json").read_text())["forgetting"][1]
    read_record(tmp_path / "record.json")
    if isinstance(budget, Budget):
        assert end["rises"] == {"old": 0.0}
        assert all(bool(tensor.isfinite().all()) for tensor in model.parameters())
    else:
        assert end["rises"] == {"old": None}


def test_a_resumed_run_counts_from_its_first_scores(tmp_path: Path) -> None:
    def train(resume: str | None = None, **changes: Any) -> Any:
        callback = ForgettingCallback(kept(), every=2)
        training = trainer(tiny(), tmp_path, callbacks=[callback], **changes)
        training.train(resume_from_checkpoint=resume)
        return callback.meter

    whole = train(save_strategy="steps", save_steps=2)
    resumed = train(str(tmp_path / "checkpoint-2"))
    assert resumed.start.scores == whole.start.scores
    assert resumed.last.rises["old"] == pytest.approx(whole.last.rises["old"], rel=1e-6)


@pytest.mark.parametrize("rule", ["rise", "informed"])
def test_an_adapters_folder_says_how_it_was_made(tmp_path: Path, rule: str) -> None:
    model = adapted()
    shaping: Any = (
        RiseCallback(risegrad.Rise(keep=0.5))
        if rule == "rise"
        else KeepCallback(OldExamples(), examples=16)
    )
    forgetting = ForgettingCallback(kept(), every=2)
    training = trainer(
        model, tmp_path, callbacks=[shaping, forgetting], save_strategy="steps", save_steps=STEPS
    )
    training.train()
    training.save_model()
    model.save_pretrained(tmp_path / "by hand")
    forgetting.save(tmp_path / "by hand")
    for name in (f"checkpoint-{STEPS}", ".", "by hand"):
        folder = tmp_path / name
        signed = json.loads((folder / "risegrad.json").read_text())
        (found,) = signed["rules"]
        assert found["rule"] == ("Rise" if rule == "rise" else "Informed")
        assert signed["forgetting"][1]["step"] == STEPS
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert card.count("## Training with risegrad") == 1
        assert "| old (kept) |" in card
        peft.PeftModel.from_pretrained(tiny(), folder)  # an adapter like any other
    record = read_record(tmp_path / "record.json")
    wanted = "Rise keep=0.5" if rule == "rise" else "Informed damping=0.1"
    assert record.row.label == wanted


def test_rise_alone_signs_its_checkpoints(tmp_path: Path) -> None:
    callback = RiseCallback(risegrad.Rise(q=4))
    trainer(adapted(), tmp_path, callbacks=[callback], save_strategy="steps", save_steps=2).train()
    signed = json.loads((tmp_path / "checkpoint-2" / "risegrad.json").read_text())
    assert signed["rules"][0]["q"] == 4
    assert "forgetting" not in signed


def test_a_hub_dataset_loses_foreign_columns(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = tokens().flip(1).tolist()
    held = datasets.Dataset.from_dict(
        {"input_ids": rows, "labels": rows, "text": ["a"] * len(rows), "idx": [1] * len(rows)}
    )
    callback = ForgettingCallback({"old": held.with_format("torch")}, every=2)
    trainer(tiny(), tmp_path, callbacks=[callback]).train()
    assert callback.meter is not None
    assert callback.meter.start.scores["old"].loss == pytest.approx(loss_on_old(tiny()), rel=1e-5)


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="every must be a number of steps or 'epoch', got 'week'"):
        ForgettingCallback(kept(), every="week")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"budget must be nats .* or a Budget, got 'x' \(str\)"):
        ForgettingCallback(kept(), budget="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing was measured yet"):
        ForgettingCallback(kept()).save("anywhere")


class Breaking(transformers.TrainerCallback):
    def on_step_end(self, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["ends", "breaks"])
def test_a_plain_run_after_an_informed_one_is_a_plain_run(tmp_path: Path, how: str) -> None:
    """The first trainer and its callback are still alive, as in a notebook."""
    model, informed = tiny(), KeepCallback(OldExamples(), examples=16)
    breaking = [Breaking()] if how == "breaks" else []
    first = trainer(model, tmp_path / "first", callbacks=[informed, *breaking])
    with pytest.raises(KeyboardInterrupt) if breaking else nullcontext():
        first.train()
    assert bool(shaping(model)) == bool(breaking), "nobody told the callback of an exception"
    forgetting = ForgettingCallback(kept())
    second = trainer(model, tmp_path / "second", callbacks=[forgetting])
    second.train()
    assert first.optimizer is not second.optimizer
    assert read_record(tmp_path / "second" / "record.json").row.label == "plain training"
    forgetting.save(tmp_path / "second")
    assert json.loads((tmp_path / "second" / "risegrad.json").read_text())["rules"] == []
    trainer(tiny(), tmp_path / "third", callbacks=[informed]).train()
    assert shaping(model) == [], "the callback is on another optimizer now"


@pytest.mark.parametrize("first", ["shaping", "measuring"])
def test_the_order_of_callbacks_does_not_matter(tmp_path: Path, first: str) -> None:
    callbacks = [RiseCallback(risegrad.Rise(q=4)), ForgettingCallback(kept())]
    ordered = callbacks if first == "shaping" else callbacks[::-1]
    trainer(tiny(), tmp_path, callbacks=ordered).train()
    assert read_record(tmp_path / "record.json").row.label == "Rise q=4"


def old_loss_in(folder: Path) -> float:
    return loss_on_old(type(tiny()).from_pretrained(folder))


def signed_loss(folder: Path) -> float:
    ends = json.loads((folder / "risegrad.json").read_text())["forgetting"]
    return ends[1]["scores"]["old"]["loss"]


def test_what_is_written_belongs_to_the_weights_beside_it(tmp_path: Path) -> None:
    """Of every checkpoint, and of the best one where that is loaded in the end."""
    callback = ForgettingCallback(kept(), every=99)
    best = {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1}
    training = trainer(
        tiny(), tmp_path, callbacks=[callback], learning_rate=0.05, save_steps=1,
        save_strategy="steps", eval_dataset=OldExamples(), **best,  # worse with every step
    )  # fmt: skip
    training.train()
    for step in range(1, STEPS + 1):
        folder = tmp_path / f"checkpoint-{step}"
        assert signed_loss(folder) == pytest.approx(old_loss_in(folder), rel=1e-5)
    best_step = training.state.best_global_step
    assert best_step < STEPS
    training.save_model()
    assert signed_loss(tmp_path) == pytest.approx(old_loss_in(tmp_path), rel=1e-5)
    assert signed_loss(tmp_path) < signed_loss(tmp_path / f"checkpoint-{STEPS}") - 0.01
    assert callback.meter is not None
    assert (callback.meter.last.step, callback.meter.last.back) == (best_step, True)
    record = read_record(tmp_path / "record.json").result.scores["accuracy"]
    assert record.at(0, 0) == callback.meter.last.scores["old"].percent


@pytest.mark.parametrize("where", ["another folder", "the folder of another run"])
def test_a_resumed_run_counts_from_the_start_of_its_own_checkpoint(
    tmp_path: Path, where: str
) -> None:
    def train(folder: Path, resume: Path | None = None, **changes: Any) -> Any:
        callback = ForgettingCallback(kept(), every=2)
        training = trainer(changes.pop("model", tiny()), folder, callbacks=[callback], **changes)
        training.train(resume_from_checkpoint=None if resume is None else str(resume))
        return callback.meter

    saves = {"save_strategy": "steps", "save_steps": 2, "learning_rate": 0.05}
    whole = train(tmp_path / "one", **saves)
    checkpoint = tmp_path / "one" / "checkpoint-2"
    if where == "another folder":
        resumed = train(tmp_path / "two", checkpoint, learning_rate=0.05)
    else:
        train(tmp_path / "one", learning_rate=0.2, model=train(tmp_path / "other").model)
        resumed = train(tmp_path / "one", checkpoint, learning_rate=0.05)
    assert resumed.start.scores == whole.start.scores
    assert resumed.last.rises["old"] == pytest.approx(whole.last.rises["old"], rel=1e-6)


def test_a_run_resumed_from_one_without_a_meter_counts_from_there(tmp_path: Path) -> None:
    trainer(tiny(), tmp_path, save_strategy="steps", save_steps=2).train()
    callback = ForgettingCallback(kept(), every=99)
    training = trainer(tiny(), tmp_path, callbacks=[callback])
    training.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert callback.meter is not None
    wanted = pytest.approx(old_loss_in(tmp_path / "checkpoint-2"), rel=1e-5)
    assert callback.meter.start.scores["old"].loss == wanted
    assert callback.meter.start.step == 2


def test_two_callbacks_in_one_trainer(tmp_path: Path) -> None:
    one = ForgettingCallback(kept(), run=MeteredRun(label="mine", seed=0))
    two = ForgettingCallback({"other": OldExamples()}, new=new())
    trainer(tiny(), tmp_path, callbacks=[one, two], seed=42).train()
    records = [read_record(tmp_path / name) for name in ("record.json", "record-2.json")]
    assert [[t.name for t in r.result.tasks] for r in records] == [["old"], ["other", "texts"]]
    assert [r.seed for r in records] == [0, 42], "what was given, or the trainer's"
    start, end = json.loads((tmp_path / "risegrad.json").read_text())["forgetting"]
    assert list(end["scores"]) == list(start["scores"]) == ["old", "other", "texts"]
    again = [ForgettingCallback(kept()), ForgettingCallback(kept())]
    with pytest.raises(ValueError, match="two ForgettingCallbacks of one trainer measure old"):
        trainer(tiny(), tmp_path, callbacks=again).train()


@pytest.mark.parametrize("rule", ["Informed", "Rise", "none"])
def test_the_card_says_it_in_words(tmp_path: Path, rule: str) -> None:
    shapers: dict[str, Any] = {
        "Informed": KeepCallback(OldExamples(), examples=16),
        "Rise": RiseCallback(risegrad.Rise(keep=0.5)),
    }
    sentences = {
        "Informed": "Each update was filtered by a memory of the old examples, with damping 0.1",
        "Rise": "Each gradient was shaped by Rise, with keep 0.5.",
        "none": "Plain training: no step was shaped.",
    }
    (tmp_path / "README.md").write_text("# Mine\n\nfirst\n", encoding="utf-8")
    used = [shapers[rule]] if rule in shapers else []
    for _ in range(2):
        trainer(tiny(), tmp_path, callbacks=[*used, ForgettingCallback(kept())]).train()
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card.startswith("# Mine\n\nfirst\n\n<!-- risegrad -->\n## Training with risegrad\n\n")
    assert card.count(sentences[rule]) == 1
    assert not re.search("[0-9a-f]{16}", card)
