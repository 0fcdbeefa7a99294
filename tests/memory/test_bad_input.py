"""Every refusal says what was wrong, what is allowed and what came; nothing is left changed."""

import pytest
import torch
from torch import nn

import risegrad
from memory.subjects import bert, network, texts, vectors

DATA = vectors()


class Silent(nn.Module):
    """Has a layer that runs without gradients and one that is never called."""

    def __init__(self):
        super().__init__()
        self.inner, self.head, self.spare = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(4, 4)
        self.double()

    def forward(self, x):
        with torch.no_grad():
            hidden = self.inner(x)
        return self.head(hidden)


class Apart(nn.Module):
    """Its prediction does not depend on its layer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3).double()

    def forward(self, x):
        self.layer(x)
        return x[:, :3]


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4).double())

    def forward(self, x):
        return x * self.scale


def spoiled(value=float("nan"), where=0):
    model = network()
    model[where].weight.data[0, 0] = value
    return model


def remembered(model=None, batches=DATA, **options):
    return risegrad.remember(
        network() if model is None else model, batches, **({"examples": None} | options)
    )


def overflowing():
    """Finite predictions, but second moments beyond float32."""
    model = nn.Linear(4, 3)
    return remembered(
        model, [(x.float() * 1e30, y) for x, y in DATA], of=lambda m, b: m(b[0]) / 1e30
    )


CASES = [
    (lambda: remembered(batches=[]), ValueError, "batches must hold at least one batch, got none"),
    (lambda: remembered(examples=0), ValueError, "examples must be an integer >= 1, got 0"),
    (lambda: remembered(batches=DATA[0][0]), TypeError, "list or a loader of batches, got Tensor"),
    (lambda: remembered(batches=5), TypeError, "list or a loader of batches, got int"),
    (lambda: remembered(batches=[DATA[0], DATA[0][0]]), ValueError, "all have the form of the fir"),
    (lambda: remembered(batches=[(DATA[0][0][:0], DATA[0][1][:0])]), ValueError,
     "a batch must hold at least one example"),
    (lambda: remembered(batches=["text"]), TypeError, "there is no tokenizer: pass tokenizer="),
    (lambda: remembered(batches=[3]), ValueError, "a batch must hold at least one example"),
    (lambda: remembered(batches=[(*DATA[0], 1)]), TypeError, "pass predict= for another form"),
    (lambda: remembered(batches=[(DATA[0][0], None)]), TypeError, "pass predict= for another form"),
    (lambda: remembered(batches=[(x, torch.full_like(y, -100)) for x, y in DATA]), ValueError,
     "no position counts in these batches: every label is -100"),
    (lambda: remembered(rank=0), ValueError, "rank must be an integer >= 1, got 0"),
    (lambda: remembered(budget=0), ValueError, "budget must be an integer >= 1, got 0"),
    (lambda: remembered(seed=0.5), TypeError, "seed must be an integer"),
    (lambda: remembered(of="featurs"), ValueError, "the name of a module, got 'featurs'; the mod"),
    (lambda: remembered(of=3), TypeError, "or a function of .* got int"),
    (lambda: remembered(of=lambda m, b: None), TypeError, "must return a tensor .* got NoneType"),
    (lambda: remembered(of=lambda m, b: m(b[0])[:, 0]), TypeError, r"must return .* \(6,\)"),
    (lambda: remembered(predict=lambda m, b: m(b[0])[:, :1]), ValueError,
     r"at least two classes in the last dimension of the prediction, got shape \(6, 1\): use of="),
    (lambda: remembered(layers=["no*"]), ValueError, r"layers: no layer matches 'no\*'; the"),
    (lambda: remembered(exempt=["no"]), ValueError, "exempt: no layer matches 'no'"),
    (lambda: remembered(exempt=["0", "2"]), ValueError, "nothing of the model is covered"),
    (lambda: remembered(Scales()), ValueError, "nothing of the model is covered: .* got Scales"),
    (lambda: remembered(Silent()), ValueError,
     "no gradient reaches the output of layer inner: it runs without gradients"),
    (lambda: remembered(Apart()), ValueError, "no gradient reaches any layer: the output"),
    (lambda: remembered(Apart(), of="layer", layers=["layer"], predict=lambda m, b: b[0]),
     ValueError, "of names a module that the model does not call"),
    (lambda: remembered(Silent(), exempt=["inner"], strict=True), ValueError,
     r"strict: inner.weight \(exempt\), inner.bias \(exempt\)"),
    (lambda: remembered(Silent().requires_grad_(False), layers=["head", "spare"], strict=True),
     ValueError, r"strict: spare \(not called on these batches\)"),
    (lambda: remembered(Silent(), layers=["spare"], of=lambda m, b: m(b[0])), ValueError,
     r"no gradient reaches any layer|nothing of the model is covered: spare \(not called"),
    (lambda: remembered(spoiled()), FloatingPointError, "the model's predictions are not finite"),
    (lambda: remembered(spoiled(), of="features"), FloatingPointError, "features are not finite"),
    (overflowing, FloatingPointError, "inputs of layer '' are not finite"),
    (lambda: remembered(bert().bert, [{"input_ids": b["input_ids"]} for b in texts()]), TypeError,
     "the model returns no logits but .*: pass predict=, or of='features'"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "kind", "message"), CASES)
def test_bad_input(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_layers_that_are_not_called_are_listed():
    found = remembered(Silent(), exempt=["inner"])
    assert list(found) == ["head"]
    assert found.uncovered == {
        "inner.weight": "exempt", "inner.bias": "exempt",
        "spare.weight": "not called on these batches", "spare.bias": "not called on these batches",
    }  # fmt: skip


def test_a_loader_is_read_no_further_than_needed():
    read = []

    def loader():
        for number, batch in enumerate(vectors((4, 4, 4, 4))):
            read.append(number)
            yield batch

    risegrad.remember(network(), loader(), examples=6)
    assert read == [0, 1]
