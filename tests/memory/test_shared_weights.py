"""A tensor of two layers is left out under all its names, trained or frozen."""

import pytest
import torch
from torch import nn

import risegrad
from memory.subjects import gpt2, texts, with_lora


class HeadFirst(nn.Module):
    """A language model whose head is defined before the table that it shares its weight with."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(6, 9, bias=False)
        self.body = nn.Linear(6, 6)
        self.table = nn.Embedding(9, 6)
        self.table.weight = self.head.weight
        self.double()

    def forward(self, tokens):
        return self.head(self.body(self.table(tokens)))


class Twins(nn.Module):
    """Two linear layers with one weight or one bias."""

    def __init__(self, part):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        setattr(self.b, part, getattr(self.a, part))

    def forward(self, x):
        return self.head(self.b(self.a(x).tanh()))


def remember(model, batch, **options):
    return risegrad.remember(model, [batch], examples=None, **options)


@pytest.mark.parametrize("trained", [True, False])
def test_a_head_before_its_table(trained):
    model = HeadFirst().requires_grad_(trained)
    found = remember(model, torch.arange(9)[None].expand(4, 9))
    assert list(found) == ["body"]
    assert found.uncovered == {"head.weight": "head and table share one weight"}
    model.requires_grad_(True)
    assert found.bind(model).uncovered == ["head.weight"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = risegrad.attach(
        optimizer, risegrad.Informed(found), model.named_parameters(), "gradient"
    )
    gradient = torch.randn(9, 6, dtype=torch.float64)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model.head.weight.grad = gradient.clone()
    optimizer.step()
    assert torch.equal(model.head.weight.grad, gradient)
    assert "head.weight" in str(handle)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_two_linear_layers(part, trained):
    model = Twins(part).requires_grad_(trained)
    found = remember(model, torch.randn(8, 4))
    assert list(found) == ["head"]
    assert found.uncovered[f"a.{part}"] == f"a and b share one {part}"
    with pytest.raises(ValueError, match=f"nothing of the .* with a and b share one {part}"):
        remember(model, torch.randn(8, 4), layers=["a", "b"])


def test_a_frozen_weight_of_two_layers_whose_biases_are_trained():
    """Thawed later, it would be filtered as the first layer's alone."""
    model = Twins("weight")
    model.a.weight.requires_grad_(False)
    found = remember(model, torch.randn(8, 4))
    assert list(found) == ["head"]
    assert found.uncovered["b.bias"] == "a and b share one weight"


def test_strict_asks_for_what_is_trained():
    remember(Twins("weight").requires_grad_(False), torch.randn(8, 4), strict=True)
    with pytest.raises(ValueError, match=r"strict: a.weight \(a and b share one weight\)"):
        remember(Twins("weight"), torch.randn(8, 4), strict=True)


def test_a_head_that_holds_its_bias_twice_is_one_layer():
    """As BERT's: the bias of its last layer is also its own."""

    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 3)
            self.bias = self.out.bias

        def forward(self, x):
            return self.out(x)

    assert list(remember(Head(), torch.randn(8, 4))) == ["out"]


def test_a_table_that_is_also_the_head():
    frozen = gpt2().requires_grad_(False)
    plain = {k: texts()[0][k] for k in ("input_ids", "attention_mask")}
    found = remember(frozen, plain)
    assert not {"lm_head", "transformer.wte"} & set(found)
    assert "transformer.wpe" in found
    assert "transformer.wte.weight" in found.bind(gpt2()).uncovered


def test_a_lora_over_a_shared_weight_is_its_layers_own():
    model = with_lora(gpt2(), ["lm_head"])
    found = remember(model, {"input_ids": texts()[0]["input_ids"]})
    assert list(found) == ["lm_head"]
    assert found.uncovered == {}
    assert len(found.sides(model)) == 2
