"""LoRA layers and O-LoRA's loss against the formulas, written out on hand-made weights."""

import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import dropout

from continual.language.tiny_text import config, make_model
from risegrad.common.seeds import generator_for
from riselab.continual.devices import Devices
from riselab.continual.language.lora import add_lora, folded
from riselab.continual.language.models import LanguageModelSettings, load_model, wrap
from riselab.continual.runs import make_host, read_config


class Two(nn.Module):
    """Two layers that can have LoRA and one that cannot."""

    def __init__(self):
        super().__init__()
        self.q, self.v, self.o = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(4, 2)


def layers_of(p=0.0, rank=2, alpha=8.0):
    module = Two().double()
    layers = add_lora(module, "t5", (), rank, alpha, p)
    for layer in layers.values():
        layer.double()
    return layers


def fill(layer, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (layer.A, layer.B):
            tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))


def stacked(p=0.0):
    """A layer with two frozen pairs and a new one, and copies of all three."""
    layer = layers_of(p)["q"]
    pairs = []
    for seed in range(3):
        fill(layer, seed)
        pairs.append((layer.A.detach().clone(), layer.B.detach().clone()))
        if seed < 2:
            layer.freeze()
    return layer, pairs


def test_only_lora_on_the_targets():
    module = Two()
    layers = add_lora(module, "t5", (), 2, 8.0, 0.1)
    assert sorted(layers) == ["q", "v"]
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_forward_adds_all_pairs_with_one_scale():
    layer, pairs = stacked()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    expected = x @ layer.base.weight.T + layer.base.bias
    for a, b in pairs:
        expected = expected + 8.0 / 2 * (x @ a.T) @ b.T
    torch.testing.assert_close(layer(x), expected, rtol=1e-12, atol=1e-12)


def test_past_and_new_see_the_same_dropped_out_input():
    layer, pairs = stacked(p=0.5)
    layer.train()
    x = torch.randn(7, 6, dtype=torch.float64)
    torch.manual_seed(11)
    found = layer(x)
    torch.manual_seed(11)
    thinned = dropout(x, 0.5)
    expected = x @ layer.base.weight.T + layer.base.bias
    for a, b in pairs:
        expected = expected + 4.0 * (thinned @ a.T) @ b.T
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_new_pair_does_nothing_and_is_drawn_by_its_seed():
    layer = layers_of()["q"]
    x = torch.randn(2, 6, dtype=torch.float64)
    fill(layer)
    layer.start(generator_for(0, "lora", 1))
    first = layer.A.detach().clone()
    assert torch.equal(layer(x), layer.base(x))
    assert first.abs().max() <= 1 / math.sqrt(6)
    layer.start(generator_for(0, "lora", 1))
    assert torch.equal(layer.A, first)


def test_only_the_new_pair_learns():
    layer, _ = stacked()
    layer.A.requires_grad_(True)
    layer.B.requires_grad_(True)
    layer(torch.randn(2, 6, dtype=torch.float64)).sum().backward()
    assert layer.A.grad is not None
    assert layer.B.grad is not None
    assert layer.past_A.grad is None
    assert not layer.past_A.requires_grad


def test_folding_gives_the_same_and_leaves_the_very_weights():
    layer, _ = stacked()
    x = torch.randn(3, 6, dtype=torch.float64)
    before, weight = layer(x), layer.base.weight.detach().clone()
    with folded({"q": layer}):
        torch.testing.assert_close(layer.base(x), before)
        torch.testing.assert_close(layer(x), before)
    assert torch.equal(layer.base.weight, weight)
    assert torch.equal(layer(x), before)


@pytest.mark.parametrize("kind", ["t5", "gpt2", "llama"])
def test_one_pair_is_pefts_own_lora(tokenizer, kind):
    ours, theirs = make_model(kind, tokenizer).eval(), make_model(kind, tokenizer).eval()
    names = {"t5": ["q", "v"], "gpt2": ["c_attn"], "llama": ["q_proj", "v_proj"]}[kind]
    layers = add_lora(ours, kind, (), 2, 8.0, 0.0)
    peft = get_peft_model(
        theirs,
        LoraConfig(r=2, lora_alpha=8, target_modules=names, fan_in_fan_out=kind == "gpt2"),
    )
    twins = {n: m for n, m in theirs.named_modules() if n in layers}
    for seed, (name, layer) in enumerate(layers.items()):
        fill(layer, seed)
        twins[name].lora_A["default"].weight.data.copy_(layer.A)
        twins[name].lora_B["default"].weight.data.copy_(layer.B)
    ids = torch.randint(3, len(tokenizer), (2, 9))
    more = {"labels": ids[:, :3].contiguous()} if kind == "t5" else {}
    expected = peft(input_ids=ids, **more).logits
    torch.testing.assert_close(ours(input_ids=ids, **more).logits, expected)
    with folded(layers):
        torch.testing.assert_close(
            ours(input_ids=ids, **more).logits, expected, rtol=1e-4, atol=1e-5
        )


def test_targets_that_are_not_there_list_what_is(tokenizer):
    settings = LanguageModelSettings(targets=("q_proj", "v_proj"))
    with pytest.raises(ValueError, match=r"targets q_proj, v_proj must be .*\(t5\); it has k, lm_"):
        wrap(make_model("t5", tokenizer), tokenizer, settings)


def test_a_model_without_q_and_v_lists_what_there_is():
    with pytest.raises(ValueError, match=r"the usual LoRA targets .* \(strange\); it has 0"):
        add_lora(nn.Sequential(nn.Linear(2, 2)), "strange", (), 2, 8.0, 0.0)


def test_a_target_that_is_also_the_embedding(tokenizer):
    settings = LanguageModelSettings(rank=2, targets=("lm_head",))
    with pytest.raises(
        ValueError, match=r"got lm_head, which shares its weight with (.*embed|shared)"
    ):
        wrap(make_model("t5", tokenizer), tokenizer, settings)


def test_a_folder_that_is_none():
    with pytest.raises(FileNotFoundError, match=r"weights must be a folder .* got '/.*/nowhere'"):
        load_model(LanguageModelSettings(weights="nowhere"))


def test_a_folder_without_a_model_says_which_file_is_missing(weights, tmp_path):
    both = r"must have config\.json and model\.safetensors, which are missing"
    with pytest.raises(FileNotFoundError, match=both):
        load_model(LanguageModelSettings(weights=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"/test_.*' .* have model\.safetensors, which"):
        load_model(LanguageModelSettings(weights=str(tmp_path)))


def olora(data, weights, **host):
    settings = read_config(config(data, weights, host={"name": "o-lora", **host}))
    return make_host(settings, Devices())


def test_penalty_is_that_of_the_formula(data, weights):
    host = olora(data, weights, lambda1=0.5, lambda2=[0.0, 0.3, 0.1])
    layers = host.kit.model.layers
    assert host.penalty(0) == 0.0
    for seed, layer in enumerate(layers.values()):
        fill(layer, seed)
    pasts = [layer.A.detach().clone() for layer in layers.values()]
    host.finish(0)
    for seed, layer in enumerate(layers.values()):
        fill(layer, 100 + seed)
    expected = 0.0
    for past, layer in zip(pasts, layers.values(), strict=True):
        for old in past:
            for new in layer.A:
                expected += 0.5 * abs(float(old @ new))
        sizes = (math.sqrt(float((m**2).sum())) for m in (layer.A, layer.B))
        expected += 0.3 * sum(sizes)
    assert float(host.penalty(1)) == pytest.approx(expected, rel=1e-5)


def test_loss_is_cross_entropy_plus_penalty_and_its_gradient_is_finite(data, weights):
    host = olora(data, weights, lambda1=0.5, lambda2=0.1)
    host.finish(0)
    session = host.begin(1)
    batch = session.items.fetch([(1, 0), (1, 1)], 0)
    assert all((layer.B == 0).all() for layer in host.kit.model.layers.values())
    for parameter in session.groups[0].parameters.values():
        parameter.requires_grad_(True)
    loss = session.loss(batch, False)
    expected = host.kit.loss(batch) + host.penalty(1)
    assert loss.item() == pytest.approx(expected.item())
    loss.backward()
    gradients = [parameter.grad for parameter in session.groups[0].parameters.values()]
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_weights_of_tasks_that_are_left_out_go_with_them(data, weights):
    stream = {"tasks": ["agnews", "yahoo", "SST-2"], "leave_out": ["yahoo"]}
    host = {"name": "o-lora", "lambda1": [0.0, 1.0, 2.0], "lambda2": [3.0, 4.0]}
    made = make_host(read_config(config(data, weights, stream=stream, host=host)), Devices())
    assert made.lambda1 == (0.0, 2.0)
    assert made.lambda2 == (3.0, 4.0)


def test_one_weight_per_task(data, weights):
    with pytest.raises(ValueError, match=r"host\.lambda1 must be one number or one per task, 3"):
        olora(data, weights, lambda1=[0.5, 0.5])
    with pytest.raises(ValueError, match="lambda2 must be a finite number >= 0, got -1"):
        olora(data, weights, lambda2=-1.0)
