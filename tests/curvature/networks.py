"""Networks small enough for dense curvature, in float64, and that curvature by torch.func alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev, vmap

from risegrad.core.shapers import Rise
from risegrad.curvature.objective import Objective
from risegrad.curvature.products import NetworkOperator, Operator
from risegrad.curvature.space import Space, make_space, trained_parameters

CLASSES, WIDTH = 3, 4
Pair = tuple[Tensor, Tensor]


def network(seed: int = 0, extra: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(seed)
    middle = [] if extra is None else [extra]
    return nn.Sequential(
        nn.Linear(WIDTH, 5), *middle, nn.Tanh(), nn.Linear(5, CLASSES)
    ).double()  # fmt: skip


def batches(sizes: tuple[int, ...] = (6, 4), seed: int = 1) -> list[Pair]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, WIDTH, generator=generator, dtype=torch.float64),
            torch.randint(CLASSES, (n,), generator=generator),
        )
        for n in sizes
    ]


def dense(operator: Operator) -> Tensor:
    return operator @ torch.eye(operator.space.d, dtype=operator.space.dtype)


def parts(
    model: nn.Module, data: list[Pair], rise: Rise | None = None, loss: nn.Module | None = None
) -> tuple[Objective, Space, dict[str, Tensor]]:
    parameters = trained_parameters(model)
    return Objective(model, data, loss), make_space(parameters, rise or Rise()), parameters


def operator(model: nn.Module, data: list[Pair], kind: str = "ggn", **options) -> NetworkOperator:
    rise, loss = options.pop("rise", None), options.pop("loss", None)
    objective, space, parameters = parts(model, data, rise, loss)
    return NetworkOperator(objective, space, parameters, kind, **options)


def asymmetry(subject: Operator) -> float:
    """``|u'Hv - v'Hu| / (|u| |Hv|)`` for random ``u`` and ``v``."""
    generator = torch.Generator().manual_seed(0)
    u, v = torch.randn(2, subject.space.d, generator=generator, dtype=torch.float64)
    hu, hv = (subject @ u).double(), (subject @ v).double()
    return float((u @ hv - v @ hu).abs() / (u.norm() * hv.norm()))


def flat_function(model: nn.Module, space: Space, x: Tensor) -> tuple[Callable, Tensor]:
    """``theta -> model(x)`` for a flat theta in the space's order, and the theta of now."""
    named = dict(model.named_parameters())
    theta = torch.cat([named[name].detach().reshape(-1) for name in space.names])

    def predict(flat: Tensor) -> Tensor:
        replaced, start = {}, 0
        for name, shape in zip(space.names, space.shapes, strict=True):
            replaced[name] = flat[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return functional_call(model, replaced, (x,))

    return predict, theta


def dense_curvature(model: nn.Module, data: list[Pair], space: Space, kind: str) -> Tensor:
    """The mean over examples of the exact matrix, with cross entropy."""
    loss, model = nn.CrossEntropyLoss(reduction="sum"), model.eval()
    total = torch.zeros(space.d, space.d, dtype=torch.float64)
    for x, y in data:
        predict, theta = flat_function(model, space, x)
        if kind == "hessian":
            total += hessian(lambda t, f=predict, y=y: loss(f(t), y))(theta)
            continue
        jacobian = jacrev(predict)(theta)
        logits = predict(theta)
        if kind == "ggn":
            inner = vmap(hessian(lambda z, label: loss(z, label)))(logits, y)
        else:
            pull = logits.softmax(-1) - nn.functional.one_hot(y, CLASSES)
            inner = pull[:, :, None] * pull[:, None, :]
        total += torch.einsum("nci,ncd,ndj->ij", jacobian, inner, jacobian)
    return total / sum(len(y) for _, y in data)


def dense_gradient(model: nn.Module, data: list[Pair], space: Space) -> Tensor:
    loss = nn.CrossEntropyLoss(reduction="sum")
    total = torch.zeros(space.d, dtype=torch.float64)
    for x, y in data:
        predict, theta = flat_function(model.eval(), space, x)
        total += torch.func.grad(lambda t, f=predict, y=y: loss(f(t), y))(theta)
    return total / sum(len(y) for _, y in data)
