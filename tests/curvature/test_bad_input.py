"""Every refusal says what was wrong, what is allowed and what came."""

import re

import pytest
import torch
from torch import nn

from curvature.grouped import grouped
from curvature.networks import batches, network, operator, parts
from curvature.quadratics import problem, space
from risegrad.core.shapers import Rise
from risegrad.curvature import ProductBudget, diagnose
from risegrad.curvature.diagnosis.diagnose import diagnose_operator
from risegrad.curvature.products import DenseOperator, NetworkOperator
from risegrad.theory.calibration import block_size_for, q_for

OLD, NEW = batches(), batches((5,), seed=2)


class Forgetful(nn.Module):
    """Has a parameter that the prediction does not use."""

    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.spare = nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


def diagnosed(model=None, old=OLD, new=NEW, **options):
    return diagnose(network() if model is None else model, old, new, **grouped(**options))


def frozen():
    model = network()
    return model.requires_grad_(False)


def spoiled():
    model = network()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    return model


def as_mapping(pairs):
    return [{"x": x, "labels": y} for x, y in pairs]


H, G, PAST = problem()
DENSE = DenseOperator(H, space())
CASES = [
    (lambda: diagnosed(old=[]), ValueError, "historical must hold at least one batch, got none"),
    (lambda: diagnosed(new=[]), ValueError, "incoming must hold at least one batch, got none"),
    (lambda: diagnosed(old=OLD[0][0]), TypeError,
     "historical must be a list or a loader of batches, got Tensor"),
    (lambda: diagnosed(old=3), TypeError, "historical must be a list or a loader of batches"),
    (lambda: diagnosed(new=[(x, y.double()) for x, y in NEW]), ValueError,
     "incoming batches must all have the form of the historical ones, (float64 with 2 dimensions, "
     "int64 with 1 dimensions); got (float64 with 2 dimensions, float64 with 1 dimensions)"),
    (lambda: diagnosed(old=[OLD[0], (OLD[1][0][:, 0], OLD[1][1])]), ValueError,
     "historical batches must all have the form of the first"),
    (lambda: diagnosed(old=[OLD[0][0]]), TypeError,
     "a batch must be a pair (inputs, target), a mapping with 'labels' or, where none are"),
    (lambda: diagnosed(old=[(x[:0], y[:0]) for x, y in OLD]), ValueError,
     "a batch must hold at least one example"),
    (lambda: diagnosed(loss=nn.CrossEntropyLoss(reduction="none")), ValueError,
     "loss must be a scalar: its reduction must be 'mean' or 'sum', got 'none'"),
    (lambda: diagnosed(loss=lambda p, y: p.sum(1)), ValueError,
     "loss must be a scalar, got shape (5,): use a loss that averages over the batch"),
    (lambda: diagnosed(loss="mse"), TypeError, "loss must be a module or a function, got str"),
    (lambda: diagnosed(loss=lambda p, y: torch.zeros(())), ValueError,
     "the incoming loss does not depend on any parameter"),
    (lambda: diagnosed(Forgetful().double(), rise=Rise(exempt=["used.*"])), ValueError,
     "no gradient of the incoming loss reaches spare.weight, spare.bias"),
    (lambda: diagnosed(frozen()), ValueError, "model has no parameter with requires_grad=True"),
    (lambda: diagnosed(spoiled()), FloatingPointError,
     "the gradient of the incoming loss is not finite"),
    (lambda: diagnosed(network().half()), TypeError,
     "parameter '0.weight' is torch.float16: curvature needs float32 or float64 (model.float())"),
    (lambda: diagnosed(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3).double())), ValueError,
     "all parameters must have one dtype and device; '1.weight' is torch.float64"),
    (lambda: diagnosed(curvature="kfac"), ValueError,
     "curvature must be one of hessian, ggn, empirical-fisher, fisher; got 'kfac'"),
    (lambda: diagnosed(curvature="fisher", loss=lambda p, y: p.square().mean()), ValueError,
     "curvature 'fisher' needs a loss that is a likelihood, one of CrossEntropyLoss, MSELoss, "
     "BCEWithLogitsLoss; got MeanLoss"),
    (lambda: diagnosed(step=0.0), ValueError, "step must be a finite number > 0, got 0.0"),
    (lambda: diagnosed(damping=-1.0), ValueError, "damping must be a finite number > 0, got -1.0"),
    (lambda: diagnosed(rise=Rise(blocks="group")), ValueError,
     "blocks 'group' needs an optimizer's groups"),
    (lambda: diagnosed(rise=Rise(exempt=["*"])), ValueError,
     "exempt names every trained parameter: nothing is left to diagnose"),
    (lambda: diagnosed(rise=Rise(exempt=["head.*"])), ValueError,
     "exempt: no parameter matches 'head.*'"),
    (lambda: diagnosed(budget=ProductBudget(memory=100)), ValueError,
     "memory must hold at least six vectors of 43 numbers, 2,064 bytes; got 100"),
    (lambda: ProductBudget(probes=0), ValueError, "probes must be an integer >= 8, got 0"),
    (lambda: ProductBudget(columns=0), ValueError, "columns must be an integer >= 1, got 0"),
    (lambda: diagnose_operator(DENSE, G[:5]), ValueError, "g must have shape (21,), got (5,)"),
    (lambda: diagnose_operator(DENSE, G, PAST[:5]), ValueError, "h must have shape (21,), got (5"),
    (lambda: diagnose_operator(DENSE, G * float("inf")), FloatingPointError, "g must be finite"),
    (lambda: diagnose_operator(DenseOperator(H * float("nan"), space()), G), FloatingPointError,
     "NaN or infinity in a curvature product: look at the historical batches and the weights"),
    (lambda: diagnose_operator(DenseOperator(H + H.triu(), space()), G), FloatingPointError,
     "curvature products are not symmetric: z'Hw and w'Hz differ by"),
    (lambda: DenseOperator(H[:3], space()), ValueError, "matrix must have shape (21, 21), got (3,"),
    (lambda: DENSE @ G[:3], ValueError, "a vector must have shape (21,) or (21, K), got (3,)"),
    (lambda: DenseOperator(H, space(), columns=0), ValueError, "columns must be an integer >= 1"),
    (lambda: operator(network(), OLD, "fisher", samples=0), ValueError,
     "samples must be an integer >= 1, got 0"),
    (lambda: q_for(1.0, 8), ValueError, "mean_factor must be a number in (0, 1), got 1.0"),
    (lambda: block_size_for(0.0, 8), ValueError, "mean_factor must be a number in (0, 1), got 0.0"),
    (lambda: q_for(0.5, 0), ValueError, "d must be an integer >= 1, got 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), CASES, ids=[case[2][:50] for case in CASES])
def test_refusals(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_nan_in_the_historical_batches_only():
    old = [(x.clone().fill_(float("nan")), y) for x, y in OLD]
    with pytest.raises(FloatingPointError, match="the gradient of the historical loss is not fin"):
        diagnosed(old=old)
    objective, where, parameters = parts(network(), old)
    with pytest.raises(FloatingPointError, match="NaN or infinity in a curvature product"):
        NetworkOperator(objective, where, parameters) @ torch.ones(where.d)


def test_batch_norm_in_train_mode_is_measured_in_eval_mode():
    """Documented handling: running statistics, which stay what they are."""
    model = network(extra=nn.BatchNorm1d(5).double()).train()
    evaluated = diagnosed(model, budget=ProductBudget(probes=8))
    assert model.training
    assert model[1].num_batches_tracked == 0
    assert diagnosed(model.eval(), budget=ProductBudget(probes=8)).to_dict() == evaluated.to_dict()


def test_a_missing_curvlinops_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "curvlinops", None)
    with pytest.raises(ImportError, match=r"pip install \"risegrad\[curvature\]\""):
        diagnosed()


def test_mean_factors_are_reached():
    from risegrad.theory.calibration import mean_factor

    for wanted in (0.02, 0.3, 0.5, 0.9):
        for d in (1, 7, 8192):
            q = q_for(wanted, d)
            assert mean_factor(d, q) >= wanted - 1e-12
            assert q == 1 or mean_factor(d, q - 1) < wanted
        for q in (1, 4, 64):
            size = block_size_for(wanted, q)
            assert size == 0 or mean_factor(size, q) >= wanted - 1e-12
            assert mean_factor(size + 1, q) < wanted
