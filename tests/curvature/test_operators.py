"""Products are those of the dense matrix, symmetric, and leave the model as it was."""

import pytest
import torch
from torch import nn

from curvature.networks import asymmetry, batches, dense, dense_curvature, network, operator, parts
from references import STANDARD_ERRORS, assert_close
from risegrad.curvature.products import KINDS, NetworkOperator


@pytest.mark.parametrize("kind", ["hessian", "ggn", "empirical-fisher"])
def test_products_are_those_of_the_dense_matrix(kind):
    model, data = network(), batches()
    subject = operator(model, data, kind, columns=7)
    assert_close(dense(subject), dense_curvature(model, data, subject.space, kind))
    assert subject.products == subject.space.d


def test_the_sampled_fisher_averages_to_the_ggn():
    model, data = network(), batches((5, 3))
    _, space, _ = parts(model, data)
    draws = torch.stack([dense(operator(model, data, "fisher", seed=seed, columns=50))
                         for seed in range(100)])  # fmt: skip
    expected = dense_curvature(model, data, space, "ggn")
    error = draws.std(0) / len(draws) ** 0.5
    assert ((draws.mean(0) - expected).abs() <= STANDARD_ERRORS * error + 1e-12).all()
    assert torch.linalg.eigvalsh(draws[0])[0] > -1e-12


def test_a_sampled_fisher_is_one_matrix_however_it_is_multiplied():
    model, data = network(), batches()
    one, many = (operator(model, data, "fisher", seed=3, columns=k) for k in (1, 8))
    v = torch.randn(one.space.d, 3, dtype=torch.float64)
    assert_close(one @ v, many @ v)
    other = operator(model, data, "fisher", seed=4, columns=50)
    assert not torch.allclose(one @ v, other @ v)


def test_the_sampled_fisher_of_many_samples_is_closer():
    model, data = network(), batches()
    _, space, _ = parts(model, data)
    exact = dense_curvature(model, data, space, "ggn")
    errors = [
        (dense(operator(model, data, "fisher", samples=n, columns=50)) - exact).norm()
        for n in (1, 400)
    ]
    assert errors[1] < errors[0] / 4


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_symmetric_with_dropout_and_batch_statistics(kind):
    model = network(extra=nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.5))).double()
    model[1][0].running_mean.uniform_(-1, 1)
    model.train()
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    assert asymmetry(operator(model, batches(), kind)) < 1e-12
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())


def test_flags_of_single_modules_come_back():
    model = network(extra=nn.Dropout(0.5))
    model.train()
    model[1].eval()
    subject = operator(model, batches())
    subject @ torch.ones(subject.space.d, dtype=torch.float64)
    assert [module.training for module in model] == [True, False, True, True]


def test_a_loss_that_sums():
    model, data = network(), batches()
    mean = operator(model, data, "hessian", columns=50)
    total = operator(model, data, "hessian", loss=nn.CrossEntropyLoss(reduction="sum"), columns=50)
    assert_close(dense(total), 10 * dense(mean))


def test_uneven_batches_count_by_their_examples():
    """One matrix, whatever the cut into batches."""
    model, (first, second) = network(), batches((6, 4))
    joined = [(torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]]))]
    for kind in ("hessian", "ggn", "empirical-fisher"):
        assert_close(
            dense(operator(model, joined, kind, columns=50)),
            dense(operator(model, [first, second], kind, columns=50)),
        )


def test_frozen_parameters_stay_out():
    model = network()
    model[0].weight.requires_grad_(False)
    subject = operator(model, batches())
    assert subject.space.names == ("0.bias", "2.weight", "2.bias")
    assert_close(dense(subject), dense_curvature(model, batches(), subject.space, "ggn"))


def test_a_plain_function_as_loss():
    model, data = network(), batches()
    objective, space, parameters = parts(
        model, data, loss=lambda p, y: nn.functional.cross_entropy(p, y)
    )
    subject = NetworkOperator(objective, space, parameters, "hessian")
    assert_close(dense(subject), dense_curvature(model, data, space, "hessian"))
