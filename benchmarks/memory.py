"""What a memory costs: in every step, when it is made, and in bytes."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.models import BATCH, Subject, chat, t5, vit
from benchmarks.operations import Operations
from benchmarks.timing import Ratio, at_most, measured_ratio, seconds
from risegrad import Informed, Memory, attach, keep, remember
from risegrad.memory.factor import Factor
from risegrad.memory.layers import LayerMemory, all_layers
from risegrad.memory.memory import size
from risegrad.memory.remembering import RANK as DEFAULT

ROUNDS, STEPS, RANK, IMAGES = 7, 41, 16, 1000
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


def making(subject: Subject, rank: int | None, rounds: int = ROUNDS) -> tuple[float, float]:
    """Over a forward and backward pass: ``remember`` without decompositions, and those alone."""
    backward(subject)
    made(subject, rank)
    rest, decomposed = [], []
    for _ in range(rounds):
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


def loras(blocks: int = 30) -> tuple[Memory, dict[str, torch.nn.Parameter]]:
    """Of SmolLM2-135M's size with r = 8, and random factors of the default rank."""
    generator = torch.Generator().manual_seed(0)

    def factor(size: int) -> Factor:
        vectors = torch.linalg.qr(torch.randn(size, DEFAULT, generator=generator)).Q
        return Factor.of_eigenpairs(vectors, torch.logspace(2, 0, DEFAULT), 0.1).shortened()

    kept, params = {}, {}
    for name, (out, into) in (
        (f"{b}.{n}", shape) for b in range(blocks) for n, shape in SMOL.items()
    ):
        sides = {"inputs": factor(into), "outputs": factor(out)}
        kept[name] = LayerMemory("linear", (out, into), sides, 8, 8)
        for part, shape in (("lora_A", (8, into)), ("lora_B", (out, 8))):
            param = torch.nn.Parameter(torch.randn(shape, generator=generator) * 0.02)
            param.grad = torch.randn(shape, generator=generator) * 1e-3
            params[f"{name}.{part}.default.weight"] = param
    return Memory(kept), params


@contextmanager
def one_core() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def informed_over_adamw() -> float:
    """``optimizer.step()`` with Informed over that of foreach AdamW alone, on one core."""
    memory, params = loras()
    plain, shaped = (torch.optim.AdamW(params.values(), lr=1e-6, foreach=True) for _ in range(2))
    attach(shaped, Informed(memory), params=params, on="update")
    with one_core():
        shaped.step()
        return measured_ratio(shaped.step, plain.step, rounds=STEPS)


def queued(blocks: int) -> Operations:
    """By an informed step of SGD, which reads no number itself; all layers of one small shape."""
    memory, params = loras(blocks)
    few = {name: p for name, p in params.items() if ".k." in name}
    optimizer = torch.optim.SGD(few.values(), lr=1e-6, foreach=True)
    attach(optimizer, Informed(memory), params=few, on="update")
    optimizer.step()
    seen = Operations()
    with seen:
        optimizer.step()
    return seen


def moved_per_parameter(whole: bool) -> float:
    """Bytes that an informed step reads and writes beside AdamW's, for each trained parameter."""
    memory, params = loras(1)
    if whole:
        params = {
            f"{name}.weight": torch.nn.Parameter(torch.zeros(memory[name].shape)) for name in memory
        }
        for parameter in params.values():
            parameter.grad = torch.ones_like(parameter)
    bytes_of = []
    for shapes in (False, True):
        optimizer = torch.optim.SGD(params.values(), lr=1e-6, foreach=True)
        if shapes:
            attach(optimizer, Informed(memory), params=params, on="update")
        optimizer.step()
        seen = Operations()
        with seen:
            optimizer.step()
        bytes_of.append(seen.bytes)
    return (bytes_of[1] - bytes_of[0]) / sum(p.numel() for p in params.values())


def kept_steps(subject: Subject) -> tuple[float, float]:
    """A whole step with ``keep`` over a plain one: without a pull, and with one in every fourth."""
    trained = [*trained_in(subject).values()]
    tokens = torch.randint(1, 1000, (20, 32))
    plain, kept = (torch.optim.AdamW(trained, lr=1e-6, foreach=True) for _ in range(2))
    # A list of one batch per call, as a loader gives them.
    old = [{"input_ids": part, "labels": part} for part in torch.split(tokens, BATCH)]
    keeper = keep(subject.model, kept, old, examples=len(tokens), pull=4)
    backward(subject)
    plain.step()
    for _ in range(4):  # the next step is one of those that pull
        kept.step()
    shaped, pulled = [], []
    for _ in range(3):
        whole, bare = seconds(lambda: backward(subject)), seconds(plain.step)
        with_pull = seconds(kept.step)
        without = statistics.median(seconds(kept.step) for _ in range(3))
        shaped.append((whole + without) / (whole + bare))
        pulled.append((4 * whole + with_pull + 3 * without) / (4 * (whole + bare)))
    keeper.detach()
    return statistics.median(shaped), statistics.median(pulled)


def run() -> Iterator[Ratio]:
    name = "optimizer.step() with Informed over foreach AdamW alone: SmolLM2-135M, LoRA r = 8"
    rank = f"210 linear layers, factors of rank {DEFAULT}"
    yield at_most(name, informed_over_adamw(), 2.0, rank)
    few, many = queued(10), queued(30)
    name = "operations of an informed step: 30 layers of one shape over 10"
    most, least = many.counts.total(), few.counts.total()
    yield at_most(name, most / least, 1.0, f"{most} operations")
    yield at_most("waits of an informed step for a device, 30 layers", len(many.waits), 0)
    memory, params = loras()
    adapter = sum(p.numel() * p.element_size() for p in params.values())
    name = "bytes of a memory over its adapter's: SmolLM2-135M, LoRA r = 8, default settings"
    yield at_most(name, memory.bytes / adapter, 1.0, size(memory.bytes))
    subject = chat()
    without, pulled = kept_steps(subject)
    yield at_most(
        f"a whole step with keep, no pull, over a plain one: {subject.name}", without, 1.02
    )
    name = f"the same with a pull of 8 short examples in every fourth step: {subject.name}"
    yield at_most(name, pulled, 1.15)
    name = f"remember over forward and backward: {subject.name}, everything included"
    yield at_most(name, sum(making(subject, DEFAULT, rounds=3)), 1.5)
    for subject in (t5(full=False), vit(full=False)):
        memory = made(subject, None)
        name = f"informed step's share of a training step: {subject.name}, batch {BATCH}"
        yield at_most(name, informed_share(subject, memory), 0.02, str(memory).splitlines()[0])
    subject = t5(full=False)
    name = f"remember over forward and backward: {subject.name}, everything included"
    yield at_most(name, sum(making(subject, None)), 1.5)
    for subject in (t5(full=True), vit(full=True)):
        memory = made(subject, RANK)
        name = f"informed step's share of a training step: {subject.name}, rank {RANK}"
        yield at_most(name, informed_share(subject, memory), 0.10, str(memory).splitlines()[0])
    rest, decomposed = making(subject, RANK)
    name = f"remember over forward and backward: {subject.name}, rank {RANK}, decompositions apart"
    yield at_most(name, rest, 1.5)
    name = f"decompositions of all layers over an epoch of {IMAGES:,} images: {subject.name}"
    yield at_most(name, decomposed * BATCH / IMAGES, 0.1, "an epoch: forward and backward alone")
    name = f"bytes of a memory over its layers' weights: {subject.name}, rank {RANK}"
    yield at_most(name, bytes_share(subject, memory), 0.06)
