"""The outputs to keep, as rows of numbers, and a random scalar of them.

The second moments of the scalar's gradients are the curvature:

- predictions: minus the log-probability of a label drawn from the model itself, which gives the
  Fisher matrix of ``softmax``;
- features: their product with random signs, which gives ``J'J``, the Gauss-Newton matrix of half
  their squared distance.

Neither needs a label; labels only say which positions count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from risegrad.core.blocks import listing
from risegrad.core.draws import mix
from risegrad.curvature.batches import IGNORED
from risegrad.curvature.targets import Reader, axes, counted, flat
from risegrad.memory.layers import all_layers, layer_name

Draws = Callable[[int], Tensor]
"""``draws(width)``: for each row so many numbers between 0 and 1."""
TABLE = 64
"""Rows whose numbers are drawn at once."""
Rows = Callable[[nn.Module, Any], Tensor]
"""``rows(model, batch)``: one row for each prediction (or feature vector) that counts."""
Of = str | Callable[[nn.Module, Any], Tensor]
Reading = Callable[[nn.Module, Any], Any]
"""``predict(model, batch)``: a prediction, or a pair of it and its target."""


def drawn_score(rows: Tensor, draws: Draws) -> Tensor:
    """Minus the log-probabilities of labels drawn from ``softmax(rows)``, added up."""
    if rows.shape[-1] < 2:
        raise ValueError(
            "of='predictions' needs at least two classes in the last dimension of the prediction, "
            f"got shape {tuple(rows.shape)}: use of='features'"
        )
    wide = rows if rows.dtype == torch.float64 else rows.float()
    below = wide.detach().softmax(-1).cumsum(-1)
    if not bool(below[:, -1].isfinite().all()):
        raise FloatingPointError("the model's predictions are not finite")
    most = below[:, -1:]
    drawn = torch.minimum(draws(1).to(below) * most, torch.nextafter(most, 0 * most))
    labels = torch.searchsorted(below, drawn, right=True)[:, 0]
    return cross_entropy(wide, labels, reduction="sum")


def probed_score(rows: Tensor, draws: Draws) -> Tensor:
    """The rows times random signs, added up."""
    if not bool(rows.detach().isfinite().all()):
        raise FloatingPointError("the model's features are not finite")
    signs = 1 - 2 * (draws(rows.shape[-1]) < 0.5).to(rows)
    return (rows * signs).sum()


def uniform(seed: int, start: int, count: int, width: int) -> Tensor:
    """Rows ``start`` to ``start + count`` of one endless table of numbers between 0 and 1.

    What a row draws is decided by its place among all rows, not by the batch or the process that it
    is in, and does not depend on the kind of CPU, as torch's own ``multinomial`` does.
    """
    tables = []
    for number in range(start // TABLE, (start + count - 1) // TABLE + 1):
        generator = torch.Generator().manual_seed(mix(seed, 17, number) % 2**63)
        tables.append(torch.rand(TABLE, width, dtype=torch.float64, generator=generator))
    return torch.cat(tables)[start % TABLE :][:count]


def choose_rows(model: nn.Module, batch: Any, of: Of, predict: Reading | None) -> Rows:
    """The way to the rows that ``of`` names, for batches of this form."""
    if callable(of):
        return lambda m, b: flat(_tensor(of(m, b), "of"))
    if not isinstance(of, str):
        raise TypeError(
            "of must be 'predictions', 'features', the name of a module or a function of "
            f"(model, batch), got {type(of).__name__}"
        )
    if of == "predictions":
        if predict is None:
            return Reader(model, batch, nn.CrossEntropyLoss()).rows
        return lambda m, b: counted(*_parted(predict(m, b)))[0]
    reader = Reader(model, batch)
    if of != "features":
        module, run = _find(model, of), predict or reader.run
        return lambda m, b: reader.positions(_output_of(module, lambda: run(m, b)), b, module)
    if predict is None:
        return lambda m, b: reader.positions(_given_to_head(m, lambda: reader.run(m, b)), b)
    return lambda m, b: _answered_features(*_parted(predict(m, b)))


def _parted(found: Any) -> tuple[Tensor, Any]:
    prediction, target = found if isinstance(found, tuple) else (found, None)
    return _tensor(prediction, "predict"), target


def _answered_features(values: Tensor, target: Any) -> Tensor:
    """Those whose target counts; they need no classes, and their targets may be anything."""
    fitting = axes(values, target) if isinstance(target, Tensor) else []
    return flat(values.movedim(fitting[0], -1)[target != IGNORED] if fitting else values)


def _given_to_head(model: nn.Module, run: Callable[[], Any]) -> Tensor:
    """What the last linear layer is given, if the model returns what that layer makes of it."""
    heads = [layer.module for layer in all_layers(model).values() if layer.kind in _HEADS]
    with _calls(heads) as calls:
        found = run()
    out = getattr(found, "logits", getattr(found, "last_hidden_state", found))
    return _tensor(next((x for x, made in reversed(calls) if made is out), out), "the model")


_HEADS = ("linear", "conv1d")


def _tensor(found: Any, what: str) -> Tensor:
    if isinstance(found, tuple) and found:
        found = found[0]
    if not isinstance(found, Tensor) or found.ndim < 2:
        shown = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise TypeError(f"{what} must return a tensor (examples, numbers), got {shown}")
    return found


def _find(model: nn.Module, name: str) -> nn.Module:
    modules: dict[str, nn.Module] = {
        layer_name(own): module for own, module in model.named_modules()
    }
    modules |= dict(model.named_modules())
    if not name or name not in modules:
        raise ValueError(
            "of must be 'predictions', 'features' or the name of a module, got "
            f"{name!r}; the modules are {listing([own for own in modules if own])}"
        )
    return modules[name]


def _output_of(module: nn.Module, run: Callable[[], Any]) -> Tensor:
    with _calls([module]) as calls:
        run()
    if not calls:
        raise ValueError("of names a module that the model does not call on these batches")
    made = calls[-1][1]
    return _tensor(getattr(made, "last_hidden_state", made), "of")


@contextmanager
def _calls(modules: list[nn.Module]) -> Iterator[list[tuple[Any, Any]]]:
    """The first input and the output of every call, in order."""
    calls: list[tuple[Any, Any]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        calls.append((args[0] if args else next(iter(kwargs.values()), None), out))

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()
