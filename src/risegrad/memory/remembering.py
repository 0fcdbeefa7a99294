"""``remember``: from a model and a few examples to the curvature of what it knows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_int, check_positive_int
from risegrad.common.imports import absent, need
from risegrad.core.blocks import listing
from risegrad.curvature.targets import as_found
from risegrad.memory.examples import TextForm, prepared
from risegrad.memory.layers import (
    PARTS,
    Layer,
    LayerMemory,
    chosen_layers,
    is_frozen,
    named_parameters,
    role_of,
)
from risegrad.memory.memory import Memory
from risegrad.memory.moments import RandomColumns, sides_of
from risegrad.memory.outputs import (
    Draws,
    Of,
    Reading,
    Rows,
    choose_rows,
    drawn_score,
    probed_score,
    uniform,
)
from risegrad.memory.ranks import Ranks, Round, ranks_of, rounds
from risegrad.memory.watch import Watched, join, watching

Progress = Callable[[int, int | None], None]
"""Called with the examples seen and those asked for (None: all there are)."""
SOON, LATE = 1.0, 10.0
"""Seconds until a bar is shown on a terminal, and until a file of output gets its first line."""


@contextmanager
def shown(
    progress: Progress | bool, examples: int | None, ranks: Ranks, what: str = "remember"
) -> Iterator[Progress]:
    """What to call after each batch; of several processes only the first shows a bar."""
    if callable(progress):
        yield progress
    elif not progress or ranks.own or absent("tqdm"):
        yield lambda seen, wanted: None
    else:
        wait = SOON if sys.stderr.isatty() else LATE
        bar = need("tqdm.auto", "lab").tqdm(
            total=examples, desc=what, unit=" examples", delay=wait, mininterval=wait / 10
        )
        with bar:
            yield lambda seen, wanted: bar.update(seen - bar.n)


SMALL = 10 * 2**20
"""Up to so many bytes for the whole memory all factors are kept in full."""
RANK = 12
"""Eigenpairs of each factor of a larger one: they save 0.96 of what full ones save and take fewer
bytes than a LoRA of rank 8 (``benchmarks/memory_ranks.py``)."""
MOST, LEAST = 64, 4
"""Eigenpairs of each factor: more make every step slower, fewer hardly protect."""
NUMBER = 4
"""Bytes of a float32, in which factors are unless the model is in float64."""


def factor_bytes(dim: int, rank: int | None, number: int = NUMBER) -> int:
    """Bytes of a factor of this size: a full one, or ``rank`` eigenpairs and one number.

    Eigenvectors have half precision unless the model has double.
    """
    if rank is None or rank >= dim:
        return number * dim * dim
    return (2 if number == NUMBER else number) * dim * rank + number * (rank + 1)


def memory_bytes(dims: Iterable[int], rank: int | None, number: int = NUMBER) -> int:
    """Bytes of all factors together.

    >>> memory_bytes([768, 2304], 16)
    98440
    """
    return sum(factor_bytes(dim, rank, number) for dim in dims)


def rank_for(dims: Iterable[int], budget: int | None = None, number: int = NUMBER) -> int | None:
    """None (full factors) if those are small, or fit the budget; otherwise how many eigenpairs.

    >>> rank_for([100, 100]) is None
    True
    >>> rank_for([4096] * 448)
    12
    >>> rank_for([4096] * 448, budget=64 * 2**20)
    18
    >>> rank_for([4096] * 448, budget=64 * 2**20, number=8)
    4
    """
    sizes = list(dims)
    if budget is not None:
        check_positive_int("budget", budget)
    if memory_bytes(sizes, None, number) <= (SMALL if budget is None else budget):
        return None
    if budget is None:
        return RANK
    ranks = range(MOST, LEAST - 1, -1)
    return next((rank for rank in ranks if memory_bytes(sizes, rank, number) <= budget), LEAST)


_ONE_AT_A_TIME = threading.RLock()
"""Hooks see every call of a layer, and modes and random states are put back as they were found: two
threads at once would each gather what the other runs."""


def remember(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    predict: Reading | None = None,
    examples: int | None = 256,
    of: Of = "predictions",
    rank: int | None = None,
    seed: int = 0,
    progress: Progress | bool = True,
    tokenizer: Any = None,
    layers: Sequence[str] | None = None,
    exempt: Sequence[str] = (),
    strict: bool = False,
    budget: int | None = None,
) -> Memory:
    """A memory of these examples: the curvature of the model's predictions, layer by layer.

    ``batches``: pairs ``(inputs, target)``, mappings as transformers takes them, or inputs alone;
    ``predict(model, batch)`` reads any other form. With ``tokenizer`` also a list or dataset of
    texts, of messages, or of prompt and completion. Labels are not used, but -100 marks positions
    that do not count. ``examples``: the largest number to use (None: all). ``of``: "predictions",
    "features", the name of a module, or a function of (model, batch) that returns features.
    ``rank``: eigenpairs kept of each factor; None keeps full factors if they take at most 10 MiB
    together, otherwise 12 eigenpairs, or as many as a ``budget`` of bytes allows.
    ``layers``: patterns over layer names (None: all trained layers, or all if nothing is trained);
    ``exempt``: those to leave out; ``strict``: every trained parameter must be covered.
    ``progress``: a bar if it takes long, False for none, or ``progress(seen, examples)``.

    Under DDP and FSDP2 all processes must call it, each with its own batches or all with the same;
    all get the same memory. The model does not change. One thread at a time.
    """
    if examples is not None:
        check_positive_int("examples", examples)
    found, uncovered = chosen_layers(model, layers, exempt)
    if strict and uncovered and not is_frozen(model):
        raise ValueError(f"strict: {_reasons(uncovered)}")
    kept = _rank(model, found, rank, budget)
    seed = check_int("seed", seed)
    batches = prepared(batches, model, TextForm(tokenizer, answers_only=True))
    run, ranks = ranks_of(model)
    random = RandomColumns(seed)
    watched = {name: Watched(layer, kept, random) for name, layer in found.items()}
    with _ONE_AT_A_TIME, as_found(run), shown(progress, examples, ranks) as told:
        given = rounds(batches, _device(run), examples, ranks)
        way = partial(choose_rows, run, of=of, predict=predict)
        score = drawn_score if of == "predictions" else probed_score
        counts = _passes(run, watched, given, way, score, ranks, seed, lambda n: told(n, examples))
        join(watched, ranks, _device(run))
    unreached = _check_reached(watched, of)
    if strict and unreached:
        raise ValueError(f"strict: {_reasons(unreached)}")
    used = {name: w for name, w in watched.items() if name not in unreached}
    uncovered |= {p: why for n, why in unreached.items() for p in _trained_in(model, n)}
    asked = rank if budget is None or rank is not None else "budget"
    source = _source(model, of, counts, seed, asked)
    return Memory(_memories(used, *counts), rank=kept, uncovered=uncovered, source=source)


def _rank(
    model: nn.Module, layers: Mapping[str, Layer], rank: int | None, budget: int | None
) -> int | None:
    if rank is not None:
        return check_positive_int("rank", rank)
    sizes = [n for layer in layers.values() if layer.kind != "norm" for n in _factor_sizes(layer)]
    return rank_for(sizes, budget, _bytes_of_a_number(model))


def _passes(
    model: nn.Module,
    watched: Mapping[str, Watched],
    given: Iterator[Round],
    rows: Callable[[Any], Rows],
    score: Callable[[Tensor, Draws], Tensor],
    ranks: Ranks,
    seed: int,
    tell: Callable[[int], None],
) -> tuple[int, int]:
    """A forward and backward pass for each batch, watched; how many examples and predictions all
    processes have seen."""
    thread = torch.zeros((), device=_device(model), requires_grad=True)
    way, seen, predictions = None, 0, 0
    for now in given:
        way = way or rows(now.batch)
        # Checkpointing runs layers again on the way back: they must be watched then too.
        with torch.enable_grad(), watching(watched, thread):
            found = way(model, now.batch)
            counts = ranks.gather(len(found) if now.counts else 0)
            own = counts[ranks.own]
            if own:
                start = predictions + sum(counts[: ranks.own])
                _backward(score(found, partial(uniform, seed, start, own)), thread)
            elif ranks.sharded:  # the others wait for this process's part
                _backward(0 * found.sum(), thread)
        if not predictions and any(counts):  # not after all batches
            still = [n for n, w in watched.items() if w.called and not w.differentiable]
            _check_differentiable(still)
        seen, predictions = now.seen, predictions + sum(counts)
        tell(seen)
    if not seen:
        raise ValueError("batches must hold at least one batch, got none")
    if not predictions:
        raise ValueError("no position counts in these batches: every label is -100")
    return seen, predictions


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _backward(score: Tensor, thread: Tensor) -> None:
    if not score.requires_grad:
        raise ValueError(
            "no gradient reaches any layer: the output to remember does not depend on them"
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
            "depend on it; name it in exempt to train it plainly"
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
        name: f"{type(w.layer.base).__name__} computes something other than "
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
            "(torch.no_grad, reentrant checkpointing); turn them on, or name it in exempt to train "
            "it plainly"
        )


def _trained_in(model: nn.Module, layer: str) -> list[str]:
    named = named_parameters(model)
    return [name for name, p in named.items() if p.requires_grad and role_of(name).layer == layer]


def _memories(
    watched: Mapping[str, Watched], examples: int, predictions: int
) -> dict[str, LayerMemory]:
    asked = {
        (name, part): (total, max(w.rows, 1) if part == "inputs" else predictions)
        for name, w in watched.items()
        for part, total in zip(PARTS[w.layer.kind], (w.inputs, w.outputs), strict=True)
    }
    sides = sides_of(asked)
    found = {}
    for name, w in watched.items():
        parts = {part: sides[name, part] for part in PARTS[w.layer.kind]}
        found[name] = LayerMemory(w.layer.kind, w.layer.shape, parts, examples, predictions)
    return found


def _bytes_of_a_number(model: nn.Module) -> int:
    """Factors are in float32, or in float64 if the model has any of it."""
    return 8 if any(p.dtype == torch.float64 for p in model.parameters()) else NUMBER


def _factor_sizes(layer: Layer) -> tuple[int, ...]:
    inputs, outputs = layer.sizes
    return (outputs,) if layer.kind == "embedding" else (inputs, outputs)


def _reasons(found: Mapping[str, str]) -> str:
    return listing([f"{name} ({reason})" for name, reason in found.items()])


def _source(
    model: nn.Module, of: Of, counts: tuple[int, int], seed: int, rank: int | str | None
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
