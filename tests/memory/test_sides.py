"""From a layer's map to each parameter, and back to what moving it does to the layer."""

import pytest
import torch
from peft import LoraConfig
from torch import nn

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
from references import assert_close
from risegrad.memory.layers import PAIR, named_parameters, role_of
from risegrad.memory.sides import Bound, variants_named_like_lora

Q = "encoder.block.0.layer.0.SelfAttention.q"


def inputs_only():
    return [{"input_ids": batch["input_ids"]} for batch in texts()]


def images():
    x = torch.randn(4, 2, 6, 6, generator=generator(), dtype=torch.float64)
    return [(x, torch.zeros(4).long())]


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(2, 3, 3).double(), nn.Linear(48, 3).double()

    def forward(self, x):
        return self.head(self.conv(x).relu().flatten(1))


SUBJECTS = {
    "linear": (network, vectors),
    "conv1d": (gpt2, inputs_only),
    "conv2d": (Pictures, images),
    "bert": (bert, inputs_only),
    "lora": (lambda: with_lora(t5(), ["q", "v"]), texts),
    "lora on conv1d": (lambda: with_lora(gpt2(), ["c_attn"], fan_in_fan_out=True), inputs_only),
    "lora on conv2d": (lambda: with_lora(Pictures(), ["conv"]), images),
    "lora and biases": (lambda: with_lora(bert(), ["query"], bias="all"), inputs_only),
    "lora with its own bias": (lambda: with_lora(t5(), ["q"], lora_bias=True), texts),
}


def subject(name):
    make, batches = SUBJECTS[name]
    model = make()
    return model, risegrad.remember(model, batches(), examples=None)


def weight_of(model, layer):
    """The whole weight of a layer's map, adapters included."""
    module = next(
        m for n, m in model.named_modules()
        if role_of(n + ".weight").layer == layer and (hasattr(m, "weight") or hasattr(m, "lora_A"))
    )  # fmt: skip
    if not hasattr(module, "lora_A"):
        return module.weight.detach().clone()
    return (module.base_layer.weight + module.get_delta_weight("default")).detach().clone()


def moves(name, kept, model):
    """A random move of a parameter, small: LoRA's effect is then linear in it."""
    parameter = named_parameters(model)[name]
    return torch.randn(parameter.shape, generator=generator(7), dtype=torch.float64)


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_quadratic_form_is_that_of_the_layer(name):
    """``tr(L X R X')`` of a parameter's move is ``tr(D dW S dW')`` of what the layer does."""
    model, memory = subject(name)
    for parameter, sides in memory.sides(model).items():
        role, move = role_of(parameter), moves(parameter, memory, model)
        kept = memory[role.layer]
        if kept.kind == "norm":
            expected = 2 * (kept.damage(move) if role.part == "weight" else kept.bias_damage(move))
        elif "bias" in role.part:
            scale = 3 if "lora" in role.part else 1  # alpha / r
            expected = scale**2 * move @ dense(kept.outputs) @ move
        else:
            tensor = named_parameters(model)[parameter]
            before = weight_of(model, role.layer)
            tensor.data += move
            change = kept.matrix(weight_of(model, role.layer) - before)
            tensor.data -= move
            s = dense(kept.inputs)
            expected = (dense(kept.outputs) @ change @ s @ change.T).trace()
        assert sides.quadratic(move) == pytest.approx(float(expected), rel=1e-6), parameter


@pytest.mark.parametrize("name", SUBJECTS)
def test_the_filter_is_that_of_both_sides(name):
    model, memory = subject(name)
    for parameter, sides in memory.sides(model).items():
        move = moves(parameter, memory, model)
        expected = sides.matrix(move)
        for side, turn in ((sides.left, False), (sides.right, True)):
            matrix = dense(side).double()
            eye = torch.eye(side.dim, dtype=torch.float64)
            inverse = torch.linalg.inv(matrix / side.mean + 0.3 * eye)
            expected = expected @ inverse if turn else inverse @ expected
        found = sides.filtered(move, 0.3)
        assert found.shape == move.shape
        assert (sides.matrix(found) - expected).abs().max() < 1e-6 * expected.abs().max(), parameter


def test_all_that_is_trained_and_covered_has_sides():
    for name in SUBJECTS:
        model, memory = subject(name)
        trained = [n for n, p in named_parameters(model).items() if p.requires_grad]
        assert sorted([*memory.sides(model), *memory.uncovered]) == sorted(trained), name


def test_weight_and_bias_are_filtered_by_one_standard():
    """As rows of one matrix ``[W b]`` with the factor ``diag(S, 1)``, over the mean of ``S``."""
    model, memory = subject("linear")
    sides = memory.sides(model)
    weight, bias = (moves(f"0.{part}", memory, model) for part in ("weight", "bias"))
    kept = memory["0"]
    joint = torch.block_diag(dense(kept.inputs), torch.ones(1, 1).double()) / kept.inputs.mean
    right = torch.linalg.inv(joint + 0.3 * torch.eye(5).double())
    left = dense(kept.outputs) / kept.outputs.mean + 0.3 * torch.eye(5).double()
    expected = torch.linalg.inv(left) @ torch.cat([weight, bias[:, None]], dim=1) @ right
    assert_close(sides["0.weight"].filtered(weight, 0.3), expected[:, :4])
    assert_close(sides["0.bias"].filtered(bias, 0.3), expected[:, 4])
    assert {s.group for s in sides.values()} == {"0", "2"}


def test_norms_too():
    model, memory = subject("bert")
    sides, name = memory.sides(model), "bert.encoder.layer.0.output.LayerNorm"
    kept = memory[name]
    for part, side in (("weight", kept.inputs), ("bias", kept.outputs)):
        move = moves(f"{name}.{part}", memory, model)
        one = 1 / (1 + 0.3)  # the input side
        expected = move / (side.values / kept.inputs.mean + 0.3) * one
        assert_close(sides[f"{name}.{part}"].filtered(move, 0.3), expected)
        assert sides[f"{name}.{part}"].group == name


def test_the_matrices_of_a_lora_are_groups_of_their_own():
    model, memory = subject("lora")
    assert all(sides.group == name for name, sides in memory.sides(model).items())


def test_lora_has_small_factors_of_the_present_values():
    model, memory = subject("lora")
    bound = memory.bind(model)
    name = f"base_model.model.{Q}.lora_A.default.weight"
    named = named_parameters(model)
    b = named[name.replace("lora_A", "lora_B")]
    for scale in (1.0, 2.0):
        b.data *= scale
        left = bound.now()[name].left
        expected = 9 * b.T @ dense(memory[Q].outputs) @ b  # alpha / r = 3
        assert left.dim == 2
        assert_close(dense(left), expected.detach())


def test_a_fresh_lora_is_shaped_by_the_inputs_alone():
    model = with_lora(t5(), ["q"], filled=False)
    memory = risegrad.remember(t5(), texts(), examples=None)
    name = f"base_model.model.{Q}.lora_A.default.weight"
    sides, move = memory.sides(model)[name], moves(name, memory, model)
    expected = memory[Q].inputs.filtered(move.T, 0.3).T / 0.3
    assert_close(sides.filtered(move, 0.3), expected)


def test_named_parameters_serve_as_well_as_the_model():
    """An attachment knows names and tensors only; filters do not depend on LoRA's scale."""
    model, memory = subject("lora")
    for named in (model.named_parameters(), dict(model.named_parameters())):
        found = memory.sides(named)
        for name, sides in memory.sides(model).items():
            move = moves(name, memory, model)
            assert_close(found[name].filtered(move, 0.3), sides.filtered(move, 0.3))


def test_wrappers_in_names_do_not_matter():
    model = network()
    memory = risegrad.remember(torch.nn.DataParallel(model), vectors(), examples=None,
                               predict=lambda m, b: (model(b[0]), b[1]))  # fmt: skip
    assert set(memory) == {"0", "2"}
    assert set(memory.sides(torch.nn.DataParallel(model))) == {
        "0.weight", "0.bias", "2.weight", "2.bias",
    }  # fmt: skip


def test_dora_is_not_covered():
    model = with_lora(t5(), ["q"], use_dora=True)
    memory = risegrad.remember(model, texts(), examples=None)
    assert any("variant of LoRA" in reason for reason in memory.uncovered.values())
    with pytest.raises(ValueError, match="covers no trained parameter of the model: it knows"):
        memory.sides(model)


def test_steps_do_not_repeat_eigendecompositions(monkeypatch):
    model, memory = subject("lora")
    bound = Bound(memory, model)
    move = {name: torch.ones_like(named_parameters(model)[name]) for name in bound.covered}
    sizes = []
    plain = torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda m: sizes.append(len(m)) or plain(m))
    for _ in range(3):
        for name, sides in bound.now().items():
            sides.filtered(move[name], 0.3)
    large, small = [n for n in sizes if n > 2], [n for n in sizes if n == 2]
    assert len(large) == 2 * len(memory)
    assert len(small) == 3 * len(move)


def test_a_memory_of_another_model_is_named():
    _, memory = subject("linear")
    other = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    with pytest.raises(ValueError, match=r"parameter '0.weight' must have shape \(5, 4\), got \(6"):
        memory.sides(other)
    with pytest.raises(ValueError, match=r"of another model: 0 \(linear \(6, 4\) in the model"):
        memory.check_fits(other)
    with pytest.raises(ValueError, match=r"of another model: 0 \(missing\), 2 \(missing\)"):
        memory.check_fits(nn.Linear(4, 5))
    with pytest.raises(
        ValueError, match=r"it knows the layers 0, 2, the model trains weight, bias"
    ):
        memory.sides(nn.Linear(4, 5))
    lora = with_lora(nn.ModuleDict({"0": nn.Linear(6, 5)}), ["0"])
    with pytest.raises(ValueError, match=r"lora_A.default.weight' must have shape \(2, 4\), got"):
        memory.sides(lora)
    memory.check_fits(network())


def test_without_modules_a_lora_has_no_scale():
    """Filters do not depend on it; the quadratic form does, as the docs say."""
    model = with_lora(t5(), ["q"])
    memory = risegrad.remember(model, texts(), examples=None)
    whole, by_name = memory.sides(model), memory.sides(model.named_parameters())
    assert set(whole) == set(by_name)
    for name, sides in whole.items():
        x = torch.randn(dict(model.named_parameters())[name].shape).double()
        assert_close(by_name[name].filtered(x, 0.1), sides.filtered(x, 0.1))
        assert_close(9 * by_name[name].quadratic(x), sides.quadratic(x))


@pytest.mark.parametrize("variant", [{"use_dora": True}, {"alora_invocation_tokens": [3]}])
def test_variants_of_lora_are_covered_nowhere(variant):
    memory = risegrad.remember(gpt2(), inputs_only(), examples=None, layers=["*.c_attn"])
    options = {"fan_in_fan_out": True, "task_type": "CAUSAL_LM"} | variant
    model = with_lora(gpt2(), ["c_attn"], **options)
    pairs = {n for n, p in named_parameters(model).items() if role_of(n).part in PAIR}
    assert pairs <= set(risegrad.remember(model, inputs_only(), examples=None).uncovered)
    with pytest.raises(ValueError, match="covers no trained parameter of the model"):
        memory.penalty(model)
    with pytest.raises(ValueError, match="covers no trained parameter of the model"):
        memory.bind(model)
    told = set() if "use_dora" in variant else pairs
    assert set(variants_named_like_lora(model)) == told


def test_a_variant_on_a_layer_leaves_the_plain_one_beside_it():
    model = with_lora(t5(), ["q"])
    model.add_adapter("other", LoraConfig(r=2, target_modules=["q"], use_dora=True))
    model.double().base_model.set_adapter(["default", "other"])
    memory = risegrad.remember(t5(), texts(), examples=None)
    for bound in (memory.bind(model), memory.bind(model.named_parameters())):
        assert bound.covered
        assert {role_of(n).adapter for n in bound.covered if "lora_" in n} == {"default"}
