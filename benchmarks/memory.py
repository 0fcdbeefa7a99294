"""What a memory costs: in every step, when it is made, and in bytes."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.models import BATCH, Subject, t5, vit
from benchmarks.timing import Ratio, at_most, seconds
from risegrad import Informed, Memory, attach, remember
from risegrad.memory.factor import Factor
from risegrad.memory.layers import LayerMemory, all_layers

ROUNDS, RANK, IMAGES = 7, 16, 1000
DECOMPOSITIONS = ("eigh", "svd", "qr", "cholesky")


def trained_in(subject: Subject) -> dict[str, Tensor]:
    return {name: p for name, p in subject.model.named_parameters() if p.requires_grad}


def backward(subject: Subject) -> None:
    subject.model.zero_grad()
    subject.loss().backward()  # type: ignore[no-untyped-call]


def made(subject: Subject, rank: int | None) -> Memory:
    return remember(subject.model, [subject.batch], examples=BATCH, rank=rank)


def informed_share(subject: Subject, memory: Memory) -> float:
    """What attaching to the update adds to AdamW's step, over a whole training step without it."""
    trained = trained_in(subject)
    plain, shaped = (torch.optim.AdamW(trained.values(), lr=1e-6) for _ in range(2))
    attach(shaped, Informed(memory), params=trained, on="update")

    def step() -> None:
        backward(subject)
        plain.step()

    step()
    shaped.step()
    shares = []
    for _ in range(ROUNDS):
        whole, bare, with_memory = seconds(step), seconds(plain.step), seconds(shaped.step)
        shares.append((with_memory - bare) / whole)
    return statistics.median(shares)


@contextmanager
def timed_decompositions() -> Iterator[list[float]]:
    """While active, the seconds of each decomposition are written down."""
    spent: list[float] = []

    def timed(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            start = time.perf_counter()
            found = original(*args, **options)
            spent.append(time.perf_counter() - start)
            return found

        return run

    with ExitStack() as stack:
        for name in DECOMPOSITIONS:
            new = timed(getattr(torch.linalg, name))
            stack.enter_context(mock.patch.object(torch.linalg, name, new))
        yield spent


def making(subject: Subject, rank: int | None) -> tuple[float, float]:
    """Over a forward and backward pass: ``remember`` without decompositions, and those alone."""
    backward(subject)
    made(subject, rank)
    rest, decomposed = [], []
    for _ in range(ROUNDS):
        passed = seconds(lambda: backward(subject))
        with timed_decompositions() as spent:
            whole = seconds(lambda: made(subject, rank))
        rest.append((whole - sum(spent)) / passed)
        decomposed.append(sum(spent) / passed)
    return statistics.median(rest), statistics.median(decomposed)


def bytes_share(subject: Subject, memory: Memory) -> float:
    """Of the memory over the weights of the layers that it protects."""
    layers = all_layers(subject.model)
    weights = [p for name in memory for p in layers[name].base.parameters(recurse=False)]
    return memory.bytes / sum(p.numel() * p.element_size() for p in weights)


SMOL = {"q": (576, 576), "k": (192, 576), "v": (192, 576), "o": (576, 576),
        "gate": (1536, 576), "up": (1536, 576), "down": (576, 1536)}  # fmt: skip
"""Linear layers (out, in) of a block of SmolLM2-135M, which has 30."""


def loras() -> tuple[Memory, dict[str, torch.nn.Parameter]]:
    """Of SmolLM2-135M's size with r = 8, and random factors of rank 16."""
    generator = torch.Generator().manual_seed(0)

    def factor(size: int) -> Factor:
        vectors = torch.linalg.qr(torch.randn(size, RANK, generator=generator)).Q
        return Factor.of_eigenpairs(vectors, torch.logspace(2, 0, RANK), 0.1)

    kept, params = {}, {}
    for name, (out, into) in ((f"{b}.{n}", shape) for b in range(30) for n, shape in SMOL.items()):
        sides = {"inputs": factor(into), "outputs": factor(out)}
        kept[name] = LayerMemory("linear", (out, into), sides, 8, 8)
        for part, shape in (("lora_A", (8, into)), ("lora_B", (out, 8))):
            param = torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.02)
            param.grad = torch.randn(shape, generator=generator) * 1e-3
            params[f"{name}.{part}.default.weight"] = param
    return Memory(kept), params


def informed_over_adamw() -> float:
    """``optimizer.step()`` with Informed over that of foreach AdamW alone, on one core."""
    memory, params = loras()
    plain, shaped = (torch.optim.AdamW(params.values(), lr=1e-6, foreach=True) for _ in range(2))
    attach(shaped, Informed(memory), params=params, on="update")
    plain.step()
    shaped.step()
    return statistics.median(seconds(shaped.step) / seconds(plain.step) for _ in range(ROUNDS))


def run() -> Iterator[Ratio]:
    name = "optimizer.step() with Informed over foreach AdamW alone: SmolLM2-135M, LoRA r = 8"
    yield at_most(name, informed_over_adamw(), 2.0, "210 linear layers, factors of rank 16")
    for subject in (t5(full=False), vit(full=False)):
        memory = made(subject, None)
        name = f"informed step's share of a training step: {subject.name}, batch {BATCH}"
        yield at_most(name, informed_share(subject, memory), 0.05, str(memory).splitlines()[0])
    subject = t5(full=False)
    name = f"remember over forward and backward: {subject.name}, decompositions apart"
    yield at_most(name, making(subject, None)[0], 1.5)
    for subject in (t5(full=True), vit(full=True)):
        memory = made(subject, RANK)
        name = f"informed step's share of a training step: {subject.name}, rank {RANK}"
        yield at_most(name, informed_share(subject, memory), 0.15, str(memory).splitlines()[0])
    rest, decomposed = making(subject, RANK)
    name = f"remember over forward and backward: {subject.name}, rank {RANK}, decompositions apart"
    yield at_most(name, rest, 1.5)
    name = f"decompositions of all layers over an epoch of {IMAGES:,} images: {subject.name}"
    yield at_most(name, decomposed * BATCH / IMAGES, 0.1, "an epoch: forward and backward alone")
    name = f"bytes of a memory over its layers' weights: {subject.name}, rank {RANK}"
    yield at_most(name, bytes_share(subject, memory), 0.06)
