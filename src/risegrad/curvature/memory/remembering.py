"""``remember``: from a model and a few examples to the curvature of what it knows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_int, check_positive_int
from risegrad.common.settings import unknown
from risegrad.core.blocks import listing
from risegrad.core.draws import mix
from risegrad.core.undisturbed import Buffer, Generators, put_back, uncompiled
from risegrad.core.whole_steps import exact_products
from risegrad.curvature.memory.covered_layers import Layer, chosen_layers, is_frozen
from risegrad.curvature.memory.layer_memory import PARTS, LayerMemory
from risegrad.curvature.memory.layer_names import named_parameters, role_of
from risegrad.curvature.memory.layer_watch import Watched, watching
from risegrad.curvature.memory.memory import Memory
from risegrad.curvature.memory.memory_side import Side
from risegrad.curvature.memory.memory_size import BYTES, NUMBER, rank_for
from risegrad.curvature.memory.remembered_outputs import (
    Of,
    Reading,
    choose_rows,
    drawn_score,
    probed_score,
)
from risegrad.curvature.operators.batch_forms import form_of, moved, size_of
from risegrad.curvature.operators.objective import Batches, evaluating

Progress = Callable[[int, int | None], None]
"""Called with the examples seen and those asked for (None: all there are)."""


class MemoryScope(TypedDict, total=False):
    """What of a model is remembered, as further keywords of ``remember``."""

    layers: Sequence[str] | None
    """Patterns over layer names; None: all that is trained, or all if nothing is."""
    exempt: Sequence[str]
    """Patterns over layer names that are left out."""
    strict: bool
    """Every trained parameter must be covered (False)."""
    budget: int
    """Bytes for the memory where no rank is given (64 MiB)."""


def remember(
    model: nn.Module,
    batches: Batches,
    *,
    predict: Reading | None = None,
    examples: int | None = 256,
    of: Of = "predictions",
    rank: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    **scope: Unpack[MemoryScope],
) -> Memory:
    """The curvature of what the model makes of these examples, layer by layer.

    ``batches``: pairs ``(inputs, target)``, mappings as transformers takes them, or inputs alone;
    ``predict(model, batch)`` reads any other form. Labels are not used, but -100 marks positions
    that do not count. ``examples``: how many are taken (None: all). ``of``: "predictions",
    "features", the name of a module, or a function of (model, batch) that gives features.
    ``rank``: eigenpairs kept of each factor; None keeps as many as a byte budget allows.
    ``scope``: ``layers``, ``exempt``, ``strict`` and ``budget``, see ``MemoryScope``.
    The model is left as it was found.
    """
    if examples is not None:
        check_positive_int("examples", examples)
    _check_scope(scope)
    strict, budget = scope.get("strict", False), scope.get("budget", BYTES)
    found, uncovered = chosen_layers(model, scope.get("layers"), scope.get("exempt", ()))
    if strict and uncovered and not is_frozen(model):
        raise ValueError(f"strict: {_reasons(uncovered)}")
    sizes = [n for layer in found.values() if layer.kind != "norm" for n in _factor_sizes(layer)]
    if rank is None:
        kept = rank_for(sizes, budget, _bytes_of_a_number(model))
    else:
        kept = check_positive_int("rank", rank)
    seed = check_int("seed", seed)
    watched = {name: Watched(layer, kept, _own_seed(seed, name)) for name, layer in found.items()}
    with _as_found(model):
        counts = _collect(model, watched, batches, examples, of, predict, seed, progress)
    unreached = _check_reached(watched, of)
    if strict and unreached:
        raise ValueError(f"strict: {_reasons(unreached)}")
    memories = {n: _memory(w, *counts) for n, w in watched.items() if n not in unreached}
    uncovered |= {p: why for n, why in unreached.items() for p in _trained_in(model, n)}
    source = _source(model, of, counts, seed, "budget" if rank is None else rank)
    return Memory(memories, rank=kept, uncovered=uncovered, source=source)


def _check_scope(scope: Mapping[str, object]) -> None:
    for name in scope:
        if name not in MemoryScope.__annotations__:
            hint = unknown(name, list(MemoryScope.__annotations__))
            raise TypeError(f"remember: {name!r} is {hint}")


def _collect(
    model: nn.Module,
    watched: Mapping[str, Watched],
    batches: Batches,
    examples: int | None,
    of: Of,
    predict: Reading | None,
    seed: int,
    progress: Progress | None,
) -> tuple[int, int]:
    """Run over the batches; the examples and the predictions that were seen."""
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(mix(seed, 17) % 2**63)
    score = drawn_score if of == "predictions" else probed_score
    thread = torch.zeros((), device=device, requires_grad=True)
    rows = None
    seen = predictions = 0
    for batch in _taken(batches, device, examples):
        rows = rows or choose_rows(model, batch, of, predict)
        # Checkpointing runs layers again on the way back: they must be watched then too.
        with torch.enable_grad(), watching(watched, thread):
            found = rows(model, batch)
            if len(found):
                _backward(score(found, generator), thread)
        seen, predictions = seen + size_of(batch), predictions + len(found)
        if progress is not None:
            progress(seen, examples)
    _check_seen(seen, predictions, examples)
    return seen, predictions


def _backward(score: Tensor, thread: Tensor) -> None:
    if not score.requires_grad:
        raise ValueError(
            "no gradient reaches any layer to be remembered: what is kept does not depend on them"
        )
    try:
        torch.autograd.grad(score, thread, allow_unused=True)
    except RuntimeError as error:
        if "checkpoint" not in str(error).lower():
            raise
        raise RuntimeError(
            "remember cannot see through reentrant gradient checkpointing: turn it off, "
            f"or use use_reentrant=False ({error})"
        ) from error


def _taken(batches: Batches, device: torch.device, examples: int | None) -> Iterator[Any]:
    """Batches of one form on the device, the last cut so that ``examples`` are seen."""
    if isinstance(batches, Mapping | Tensor | str) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches must be a list or a loader of batches, got {type(batches).__name__}"
        )
    expected, left = None, examples
    for raw in batches:
        batch = _detached(moved(raw, device))
        expected = expected or form_of(batch)
        if form_of(batch) != expected:
            raise ValueError(
                f"batches must all have the form of the first, {expected}; got {form_of(batch)}"
            )
        size = size_of(batch)
        yield batch if left is None or size <= left else _first(batch, left, size)
        left = None if left is None else left - size
        if left is not None and left <= 0:
            return


def _detached(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch.clone() if batch.is_inference() else batch.detach()
    if isinstance(batch, Mapping):
        return {key: _detached(value) for key, value in batch.items()}
    return tuple(map(_detached, batch)) if isinstance(batch, tuple) else batch


def _first(batch: Any, count: int, size: int) -> Any:
    """The first examples of a batch."""
    if isinstance(batch, Tensor):
        return batch[:count] if batch.ndim and len(batch) == size else batch
    if isinstance(batch, Mapping):
        return {key: _first(value, count, size) for key, value in batch.items()}
    return tuple(_first(v, count, size) for v in batch) if isinstance(batch, tuple) else batch


def _check_seen(seen: int, predictions: int, examples: int | None) -> None:
    if not seen:
        raise ValueError("batches must hold at least one batch, got none")
    if examples is not None and seen < examples:
        raise ValueError(
            f"batches must hold {examples} examples, got {seen}: give more, or pass "
            f"examples={seen} (or None: all there are)"
        )
    if not predictions:
        raise ValueError("no position counts in these batches: every label is -100")


def _check_reached(watched: Mapping[str, Watched], of: Of) -> dict[str, str]:
    """Layers that are not remembered, and why.

    Features may do without a layer, predictions only if it is not called. A layer that runs without
    gradients is an error in both: whether what is kept depends on it cannot be seen.
    """
    unused = {name: "not called on these batches" for name, w in watched.items() if not w.called}
    _check_differentiable([n for n, w in watched.items() if w.called and not w.differentiable])
    still = [n for n, w in watched.items() if w.differentiable and w.plain and not w.reached]
    if of == "predictions" and still:
        raise ValueError(
            f"no gradient reaches the output of layer {listing(still)}: the predictions do not "
            "depend on it; name it in exempt to leave it as plain training leaves it"
        )
    reached = [w for w in watched.values() if w.plain and w.reached]
    if reached and not any(w.rows for w in reached):
        raise ValueError(
            "every gradient that came back to the layers is zero: a layer behind them has no "
            "backward pass in eval mode (bitsandbytes on a CPU; torchao has one), or the model is "
            "certain of every prediction"
        )
    unused |= dict.fromkeys(still, "the features do not depend on it")
    unused |= {
        name: f"{type(w.layer.base).__name__} computes something else than "
        + ("n(x) w + b" if w.layer.kind == "norm" else "W a + b")
        for name, w in watched.items()
        if w.plain is False
    }
    if len(unused) == len(watched):
        raise ValueError(f"nothing of the model is covered: {_reasons(unused)}")
    return unused


def _check_differentiable(off: list[str]) -> None:
    if off:
        raise ValueError(
            f"no gradient reaches the output of layer {listing(off)}: it runs without gradients "
            "(torch.no_grad, reentrant checkpointing); turn them on, or name it in exempt to leave "
            "it as plain training leaves it"
        )


def _trained_in(model: nn.Module, layer: str) -> list[str]:
    named = named_parameters(model)
    return [name for name, p in named.items() if p.requires_grad and role_of(name).layer == layer]


def _memory(watched: Watched, examples: int, predictions: int) -> LayerMemory:
    layer, parts = watched.layer, {}
    sums = (watched.inputs, watched.outputs)
    for part, total in zip(PARTS[layer.kind], sums, strict=True):
        divisor = max(watched.rows, 1) if part == "inputs" else predictions
        try:
            parts[part] = _side(total, divisor)
        except FloatingPointError as error:
            raise FloatingPointError(f"{part} of layer {layer.name!r} are not finite") from error
    return LayerMemory(layer.kind, layer.shape, parts, examples, predictions)


def _side(total: Any, divisor: int) -> Side:
    with exact_products(torch.empty(0)):  # factors are made on the CPU
        found: Side = total.factor(divisor) if hasattr(total, "factor") else total.diagonal(divisor)
    return found


@contextmanager
def _as_found(model: nn.Module) -> Iterator[None]:
    """Eval mode without fused shortcuts; modes, buffers and random states come back."""
    generators = Generators()
    buffers = [
        Buffer(module, key, tensor, None if tensor is None else tensor.clone())
        for module in model.modules()
        for key, tensor in module._buffers.items()
    ]
    with ExitStack() as stack:
        stack.callback(generators.put_back)
        for table in _renormed(model):
            stack.callback(put_back, table, table.detach().clone())
        for buffer in buffers:
            stack.callback(buffer.put_back)
        stack.enter_context(torch.inference_mode(False))  # or nothing could be differentiated
        stack.enter_context(uncompiled())
        stack.enter_context(evaluating(model))
        yield


def _renormed(model: nn.Module) -> list[Tensor]:
    """Tables of tokens whose rows every forward pass cuts to a norm, in place."""
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
    return [table.weight for table in tables if table.max_norm is not None]


def _bytes_of_a_number(model: nn.Module) -> int:
    """Factors are in float32, or in float64 if the model has any of it."""
    return 8 if any(p.dtype == torch.float64 for p in model.parameters()) else NUMBER


def _factor_sizes(layer: Layer) -> tuple[int, ...]:
    inputs, outputs = layer.sizes
    return (outputs,) if layer.kind == "embedding" else (inputs, outputs)


def _own_seed(seed: int, name: str) -> int:
    named = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return mix(seed, named) % 2**63


def _reasons(found: Mapping[str, str]) -> str:
    return listing([f"{name} ({reason})" for name, reason in found.items()])


def _source(
    model: nn.Module, of: Of, counts: tuple[int, int], seed: int, rank: int | str
) -> dict[str, Any]:
    return {
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "of": of if isinstance(of, str) else getattr(of, "__name__", "function"),
        "examples": counts[0],
        "predictions": counts[1],
        "seed": seed,
        "rank": rank,
        "torch": torch.__version__,
    }
