"""The loop against loops written out by hand, and what it leaves behind."""

import math
import os
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy

from continual.tiny import config, host_of
from risegrad.common.seeds import seed_for
from risegrad.core.attachment import attach
from risegrad.core.shapers import Rise
from risegrad.zeroth_order import SpsaSettings, spsa
from riselab.continual.batches import Loader, epoch_batches
from riselab.continual.checkpoints import read_checked
from riselab.continual.devices import Devices
from riselab.continual.host import TrainingBudget, silent
from riselab.continual.learning import Learner
from riselab.continual.runs import make_host, perform, read_config
from riselab.continual.training import Loop, SessionTraining


def training_of(host, task=0):
    session = host.begin(task)
    kit = host.kit
    return SessionTraining(session, kit.loop, kit.devices, (), kit.seed)


def copies(parameters):
    return [p.detach().clone() for p in parameters]


def logits(host, batch):
    return host.head(host.kit.extract(batch.inputs, host.adapters))


def by_hand(host, *, adapter_rule):
    """One session of two epochs: SGD with momentum and cosine decay on adapters and head."""
    kit = host.kit
    session = host.begin(0)
    budget = kit.adapter
    optimizers = {
        name: torch.optim.SGD(
            module.parameters(), budget.lr, momentum=0.9, weight_decay=budget.weight_decay
        )
        for name, module in (("adapter", host.adapters), ("head", host.head))
    }
    if adapter_rule == "rise":
        shaper = Rise(q=2, seed=seed_for(0, "shape", 0, "adapter"))
        attach(optimizers["adapter"], shaper, params=host.adapters.named_parameters())
    step = 0
    for epoch in range(2):
        torch.manual_seed(seed_for(0, "epoch", 0, epoch, 0))
        host.adapters.train()
        for optimizer in optimizers.values():
            optimizer.param_groups[0]["lr"] = budget.lr * (1.0, 0.5)[epoch]
        for refs in epoch_batches(len(kit.stream[0].train), 6, seed=0, task=0, epoch=epoch):
            batch = session.items.fetch(refs, epoch)
            host.adapters.requires_grad_(adapter_rule != "zo")
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            cross_entropy(logits(host, batch), batch.labels).backward()
            if adapter_rule == "zo":
                host.adapters.requires_grad_(True)
                named = [(f"adapter.{n}", p) for n, p in host.adapters.named_parameters()]
                spsa(
                    lambda batch=batch: cross_entropy(logits(host, batch), batch.labels),
                    named,
                    SpsaSettings(q=2, epsilon=1e-3),
                    seed=seed_for(0, "spsa", 0),
                    step=step,
                    model=host.adapters,
                )
                torch.nn.utils.clip_grad_norm_(host.adapters.parameters(), 1.0)
            for optimizer in optimizers.values():
                optimizer.step()
            step += 1
    return copies([*host.adapters.parameters(), *host.head.parameters()])


@pytest.mark.parametrize("rule", ["fo", "rise", "zo"])
def test_a_session_equals_a_loop_by_hand(rule):
    settings = {
        "host": {"name": "zo-fc"},
        "rule": {"name": rule, "q": 2},
        "adapter": {"clip": 1.0 if rule == "zo" else 0.0},
    }
    expected = by_hand(host_of(**settings), adapter_rule=rule)
    host = host_of(**settings)
    training = training_of(host)
    for epoch in range(2):
        training.epoch(epoch, silent)
    found = [*host.adapters.parameters(), *host.head.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert host.adapters[0].up.weight.abs().max() > 0, "something must have been learned"


def slopes_of(monkeypatch, precision, **settings):
    """The slopes of every estimate of one session, two epochs with dropout in the adapters."""
    found = []

    def listening(*args, **kwargs):
        found.append(spsa(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr("riselab.continual.training.spsa", listening)
    plain = config(rule={"name": "zo", "q": 2}, loop={"precision": precision}, **settings)
    host = make_host(read_config(plain), Devices(precision, "cpu"))
    training = training_of(host)
    for epoch in range(2):
        training.epoch(epoch, silent)
    return [estimate.projected for estimate in found]


def test_zeroth_order_evaluates_in_float32_whatever_the_precision(monkeypatch):
    slopes = {name: slopes_of(monkeypatch, name) for name in ("float32", "bfloat16")}
    assert len(slopes["float32"]) == 6
    assert slopes["bfloat16"] == slopes["float32"]


def test_the_exact_head_beside_it_still_computes_in_bfloat16(monkeypatch):
    host = {"name": "zo-fc"}
    slopes = {name: slopes_of(monkeypatch, name, host=host) for name in ("float32", "bfloat16")}
    assert slopes["bfloat16"][0] == slopes["float32"][0]
    assert slopes["bfloat16"][1] != slopes["float32"][1], "the head's first step was in bfloat16"
    for one, other in zip(*slopes.values(), strict=True):
        assert one == pytest.approx(other, rel=0.1, abs=0.05)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_zeroth_order_refuses_a_model_in_half_precision(kind):
    host = host_of(rule={"name": "zo"})
    host.adapters.to(kind)
    message = rf"zo needs a model in float32, .*adapter\.0\..* is {kind}; call \.float\(\)"
    with pytest.raises(ValueError, match=message):
        training_of(host)
    exact = host_of(rule={"name": "fo"})
    exact.adapters.to(kind)
    training_of(exact)


def test_a_group_stops_when_its_budget_is_spent():
    host = host_of(host={"name": "zo-fc-rise"}, head={"epochs": 1}, adapter={"epochs": 2})
    training = training_of(host)
    training.epoch(0, silent)
    head, adapters = copies(host.head.parameters()), copies(host.adapters.parameters())
    training.epoch(1, silent)
    assert all(torch.equal(a, b) for a, b in zip(head, host.head.parameters(), strict=True))
    changed = zip(adapters, host.adapters.parameters(), strict=True)
    assert not all(torch.equal(a, b) for a, b in changed)


def test_every_session_draws_its_own_shapes():
    pairs = [(task, group) for task in range(3) for group in ("head", "adapter")]
    assert len({seed_for(0, "shape", *pair) for pair in pairs}) == 6


def test_the_global_random_state_is_left_alone(tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    perform(read_config(config(rule={"name": "rise"})), tmp_path, silent)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loss_that_is_no_number_stops_the_run(tmp_path):
    settings = read_config(config(adapter={"lr": 1e30}, head={"lr": 1e30}))
    with pytest.raises(FloatingPointError, match=r"task \d became nan in epoch \d: lower lr"):
        perform(settings, tmp_path, silent)


def test_progress_is_reported():
    host = host_of()
    news = []
    Learner(host, 2, loop=host.kit.loop, devices=host.kit.devices, report=news.append).run()
    assert [n["task"] for n in news if "task" in n] == [1, 2]
    assert [n["epoch"] for n in news if "epoch" in n] == [1, 2, 1, 2]
    assert sum("batch" in n for n in news) == 2 * 2 * 3
    assert all(0 <= n["union"] <= 100 for n in news if "union" in n)


@pytest.mark.parametrize("name", ["learnable-classifier", "simple-cil", "aper", "ease"])
def test_cached_features_change_nothing_but_the_work(tmp_path, name):
    """Without augmentation, that is: cached features are those of the test view."""
    results = {}
    for cache in ("auto", "never"):
        settings = config(host={"name": name}, stream={"augment": "none"}, loop={"cache": cache})
        found = perform(read_config(settings), tmp_path / cache, silent)
        results[cache] = (found["scores"], [round(x["loss"], 4) for x in found["losses"]])
    assert results["auto"] == results["never"]


def test_cached_hosts_pass_the_data_once():
    host = host_of(host={"name": "learnable-classifier"}, head={"epochs": 5})
    seen = []
    extract = host.kit.extract

    def counted(images, adapters):
        seen.append(len(images))
        return extract(images, adapters)

    host.kit.extract = counted
    Learner(host, 3, loop=host.kit.loop, devices=host.kit.devices).run()
    sizes = [len(split) for task in host.kit.stream for split in (task.train, task.test)]
    assert sum(seen) == sum(sizes)


def test_worker_processes_change_nothing(tmp_path):
    results = [
        perform(read_config(config(loop={"workers": n})), tmp_path / str(n), silent) for n in (0, 2)
    ]
    assert results[0]["losses"] == results[1]["losses"]


def test_scoring_on_validation(tmp_path):
    settings = config(loop={"score_on": "validation"}, stream={"validation": 0.25})
    found = perform(read_config(settings), tmp_path, silent)
    assert found["tasks"][0]["validation"] == 4
    with pytest.raises(ValueError, match="session 0 has no validation examples to score on"):
        perform(read_config(config(loop={"score_on": "validation"})), tmp_path / "none", silent)


def test_budgets():
    assert [TrainingBudget(epochs=2, lr=1.0).lr_at(e) for e in range(2)] == [1.0, 0.5]
    assert TrainingBudget(schedule="constant", lr=0.5).lr_at(7) == 0.5
    with pytest.raises(ValueError, match="optimizer must be one of sgd, adam, adamw; got 'sdg'"):
        TrainingBudget(optimizer="sdg")


def test_loop_settings_are_checked():
    with pytest.raises(ValueError, match="batch must be an integer >= 1, got 0"):
        Loop(batch=0)
    with pytest.raises(
        ValueError, match=r"precision must be one of float32, tf32, bfloat16; got 'fp8'"
    ):
        Loop(precision="fp8")


def test_the_result_says_what_is_odd_about_the_data(tmp_path):
    stream = {"classes": 2, "train_per_class": 1000}
    found = perform(read_config(config(stream=stream)), tmp_path, silent)
    assert found["notes"][-1].startswith("train_per_class=1000 is more than there is: ")


class OfOneProcess(torch.Tensor):
    """As a tensor of a GPU: a forked process that touches it fails."""

    home = os.getpid()

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if os.getpid() != cls.home:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")
        return super().__torch_function__(function, types, args, kwargs)


def test_cached_features_are_never_handed_to_workers():
    host = host_of(host={"name": "learnable-classifier"}, loop={"workers": 2})
    kept = host.kit.features_of

    def on_a_device(*args, **kwargs):
        return tuple(tensor.as_subclass(OfOneProcess) for tensor in kept(*args, **kwargs))

    host.kit.features_of = on_a_device
    training = training_of(host)
    assert math.isfinite(training.epoch(0, silent))
    assert [len(batch) for batch in training.examples([(0, n) for n in range(6)], 3)] == [3, 3]


def test_bfloat16_computes_and_parameters_stay_float32(tmp_path):
    settings = config(host={"name": "zo-fc-rise"}, loop={"precision": "bfloat16"})
    found = perform(read_config(settings), tmp_path / "half", silent)
    whole = perform(read_config(config(host={"name": "zo-fc-rise"})), tmp_path / "whole", silent)
    pairs = list(zip(found["losses"], whole["losses"], strict=True))
    assert any(a["loss"] != b["loss"] for a, b in pairs), "it must compute in another precision"
    assert all(a["loss"] == pytest.approx(b["loss"], rel=0.05) for a, b in pairs)
    newest = max((tmp_path / "half" / "checkpoints").iterdir())
    saved = read_checked(newest)["state"]["between"]["host"]
    assert {value.dtype for value in saved["adapters"].values()} == {torch.float32}


@pytest.mark.slow
def test_a_compiled_backbone_learns_the_same(tmp_path):
    found = perform(read_config(config(loop={"compile": True})), tmp_path / "compiled", silent)
    whole = perform(read_config(config()), tmp_path / "eager", silent)
    for a, b in zip(found["losses"], whole["losses"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-3)


class WhoFetches:
    """Each batch says which process fetched it, and what it was asked for."""

    at_hand = False

    def fetch(self, refs, epoch):
        return SimpleNamespace(pid=os.getpid(), asked=(refs, epoch))


def test_workers_start_once_and_are_not_disturbed_by_who_asks_meanwhile():
    loader, refs = Loader(WhoFetches(), workers=2), [[(0, i)] for i in range(7)]

    def asked(batches):
        return [batch.asked for batch in batches]

    first, second = (list(loader.batches(refs, epoch)) for epoch in (0, 1))
    assert {batch.pid for batch in first} == {batch.pid for batch in second}
    assert os.getpid() not in {batch.pid for batch in first}
    assert asked(first + second) == [(r, e) for e in (0, 1) for r in refs]
    outer = loader.batches(refs, 2)
    begun = [next(outer)]
    assert asked(loader.batches(refs[:3], 9)) == [(r, 9) for r in refs[:3]]
    assert asked([*begun, *outer]) == [(r, 2) for r in refs]
    next(loader.batches(refs, 3))  # left in the middle
    assert asked(loader.batches(refs, 4)) == [(r, 4) for r in refs]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rule": {"name": "rise", "q": 2}, "additions": [{"name": "replay", "size": 6}]},
        {"additions": [{"name": "lwf"}, {"name": "ewc", "samples": 4}, {"name": "distill"}]},
        {"host": {"name": "zo-fc"}, "rule": {"name": "zo", "q": 2}},
    ],
    ids=["fo", "rise and replay", "penalties and a pull", "zo"],
)
def test_a_batch_in_parts_gives_the_same_numbers(changes, tmp_path):
    """Also where batches have no whole number of examples per part."""
    found = [
        perform(read_config(config(loop={"accumulate": n}, **changes)), tmp_path / f"{n}", silent)
        for n in (1, 4)
    ]
    one, other = ([row["loss"] for row in result["losses"]] for result in found)
    # A difference of two losses magnifies their rounding.
    assert other == pytest.approx(one, rel=2e-2 if "host" in changes else 1e-4)


def test_parts_are_not_more_than_examples():
    with pytest.raises(ValueError, match="accumulate must be at most batch, 6: got 7"):
        read_config(config(loop={"accumulate": 7}))


def test_no_part_is_larger_than_it_must_be():
    host = host_of(loop={"accumulate": 4})
    seen = []
    session = host.begin(0)
    whole = session.loss

    def loss(batch, every_class):
        seen.append(len(batch))
        return whole(batch, every_class)

    object.__setattr__(session, "loss", loss)
    kit = host.kit
    SessionTraining(session, kit.loop, kit.devices, (), kit.seed).epoch(0, silent)
    assert seen == [1, 2, 1, 2, 1, 2, 1, 2, 1, 1, 1, 1]
