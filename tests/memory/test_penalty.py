"""The same factors as a penalty and after the fact."""

import copy

import pytest
import torch
from peft import LoraConfig
from transformers import T5Config, T5ForConditionalGeneration

import risegrad
from memory.subjects import (
    bert,
    dense,
    generator,
    gpt2,
    network,
    t5,
    texts,
    vectors,
    with_lora,
)
from memory.test_sides import Pictures, images, inputs_only, weight_of
from references import assert_close
from risegrad.memory.layers import named_parameters, role_of
from risegrad.memory.penalty import Anchor, interpolate, retract

SUBJECTS = {
    "linear": (network, vectors),
    "conv2d": (Pictures, images),
    "bert": (bert, inputs_only),
    "conv1d": (gpt2, inputs_only),
    "lora": (lambda: with_lora(t5(), ["q", "v"]), texts),
    "lora on conv1d": (lambda: with_lora(gpt2(), ["c_attn"], fan_in_fan_out=True), inputs_only),
    "lora and biases": (lambda: with_lora(bert(), ["query"], bias="all"), inputs_only),
}


def moved(name, rank=None):
    """A model that was remembered, anchored and then trained a little."""
    make, batches = SUBJECTS[name]
    model = make()
    memory = risegrad.remember(model, batches(), examples=None, rank=rank)
    anchor = memory.anchor(model)
    torch.manual_seed(5)
    layers = {n: weight_of(model, n) for n, kept in memory.items() if kept.kind != "norm"}
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p += 0.1 * torch.randn_like(p)
    return model, memory, anchor, layers


def dense_penalty(model, memory, anchor, layers):
    """The quadratic with each layer's matrix ``kron(D, S)`` written out."""
    total = 0.0
    named = named_parameters(model)
    for layer, before in layers.items():
        kept = memory[layer]
        change = kept.matrix(weight_of(model, layer) - before).reshape(-1)
        h = torch.kron(dense(kept.outputs), dense(kept.inputs))
        total += change @ h @ change / 2
    for name, p in named.items():
        role = role_of(name)
        if name not in anchor.values or role.layer not in memory:
            continue
        kept, change = memory[role.layer], (p - anchor.values[name]).detach()
        if kept.kind == "norm":
            side = kept.inputs if role.part == "weight" else kept.outputs
            total += change @ dense(side) @ change / 2
        elif role.part == "bias":
            total += change @ dense(kept.outputs) @ change / 2
    return total


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize("name", SUBJECTS)
def test_the_penalty_is_the_dense_quadratic(name, rank):
    model, memory, anchor, layers = moved(name, rank)
    penalty = memory.penalty(model, anchor).detach()
    expected = dense_penalty(model, memory, anchor, layers)
    assert float(penalty) == pytest.approx(float(expected), rel=1e-9)
    assert sum(memory.damage(anchor, model).values()) == pytest.approx(float(expected), rel=1e-9)


def test_its_gradient_is_that_of_the_dense_matrix():
    model, memory, anchor, _ = moved("linear")
    found = torch.autograd.grad(memory.penalty(model, anchor), list(model.parameters()))
    for (name, p), gradient in zip(model.named_parameters(), found, strict=True):
        kept = memory[role_of(name).layer]
        then = anchor.values[name]
        theta = p.detach().clone().requires_grad_()
        s = dense(kept.inputs) if p.ndim == 2 else torch.ones(1, 1, dtype=torch.float64)
        change = (theta - then).reshape(-1)
        value = change @ torch.kron(dense(kept.outputs), s) @ change / 2
        (expected,) = torch.autograd.grad(value, theta)
        assert_close(gradient, expected)


def test_its_gradient_for_lora_is_that_of_the_dense_matrix():
    model, memory, anchor, _ = moved("lora")
    named = {n: p for n, p in named_parameters(model).items() if p.requires_grad}
    found = torch.autograd.grad(memory.penalty(model, anchor), list(named.values()))
    fresh = {n: p.detach().clone().requires_grad_() for n, p in named.items()}
    value = 0
    for name in fresh:
        if "lora_A" in name:
            other, kept = name.replace("lora_A", "lora_B"), memory[role_of(name).layer]
            change = 3 * (fresh[other] @ fresh[name] - anchor.values[other] @ anchor.values[name])
            h = torch.kron(dense(kept.outputs), dense(kept.inputs))
            value = value + change.reshape(-1) @ h @ change.reshape(-1) / 2
    expected = torch.autograd.grad(value, list(fresh.values()))
    for gradient, wanted in zip(found, expected, strict=True):
        assert_close(gradient, wanted)


def test_at_the_anchor_there_is_no_penalty():
    model = with_lora(t5(), ["q"])
    memory = risegrad.remember(model, texts(), examples=None)
    assert float(memory.penalty(model, memory.anchor(model)).detach()) == pytest.approx(
        0, abs=1e-15
    )


def test_a_fresh_lora_needs_no_anchor():
    memory = risegrad.remember(t5(), texts(), examples=None)
    model = with_lora(t5(), ["q"])
    zero = Anchor({n: torch.zeros_like(p) for n, p in named_parameters(model).items()
                   if p.requires_grad})  # fmt: skip
    found = float(memory.penalty(model).detach())
    assert found == pytest.approx(float(memory.penalty(model, zero).detach()))
    assert found > 0


def test_an_anchor_holds_what_is_trained_and_nothing_else():
    model, _, anchor, _ = moved("lora")
    trained = {n: p for n, p in named_parameters(model).items() if p.requires_grad}
    assert set(anchor.values) == set(trained)
    assert anchor.bytes == sum(8 * p.numel() for p in trained.values())


def test_missing_and_wrong_anchors_are_named():
    model, memory, anchor, _ = moved("linear")
    with pytest.raises(ValueError, match=r"anchor lacks 0.\w+, which is trained: create it with"):
        memory.penalty(model)
    wrong = Anchor({n: v[:1] for n, v in anchor.values.items()})
    with pytest.raises(ValueError, match=r"anchor is of another model: 0.weight has shape"):
        memory.penalty(model, wrong)
    with pytest.raises(ValueError, match="covers no trained parameter of the model"):
        memory.penalty(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="nothing to anchor"):
        memory.anchor(torch.nn.Linear(2, 2))


def test_retraction_keeps_the_best_share_of_each_layer():
    model, memory, anchor, _ = moved("linear")
    after = {n: p.detach().clone() for n, p in model.named_parameters()}
    cost = memory.damage(anchor, model)
    shares = risegrad.retract(model, anchor, memory, strength=2.0)
    for layer, share in shares.items():
        kept = memory[layer]
        worth = 0.0
        for name in (f"{layer}.weight", f"{layer}.bias"):
            change = after[name] - anchor.values[name]
            scale = kept.outputs.mean * (kept.inputs.mean if change.ndim == 2 else 1)
            worth += float(change.square().sum()) * scale / 2
            expected = anchor.values[name] + share * change
            assert_close(dict(model.named_parameters())[name].detach(), expected)
        assert share == pytest.approx(worth / (worth + 2 * cost[layer]))
        grid = torch.linspace(0, 1, 10_001, dtype=torch.float64)
        best = grid[(2 * cost[layer] * grid**2 + worth * (1 - grid) ** 2).argmin()]
        assert share == pytest.approx(float(best), abs=1e-4)
    assert len(set(shares.values())) == len(shares)


def test_one_share_for_the_model_is_interpolation():
    model, memory, anchor, _ = moved("linear")
    after = {n: p.detach().clone() for n, p in model.named_parameters()}
    shares = risegrad.retract(model, anchor, memory, per="model")
    assert len(set(shares.values())) == 1
    (share,) = set(shares.values())
    for name, p in model.named_parameters():
        assert_close(p.detach(), torch.lerp(anchor.values[name], after[name], share))


def test_the_new_task_says_what_its_change_is_worth():
    model, memory, anchor, _ = moved("linear")
    new = risegrad.remember(model, vectors(seed=9), examples=None)
    cost, worth = memory.damage(anchor, model), new.damage(anchor, model)
    shares = risegrad.retract(model, anchor, memory, new=new)
    for name, share in shares.items():
        assert share == pytest.approx(worth[name] / (worth[name] + cost[name]))


def test_a_state_dict_serves_as_what_was_before():
    one, memory, anchor, _ = moved("linear")
    two = network()
    before = {name: value.clone() for name, value in two.state_dict().items()}
    two.load_state_dict(one.state_dict())
    risegrad.retract(one, anchor, memory)
    risegrad.retract(two, before, memory)
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_retracted_lora_is_the_share_of_its_weight():
    model = with_lora(t5(), ["q", "v"], filled=False)
    memory = risegrad.remember(model, texts(), examples=None)
    anchor = memory.anchor(model)
    for name, p in model.named_parameters():
        if "lora" in name:
            torch.manual_seed(len(name))
            p.data += 0.1 * torch.randn_like(p)
    zero = {n: weight_of(t5(), n) for n in memory}
    after = {n: weight_of(model, n) for n in memory}
    shares = risegrad.retract(model, anchor, memory)
    for name in memory:
        expected = zero[name] + shares[name] * (after[name] - zero[name])
        assert_close(weight_of(model, name), expected)


def test_a_retracted_lora_is_the_nearest_of_its_rank():
    model, memory, anchor, before = moved("lora")
    after = {n: weight_of(model, n) for n in memory}
    base = {n: weight_of(t5(), n) for n in memory}
    shares = risegrad.retract(model, anchor, memory)
    for name in memory:
        wanted = shares[name] * after[name] + (1 - shares[name]) * before[name] - base[name]
        u, s, v = torch.linalg.svd(wanted)
        nearest = u[:, :2] @ s[:2].diag() @ v[:2]
        assert (weight_of(model, name) - base[name] - nearest).abs().max() < 1e-9


def test_a_strength_of_zero_keeps_all():
    model, memory, anchor, _ = moved("linear")
    after = [p.detach().clone() for p in model.parameters()]
    assert set(risegrad.retract(model, anchor, memory, strength=0).values()) == {1.0}
    for p, q in zip(model.parameters(), after, strict=True):
        assert_close(p.detach(), q)


def test_bad_retractions():
    model, memory, anchor, _ = moved("linear")
    with pytest.raises(ValueError, match="per must be one of layer, model; got 'tensor'"):
        risegrad.retract(model, anchor, memory, per="tensor")
    with pytest.raises(ValueError, match="strength must be a finite number >= 0, got -1"):
        risegrad.retract(model, anchor, memory, strength=-1)
    with pytest.raises(ValueError, match=r"before holds the model's own 0.weight, .* copy the"):
        risegrad.retract(model, model.state_dict(), memory)
    new = risegrad.remember(model, vectors(), examples=None, layers=["0"])
    with pytest.raises(ValueError, match="memory of the new task has no layer '2'"):
        risegrad.retract(model, anchor, memory, new=new)


def stacked(active):
    """A T5 with a filled LoRA that is frozen, and a new one that is trained."""
    model = with_lora(t5(), ["q"])
    model.add_adapter("new", LoraConfig(r=3, target_modules=["q"], lora_alpha=4))
    model.double().base_model.set_adapter(active)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".new" in name)
    return model


def test_a_frozen_adapter_beside_the_trained_one_has_not_moved():
    model = stacked(["default", "new"])
    memory = risegrad.remember(model, texts(), examples=None)
    anchor = memory.anchor(model)
    assert float(memory.penalty(model, anchor).detach()) == pytest.approx(0, abs=1e-15)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.1 * ("lora_B.new" in name)
    alone = stacked("new")  # the same change, with nothing beside it
    with torch.no_grad():
        for name, parameter in alone.named_parameters():
            parameter.copy_(model.state_dict()[name])
    expected = float(memory.penalty(alone).detach())
    assert float(memory.penalty(model, anchor).detach()) == pytest.approx(expected)
    assert min(risegrad.retract(model, anchor, memory).values()) > 0
    assert sum(memory.damage(anchor, model).values()) < expected


def test_an_adapter_that_is_switched_off_counts_for_nothing():
    model = stacked("new")
    memory = risegrad.remember(model, texts(), examples=None)
    assert float(memory.penalty(model).detach()) == 0
    model.base_model.set_adapter(["default", "new"])
    assert float(memory.penalty(model).detach()) > 0


def test_nothing_is_measured_of_adapters_that_are_switched_off():
    model, memory, anchor, _ = moved("lora")
    expected = float(memory.penalty(model, anchor).detach())
    ways = (memory.penalty, lambda model, anchor: memory.damage(anchor, model),
            lambda model, anchor: risegrad.retract(model, anchor, memory))  # fmt: skip
    with model.disable_adapter():
        for way in ways:
            with pytest.raises(ValueError, match=r"adapters of layer .*q.* are switched off \(dis"):
                way(model, anchor)
    assert float(memory.penalty(model, anchor).detach()) == expected


def test_dora_has_no_penalty():
    memory = risegrad.remember(t5(), texts(), examples=None)
    model = with_lora(t5(), ["q"], use_dora=True)
    with pytest.raises(ValueError, match="covers no trained parameter of the model"):
        memory.penalty(model)


@pytest.mark.parametrize("lora", [False, True])
def test_a_memory_of_another_width_is_named(lora):
    other = T5Config(vocab_size=20, d_model=8, d_ff=12, d_kv=6, num_layers=1, num_heads=2,
                     decoder_start_token_id=0)  # fmt: skip
    memory = risegrad.remember(T5ForConditionalGeneration(other).double(), texts(), examples=None)
    model = with_lora(t5(), ["q"]) if lora else t5()
    part = r"q\.lora_B\.default\.weight" if lora else r"q\.weight"
    message = rf"of another model: parameter '\S+{part}' must have shape \(12, \d\), got \(8, "
    anchor = memory.anchor(model)
    with pytest.raises(ValueError, match=message):
        memory.penalty(model, anchor)
    with pytest.raises(ValueError, match=message):
        risegrad.retract(model, anchor, memory)


@pytest.mark.parametrize("before", ["a state", "nothing", "an anchor"])
def test_an_adapter_that_is_frozen_by_now_is_taken_back(before):
    """As ``PeftModel.from_pretrained`` leaves it."""
    models = [with_lora(t5(), ["q"], filled=False) for _ in range(2)]
    memory = risegrad.remember(models[0], texts(), examples=None)
    given = {
        "a state": {n: v.clone() for n, v in models[0].state_dict().items()},
        "nothing": {},
        "an anchor": memory.anchor(models[0]),
    }[before]
    for model in models:
        for name, p in model.named_parameters():
            p.data += 0.1 * ("lora_B" in name)
    models[1].requires_grad_(False)
    trained, frozen = (risegrad.retract(model, given, memory) for model in models)
    assert trained == frozen
    assert max(frozen.values()) < 1
    for name in memory:
        assert_close(weight_of(models[1], name), weight_of(models[0], name))
    assert sum(memory.damage(Anchor({}), models[1]).values()) > 0


def test_a_frozen_adapter_that_was_there_before_stays():
    model = stacked(["default", "new"])
    memory = risegrad.remember(model, texts(), examples=None)
    before = {n: v.clone() for n, v in model.state_dict().items() if ".new" not in n}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += 0.1 * ("lora_B.new" in name)
    after = {n: p.detach().clone() for n, p in model.named_parameters()}
    shares = risegrad.retract(model, before, memory)
    for name, parameter in model.named_parameters():
        share = shares[role_of(name).layer] if "lora_B.new" in name else 1
        assert_close(parameter.detach(), share * after[name])


def test_a_retracted_lora_of_which_one_matrix_was_trained():
    model = with_lora(t5(), ["q"])
    for name, p in model.named_parameters():
        p.requires_grad_("lora_A" in name)
    memory = risegrad.remember(model, texts(), examples=None)
    anchor, before = memory.anchor(model), {n: weight_of(model, n) for n in memory}
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * p.requires_grad
    after = {n: weight_of(model, n) for n in memory}
    shares = risegrad.retract(model, anchor, memory)
    for name, share in shares.items():
        wanted = share * after[name] + (1 - share) * before[name]
        assert (weight_of(model, name) - wanted).abs().max() < 1e-9


@pytest.mark.parametrize("way", ["retract", "interpolate"])
def test_a_merged_lora_is_not_taken_back(way):
    """Changing A and B would move nothing, and unmerging would then spoil the weight under it."""
    model = with_lora(t5(), ["q"], filled=False)
    memory = risegrad.remember(model, texts(), examples=None)
    anchor = memory.anchor(model)
    for name, p in model.named_parameters():
        p.data += 0.1 * ("lora_B" in name)
    expected = copy.deepcopy(model)

    def back(m):
        return retract(m, anchor, memory) if way == "retract" else interpolate(m, anchor, 0.5)

    model.merge_adapter()
    with pytest.raises(ValueError, match=r"the LoRA of layer encoder\S+\.q.* is merged .*unmerge"):
        back(model)
    model.unmerge_adapter()
    assert back(model) == back(expected)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert (a - b).abs().max() < 1e-12


@pytest.mark.parametrize("before", ["the plain model", "nothing", "peft's state"])
@pytest.mark.parametrize("trained", [True, False])
def test_a_head_that_peft_saves_whole_is_taken_back(before, trained):
    """Frozen too, as ``PeftModel.from_pretrained`` leaves it."""
    model = with_lora(bert(), ["query"], filled=False, modules_to_save=["classifier"])
    memory = risegrad.remember(model, inputs_only(), examples=None)
    head = model.base_model.model.classifier
    start = head.original_module.weight.clone()
    given = {
        "the plain model": {n: v.clone() for n, v in bert().state_dict().items()},
        "nothing": {},
        "peft's state": {n: v.clone() for n, v in model.state_dict().items()},
    }[before]
    drawn = generator(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad and "lora_A" not in name:
                p += 0.1 * torch.randn(p.shape, generator=drawn, dtype=p.dtype)
    end = head.modules_to_save["default"].weight.detach().clone()
    if not trained:
        model.requires_grad_(False)
    share = risegrad.retract(model, given, memory)["classifier"]
    assert 0 < share < 1
    assert_close(head.modules_to_save["default"].weight.detach(), torch.lerp(start, end, share))
    assert torch.equal(head.original_module.weight, start)
