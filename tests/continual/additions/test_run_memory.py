"""The memory of a run: what it holds, what it shapes, and that it survives being killed."""

from types import SimpleNamespace

import pytest
import torch

from continual.additions.test_runs import Killed, killer, quiet
from risegrad.core.attachment import attach
from risegrad.memory.informed import Informed
from risegrad.memory.memory import Memory
from risegrad.memory.remembering import remember
from riselab.continual.additions.memory import (
    InterpolateSettings,
    MemorySettings,
    RetractSettings,
    RunMemory,
    anchor_in,
    grown,
    layers_of,
)
from riselab.continual.additions.penalties import KronAnchorSettings
from riselab.continual.learning import made_additions
from riselab.continual.rules import Rule
from riselab.continual.runs import perform, read_config


def kept_with(addition, **settings):
    addition.kept = RunMemory(MemorySettings(**settings), 0)
    return addition.kept


def layer(memory, name):
    return {part: side.dense() for part, side in memory[name].parts.items()}


def test_it_holds_the_second_moments_of_the_session(small):
    """Inputs by a loop over all examples; both layers of the module are held."""
    memory = RunMemory(MemorySettings(), 0)
    small.learn(0, memory)
    assert set(memory.memory) == {"0", "2"}
    inputs = small.items.task(0).inputs
    expected = sum(torch.outer(x, x) for x in inputs) / len(inputs)
    torch.testing.assert_close(layer(memory.memory, "0")["inputs"], expected)
    assert memory.sizes == [memory.memory.bytes]
    assert len(memory.seconds) == memory.sessions == 1


def test_features_reach_the_body_only(small):
    memory = RunMemory(MemorySettings(of="features"), 0)
    small.learn(0, memory)
    assert set(memory.memory) == {"0"}


def test_sessions_are_added_and_a_grown_head_has_nothing_to_keep_in_new_rows(small):
    memory = RunMemory(MemorySettings(), 0)
    small.learn(0, memory)
    first = memory.memory
    small.learn(1, memory)
    head = layer(memory.memory, "2")["outputs"]
    assert head.shape == (4, 4)
    # The loss of each session is over its own rows, so nothing is between the two.
    torch.testing.assert_close(head[:2, :2], layer(first, "2")["outputs"])
    assert float(head[:2, 2:].abs().max()) == 0
    assert float(head[2:, 2:].diagonal().min()) > 0


@pytest.mark.parametrize("rank", [0, 1])
def test_growing_keeps_traces(small, rank):
    memory = RunMemory(MemorySettings(rank=rank), 0)
    small.learn(0, memory)
    before = memory.memory["2"].outputs
    small.session(1)
    after = grown(memory.memory, small.module)["2"].outputs
    assert after.dim == before.dim + 2
    assert after.trace == pytest.approx(before.trace)


def test_steps_are_those_of_the_library(make_small):
    """A session by hand: remember, attach, train. The lab does the same, number for number."""
    lab, hand = make_small(), make_small()
    memory = RunMemory(MemorySettings(), 0)
    for task in range(2):
        lab.learn(task, memory, rule="informed", optimizer="adamw", lr=0.01)
    kept = RunMemory(MemorySettings(), 0)
    hand.learn(0, kept, rule="fo", optimizer="adamw", lr=0.01)
    session = hand.session(1, optimizer="adamw", lr=0.01)
    training = hand.training(session)
    named = [(f"0.{name}", p) for name, p in hand.layer.named_parameters()]
    attach(training.optimizers["body"], Informed(kept.memory, 0.3, match="norm"), named, "update")
    training.epoch(0, quiet)
    wanted = hand.values()
    for name, value in lab.values().items():
        torch.testing.assert_close(value, wanted[name], rtol=0, atol=0)


def test_the_first_session_is_plain(make_small):
    plain, informed = make_small(), make_small()
    plain.learn(0)
    informed.learn(0, RunMemory(MemorySettings(), 0), rule="informed")
    for name, value in informed.values().items():
        assert torch.equal(value, plain.values()[name])


@pytest.mark.parametrize("rule", ["informed", "informed-rise"])
def test_rules_change_later_sessions_and_the_draws_have_seeds(make_small, rule):
    ends = []
    for small in (make_small(), make_small()):
        memory = RunMemory(MemorySettings(), 0)
        for task in range(2):
            small.learn(task, memory, rule=rule)
        ends.append(small.values())
    plain = make_small()
    for task in range(2):
        plain.learn(task)
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name])
    assert not torch.equal(ends[0]["0.weight"], plain.values()["0.weight"])


@pytest.mark.parametrize(
    ("change", "same"), [("inputs", "inputs"), ("outputs", "outputs"), ("rotated", "")]
)
def test_ablations(make_small, change, same):
    whole, changed = RunMemory(MemorySettings(), 0), RunMemory(MemorySettings(change=change), 0)
    make_small().learn(0, whole)
    make_small().learn(0, changed)
    for part in ("inputs", "outputs"):
        one, other = (layer(memory.memory, "0")[part] for memory in (whole, changed))
        torch.testing.assert_close(one.trace(), other.trace())
        if part == same:
            assert torch.equal(one, other)
        elif same:  # the other side prefers no direction
            torch.testing.assert_close(other, torch.eye(len(one)).double() * one.trace() / len(one))
        else:
            torch.testing.assert_close(*map(torch.linalg.eigvalsh, (one, other)))
            assert not torch.allclose(one, other)


def test_diagonal(make_small):
    whole, changed = RunMemory(MemorySettings(), 0), RunMemory(MemorySettings(change="diagonal"), 0)
    make_small().learn(0, whole)
    make_small().learn(0, changed)
    full, diagonal = (layer(memory.memory, "0")["inputs"] for memory in (whole, changed))
    assert torch.equal(diagonal, full.diagonal().diag())


def test_a_memory_of_the_incoming_task(small):
    memory = RunMemory(MemorySettings(source="incoming"), 0)
    small.learn(0, memory)
    training = small.training(small.session(1, rule="informed"), memory)
    inputs = small.items.task(1).inputs
    expected = sum(torch.outer(x, x) for x in inputs) / len(inputs)
    torch.testing.assert_close(layer(memory.memory, "0")["inputs"], expected)
    assert "body" in training.shaping


def test_states_come_back_bit_for_bit(make_small):
    memory = RunMemory(MemorySettings(), 0)
    make_small().learn(0, memory)
    other = RunMemory(MemorySettings(), 0)
    other.load_state_dict(memory.state_dict())
    assert other.memory == memory.memory
    assert other.state_dict().keys() == memory.state_dict().keys()
    fresh = RunMemory(MemorySettings(), 0)
    other.load_state_dict(fresh.state_dict())
    assert other.memory is None


def test_a_host_that_offers_no_features_is_named(small):
    session = small.session(0)
    object.__setattr__(session, "features", None)
    training = small.training(session)
    with pytest.raises(ValueError, match=r"memory.of = 'features': the host's session offers no"):
        RunMemory(MemorySettings(of="features"), 0).end(training)


def test_a_session_without_a_known_layer_is_refused(small):
    session = small.session(0)
    object.__setattr__(session, "module", torch.nn.ModuleList())
    with pytest.raises(ValueError, match=r"a memory needs linear layers.*body.weight"):
        layers_of(session)


def test_anchors(small):
    """The penalty by the library, around where the session began, over the number of sessions."""
    anchor = KronAnchorSettings(weight=3.0).make(0)
    memory = kept_with(anchor)
    session = small.session(0)
    assert anchor.penalty(session, small.items.task(0), None) is None
    training = small.training(session, anchor, memory)
    training.epoch(0, quiet)
    memory.end(training)
    small.learn(1, anchor, memory)
    training = small.training(small.session(2), anchor, memory)
    batch = small.items.task(2)
    assert float(anchor.penalty(training.session, batch, None)) == 0
    start = anchor_in(training.session, memory.memory)
    with torch.no_grad():
        small.layer.weight += 0.1
    found = anchor.penalty(training.session, batch, None)
    expected = 3.0 / 2 * memory.memory.penalty(small.module, start)
    assert float(found) == pytest.approx(float(expected))
    change = torch.full((5, 6), 0.1, dtype=torch.float64)
    parts = layer(memory.memory, "0")
    slow = (parts["outputs"] @ change @ parts["inputs"] @ change.T).trace() / 2
    assert float(found) == pytest.approx(1.5 * float(slow))


def test_retract_goes_back_before_it_is_remembered(make_small):
    plain, small = make_small(), make_small()
    for task in range(2):
        plain.learn(task)
    retract = RetractSettings(strength=5.0).make(0)
    memory = kept_with(retract)
    small.learn(0, retract, memory)
    before = small.values()["0.weight"]
    small.learn(1, retract, memory)
    moved = small.values()["0.weight"] - before
    whole = plain.values()["0.weight"] - before
    share = (moved / whole).mean()
    assert 0.05 < share < 0.95
    torch.testing.assert_close(moved, share * whole)


def test_interpolation_keeps_one_share_after_the_first_session(make_small):
    plain, small = make_small(), make_small()
    half = InterpolateSettings(share=0.25).make(0)
    plain.learn(0)
    small.learn(0, half)
    before = small.values()
    assert torch.equal(before["0.weight"], plain.values()["0.weight"])
    plain.learn(1)
    small.learn(1, half)
    for name in ("0.weight", "0.bias", "2.weight"):
        start = before[name]
        if len(start) != len(small.values()[name]):  # the head has grown
            continue
        wanted = torch.lerp(start, plain.values()[name], 0.25)
        torch.testing.assert_close(small.values()[name], wanted)


def test_one_memory_serves_all(small):
    settings = SimpleNamespace(
        rule=Rule("informed"),
        memory=MemorySettings(examples=5),
        additions=(KronAnchorSettings(), RetractSettings()),
        seed=0,
    )
    anchor, retract, memory = made_additions(settings)
    assert anchor.kept is retract.kept is memory
    assert memory.settings.examples == 5
    settings.additions, settings.rule = (InterpolateSettings(),), Rule("fo")
    assert len(made_additions(settings)) == 1


@pytest.mark.parametrize("host", ["adapter-classifier", "zo-fc-rise"])
@pytest.mark.parametrize("rule", ["informed", "informed-rise"])
def test_runs_and_killed_runs(digits, tmp_path, host, rule):
    settings = read_config(digits(host, rule=rule))
    if host == "zo-fc-rise":
        settings = read_config(digits(host, ["kron-anchor"], rule=rule))
    whole = perform(settings, tmp_path / "whole", quiet)
    assert len(whole["memory_bytes"]) == len(whole["seconds"]["remember"]) == 2
    with pytest.raises(Killed):
        perform(settings, tmp_path / "killed", killer("epoch", 2))
    again = perform(settings, tmp_path / "killed", quiet)
    for part in ("scores", "losses", "trainable", "memory_bytes"):
        assert again[part] == whole[part]


def test_a_linear_head_alone_learns_by_memory(digits, tmp_path):
    """Old rows move where the loss is over all classes: there is something to keep."""
    plain = digits("learnable-classifier", ["all-classes"])
    fo = perform(read_config(plain), tmp_path / "fo", quiet)
    informed = perform(read_config(plain | {"rule": {"name": "informed"}}), tmp_path / "i", quiet)
    losses = [[row["loss"] for row in found["losses"]] for found in (fo, informed)]
    assert losses[0][:3] == losses[1][:3]
    assert losses[0][-1] != losses[1][-1]


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("simple-cil", "nothing trains there"),
        ("aper", "only its first session trains"),
        ("ease", "every session trains new parameters and freezes them"),
    ],
)
def test_hosts_with_nothing_to_keep_are_refused(digits, host, why):
    with pytest.raises(ValueError, match=f"'memory' does not compose with host '{host}': {why}"):
        read_config(digits(host, rule="informed"))


def test_settings_that_nobody_looks_at_are_refused(digits):
    with pytest.raises(ValueError, match=r"memory.of.*is used by the rules informed"):
        read_config(digits("adapter-classifier", memory={"of": "features"}))
    with pytest.raises(ValueError, match=r"rule.damping.*not used by rule 'rise'"):
        read_config(digits("adapter-classifier") | {"rule": {"name": "rise", "damping": 0.1}})
    with pytest.raises(ValueError, match=r"rule.chunk.*not used by rule 'informed'"):
        read_config(digits("adapter-classifier") | {"rule": {"name": "informed", "chunk": 4}})


def test_only_some_parameters(make_small):
    """``only`` and ``exempt`` name parameters as for the other rules."""
    small = make_small()
    memory = RunMemory(MemorySettings(), 0)
    small.learn(0, memory)
    session = small.session(1, rule="informed")
    group = session.groups[0]
    object.__setattr__(group, "rule", Rule("informed", only=("body.bias",)))
    handle = small.training(session, memory).shaping["body"]
    assert list(handle.layout.names) == ["0.bias"]


def test_one_first_task_for_all(digits, tmp_path):
    """Rates and rules differ from the second session on."""
    first = {"epochs": 2, "optimizer": "sgd", "lr": 0.05, "weight_decay": 0.0}
    matrices = []
    for lr, rule in ((0.1, "fo"), (0.3, "rise")):
        budget = {"epochs": 3, "lr": lr, "weight_decay": 0.0}
        plain = digits("adapter-classifier", rule=rule, head=budget, adapter=budget)
        plain["loop"] = plain["loop"] | {"first": first}
        found = perform(read_config(plain), tmp_path / rule, quiet)
        assert [row["task"] for row in found["losses"]].count(0) == 2
        matrices.append([row["loss"] for row in found["losses"]])
    assert matrices[0][:2] == matrices[1][:2]
    assert matrices[0][2:] != matrices[1][2:]


def test_remember_says_which_modules_act_as_layers():
    class Own(torch.nn.Module):
        acts_as = "cosine"

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(3, 4))

        def forward(self, x):
            return x @ self.weight.T

    model, batches = Own(), [torch.randn(8, 4)]
    with pytest.raises(ValueError, match="nothing of the model is covered"):
        remember(model, batches, examples=8)
    Own.acts_as = "linear"
    memory = remember(model, batches, examples=8)
    assert isinstance(memory, Memory)
    assert memory[""].kind == "linear"


def test_an_informed_rule_without_a_memory_is_an_error(small):
    session = small.session(0, rule="informed")
    with pytest.raises(ValueError, match="rule 'informed' of group 'body' needs the run's memory"):
        small.training(session)
