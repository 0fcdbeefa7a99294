"""``risegrad.keep`` in a run: the rule, the pull alone and DER++, beside the library by hand."""

import re
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import kl_div, log_softmax

from continual.additions.test_runs import Killed, killer, quiet
from risegrad.common.seeds import seed_for
from risegrad.keeping.examples import KeepSettings, kept_of, taken
from risegrad.keeping.keeper import Keeper
from risegrad.keeping.looking import Look
from risegrad.keeping.pull import STRENGTH
from riselab.continual.additions.keeping import DarkReplaySettings, DistillSettings, Keep
from riselab.continual.additions.memory import LooksBack, MemorySettings, grown
from riselab.continual.learning import made_additions
from riselab.continual.rules import Rule, read_rule
from riselab.continual.runs import perform, read_config

KEEP = {"pull": 1, "budget": 0.0, "damping": 0.1}


class Shared:
    """Settings of a run as far as additions look at them."""

    def __init__(self, rule, *additions):
        self.rule, self.additions, self.seed = rule, additions, 0
        self.memory = MemorySettings()


def test_steps_of_the_rule_are_those_of_the_library(make_small):
    """One session by hand: keep, train with one optimizer. The lab does it number for number."""
    lab, hand = make_small(), make_small()
    how = {"optimizer": "adamw", "lr": 0.01, "epochs": 2}
    keep = Keep(0, **KEEP)
    for task in range(2):
        lab.learn(task, keep, rule="keep", head_rule="keep", **how)

    hand.learn(0, **how)
    looked = keep.looked_at(0, 8)
    batch = hand.items.fetch([(0, index) for index in looked], 0)
    inputs = {"inputs": batch.inputs, "labels": batch.labels}
    settings = KeepSettings(
        examples=8, damping=0.1, seed=seed_for(0, "keep", 0) % 2**31, of="predictions",
        predict=lambda model, batch: hand.logits(type("B", (), batch)),
    )  # fmt: skip
    look = Look(hand.module, "predictions", settings.predict, False)
    memory, kept = kept_of(look, [inputs], settings)
    session = hand.session(1, optimizer="adamw", lr=0.01, epochs=2)
    training = hand.training(session)
    together = session.groups[0].budget.make_optimizer(hand.layer.parameters())
    together.add_param_group({"params": list(hand.head.parameters())})
    training.optimizers = dict.fromkeys(("body", "head"), together)
    memory = grown(memory, hand.module)
    keeper = Keeper(look, together, memory, kept, replace(settings, seed=0))
    for epoch in range(2):
        training.epoch(epoch, quiet)
    assert keeper.steps == 4
    for name, value in lab.values().items():
        torch.testing.assert_close(value, hand.values()[name], rtol=0, atol=0)


def test_the_pull_is_the_clipped_gradient_of_the_divergence(make_small):
    """One step of SGD, written out: the loss' gradient, and that of KL(then || now) of norm 1."""
    small = make_small()
    distill = DistillSettings().make(0)
    small.learn(0, distill)
    then = log_softmax(small.logits(small.items.task(0)), 1).detach()
    with torch.no_grad():  # what there is to pull back from
        small.layer.weight += 3.0
    session = small.session(1, lr=0.1, momentum=0.0)
    training = small.training(session, distill, batch=8)
    before = small.values()
    training.epoch(0, quiet)
    after = small.values()

    # The seven of eight examples that pull, in order of the keeper.
    groups = taken(distill.kept.pulled, 0, 0)
    rows = [row for group in groups for row in group.batch["inputs"].tolist()]
    place = {tuple(row): n for n, row in enumerate(small.items.task(0).inputs.tolist())}
    chosen = [place[tuple(row)] for row in rows]
    assert len(chosen) == len(set(chosen)) == 7
    with torch.no_grad():
        for name, parameter in small.module.named_parameters():
            parameter.copy_(before[name])
    parameters = dict(small.module.named_parameters())
    small.module.eval()
    own = torch.autograd.grad(session.loss(small.items.task(1), False), list(parameters.values()))
    batch = small.items.fetch([(0, n) for n in chosen], 0)
    now = log_softmax(small.logits(batch)[:, :2], 1)
    divergence = kl_div(now, then[chosen], reduction="batchmean", log_target=True)
    pull = torch.autograd.grad(divergence, list(parameters.values()))
    norm = torch.cat([g.flatten() for g in pull]).norm()
    assert float(norm) > 1
    for name, g, p in zip(parameters, own, pull, strict=True):
        wanted = before[name] - 0.1 * (g + STRENGTH * p / norm)
        torch.testing.assert_close(after[name], wanted, rtol=1e-5, atol=1e-6)


def test_dark_replay_is_labels_and_scores_in_the_loss(make_small):
    """The loss of a step, written out: the batch with old examples over all classes, and KL."""
    small = make_small()
    dark = DarkReplaySettings(weight=2.0, batch=3).make(0)
    small.learn(0, dark)
    then = log_softmax(small.logits(small.items.task(0)), 1).detach()
    with torch.no_grad():
        small.layer.weight += 0.3
    session = small.session(1, epochs=1)
    training = small.training(session, dark, batch=8)
    refs = [(1, n) for n in range(8)]
    drawn = dark.replayed(1, 0, 0, 8)
    assert len(set(drawn)) == 3
    assert {task for task, _ in drawn} == {0}
    batch = small.items.fetch([*refs, *drawn], 0)
    found = training._loss(batch, 1.0, True)
    groups = taken(dark.kept.pulled, 0, seed_for(0, "dark-replay") % 2**31)
    place = {tuple(r): n for n, r in enumerate(small.items.task(0).inputs.tolist())}
    chosen = [place[tuple(row)] for g in groups for row in g.batch["inputs"].tolist()]
    old = small.items.fetch([(0, n) for n in chosen], 0)
    now = log_softmax(small.logits(old)[:, :2], 1)
    divergence = kl_div(now, then[chosen], reduction="batchmean", log_target=True)
    wanted = small.loss_of(small.logits(batch), batch, 0, True) + 2.0 * divergence
    torch.testing.assert_close(found, wanted.float())


@pytest.mark.parametrize("of", ["predictions", "features"])
def test_states_come_back(make_small, of):
    first, second = make_small(), make_small()
    keep, other = Keep(0, **KEEP | {"budget": 0.02}), Keep(0, **KEEP | {"budget": 0.02})
    keep.settings = other.settings = MemorySettings(of=of, examples=6)
    how = {"rule": "keep", "head_rule": "keep"}
    for small in (first, second):
        small.learn(0, keep if small is first else other, epochs=3, **how)
        small.learn(1, keep if small is first else other, epochs=3, **how)
    again = Keep(0, **KEEP | {"budget": 0.02})
    again.settings = keep.settings
    again.load_state_dict(keep.state_dict())
    assert again.state_dict().keys() == {"seconds", "sizes", "refs", "memory", "kept", "counts"}
    counts = again.state_dict()["counts"]["body"]
    assert (counts["steps"], counts["pulls"]) == (6, 6)
    assert counts["strength"] != 1
    first.learn(2, again, **how)
    second.learn(2, other, **how)
    for name, value in first.values().items():
        assert torch.equal(value, second.values()[name])


def test_groups_that_train_alike_share_one_optimizer_and_one_pull(small):
    keep = Keep(0, **KEEP)
    small.learn(0, keep, rule="keep", head_rule="keep")
    session = small.session(1, rule="keep", head_rule="keep", lr=0.1)
    body, head = session.groups
    head = replace(head, budget=replace(head.budget, lr=0.02))
    training = small.training(replace(session, groups=(body, head)), keep)
    assert training.optimizers["body"] is training.optimizers["head"]
    assert list(keep.keepers) == ["body"]
    training.epoch(0, quiet)
    assert [group["lr"] for group in training.optimizers["body"].param_groups] == [0.1, 0.02]


@pytest.mark.parametrize(
    "changes", [{"rule": "fo"}, {"budget": {"optimizer": "adam"}}, {"budget": {"epochs": 3}}]
)
def test_others_have_their_own(small, changes):
    keep = Keep(0, **KEEP)
    small.learn(0, keep, rule="keep", head_rule="keep")
    session = small.session(1, rule="keep", head_rule=changes.get("rule", "keep"))
    body, head = session.groups
    head = replace(head, budget=replace(head.budget, **changes.get("budget", {})))
    training = small.training(replace(session, groups=(body, head)), keep)
    assert training.optimizers["body"] is not training.optimizers["head"]
    assert list(keep.keepers) == (["body"] if "rule" in changes else ["body", "head"])


@pytest.mark.parametrize("rule", ["keep", "informed"])
def test_batches_in_parts(make_small, rule):
    ends = []
    for parts in (1, 3):
        small = make_small()
        keeps = made_additions(Shared(Rule(rule)))
        for task in range(2):
            small.learn(task, *keeps, rule=rule, parts=parts, epochs=2, optimizer="adamw")
        ends.append(small.values())
    for name, value in ends[1].items():
        torch.testing.assert_close(value, ends[0][name], rtol=1e-4, atol=1e-6)


def test_the_first_session_is_plain(make_small):
    plain, kept = make_small(), make_small()
    plain.learn(0)
    kept.learn(0, Keep(0, **KEEP), rule="keep", head_rule="keep")
    for name, value in kept.values().items():
        assert torch.equal(value, plain.values()[name])


@pytest.mark.parametrize(
    ("host", "rule", "additions"),
    [
        ("adapter-classifier", {"name": "keep"}, []),
        ("zo-fc-rise", {"name": "keep", "budget": 0.01}, ["retract"]),
        ("learnable-classifier", {"name": "keep"}, ["all-classes"]),
        ("adapter-classifier", {"name": "rise"}, ["distill"]),
        ("adapter-classifier", {"name": "informed"}, ["dark-replay", "replay"]),
    ],
)
def test_runs_and_killed_runs(digits, tmp_path, host, rule, additions):
    settings = read_config(digits(host, additions) | {"rule": rule})
    whole = perform(settings, tmp_path / "whole", quiet)
    assert len(whole["memory_bytes"]) == len(whole["seconds"]["remember"]) == 2
    assert 0 < whole["memory_bytes"][0] < whole["memory_bytes"][1]
    assert whole["data_bytes"] == [16 * 192, 32 * 192]  # 8 images of each class, 3 x 8 x 8
    with pytest.raises(Killed):
        perform(settings, tmp_path / "killed", killer("epoch", 2))
    again = perform(settings, tmp_path / "killed", quiet)
    for part in ("scores", "losses", "trainable", "memory_bytes", "data_bytes"):
        assert again[part] == whole[part]


def test_replay_keeps_the_data_itself(digits, tmp_path):
    addition = {"name": "replay", "size": 20}
    found = perform(read_config(digits("adapter-classifier", [addition])), tmp_path, quiet)
    assert found["data_bytes"] == found["memory_bytes"] == [16 * 192, 20 * 192]


def test_what_is_kept_comes_last_and_has_the_settings_of_the_run():
    settings = Shared(Rule("keep", damping=0.2, pull=3))
    settings.memory = MemorySettings(examples=5)
    (keep,) = made_additions(settings)
    assert (keep.name, keep.damping, keep.pull, keep.settings.examples) == ("keep", 0.2, 3, 5)
    settings.rule, settings.additions = Rule("informed"), (DistillSettings(), DarkReplaySettings())
    made = made_additions(settings)
    assert [addition.name for addition in made] == ["distill", "dark-replay", "memory"]
    assert all(isinstance(addition, LooksBack) for addition in made)
    assert {addition.settings.examples for addition in made} == {5}


def test_a_file_that_names_no_damping_has_that_of_the_library():
    assert read_rule({"name": "keep"}).damping == 0.1
    assert read_rule({"name": "keep", "damping": 0.3}).damping == 0.3
    assert read_rule({"name": "informed"}).damping == 0.3


REFUSED = [
    ({"rule": {"name": "keep"}, "additions": ["distill"]},
     "one pull at most, got those of distill and keep"),
    ({"rule": {"name": "keep"}, "additions": ["gpm"]},
     "addition 'gpm' does not compose with 'keep': a pull is added after the projection"),
    ({"additions": ["gpm", "distill"]}, "addition 'gpm' does not compose with 'distill'"),
    ({"rule": {"name": "keep"}, "memory": {"rank": 4}}, "memory.rank is used by the rules"),
    ({"rule": {"name": "keep", "q": 2}}, "rule.q is not used by rule 'keep'"),
    ({"rule": {"name": "informed", "pull": 2}}, "rule.pull is not used by rule 'informed' but by"),
    ({"rule": {"name": "fo", "budget": 0.1}}, "rule.budget is not used by rule 'fo' but by keep"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_would_do_nothing_or_harm_is_refused(digits, changes, message):
    plain = digits("adapter-classifier", changes.get("additions", ()))
    with pytest.raises(ValueError, match=re.escape(message)):
        read_config(plain | {k: v for k, v in changes.items() if k != "additions"})


def test_estimates_are_not_pulled(small):
    session = small.session(0, rule="zo")
    with pytest.raises(ValueError, match="addition 'distill' needs exact gradients"):
        small.training(session, DistillSettings().make(0))


def test_a_rule_without_what_it_keeps_is_an_error(small):
    session = small.session(0, rule="keep")
    with pytest.raises(ValueError, match="rule 'keep' of group 'body' needs the run's memory"):
        small.training(session)


@pytest.mark.parametrize("host", ["simple-cil", "aper", "ease"])
def test_hosts_where_nothing_goes_on_being_used_are_refused(digits, host):
    with pytest.raises(ValueError, match=f"'keep' does not compose with host '{host}'"):
        read_config(digits(host, rule="keep"))
