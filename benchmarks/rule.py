"""What one shaping costs: over q, against Algorithm 1, against a bare draw, on many tensors."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from benchmarks.timing import Ratio, Work, at_least, at_most, measured_ratio
from risegrad import Blocks, Rise
from risegrad.core.blocks import make_layout
from risegrad.core.shaped_step import shape_tensors
from risegrad.core.shapers import Sampler

ELEMENTS = 10_000_000


def shaping(tensors: Sequence[Tensor], q: int, sampler: Sampler = "one-draw") -> Work:
    """A step over the tensors, each a block; the layout is made once, as attaching does."""
    sizes = {str(number): tensor.numel() for number, tensor in enumerate(tensors)}
    layout = make_layout(Blocks.by_tensor(sizes), [q] * len(sizes), sizes)
    shaper = Rise(q=q, sampler=sampler)
    return lambda: shape_tensors(shaper, layout, tensors, step=0)


def bare_draw(gradient: Tensor) -> None:
    """A draw of the same size, one read of the gradient and one write: nobody can do with less."""
    noise = torch.randn(gradient.numel())
    gradient.sum()
    gradient.copy_(noise)


def run() -> Iterator[Ratio]:
    g = torch.randn(ELEMENTS)
    yield at_most(
        "one step at q=64 over one step at q=1, 10M parameters",
        measured_ratio(shaping([g], 64), shaping([g], 1)),
        1.1,
    )
    yield at_least(
        "Algorithm 1 taken literally at q=64 over ours",
        measured_ratio(shaping([g], 64, "directions"), shaping([g], 64), rounds=3),
        30,
    )
    yield at_most(
        "ours over a bare torch.randn plus one read and one write",
        measured_ratio(shaping([g], 4), lambda: bare_draw(g)),
        1.5,
    )
    many = [torch.randn(8192) for _ in range(400)]
    one = torch.cat(many)
    yield at_most(
        "400 tensors of 8k elements over one block of the same total",
        measured_ratio(shaping(many, 4), shaping([one], 4)),
        2,
    )
    tensors = [torch.randn(size) for size in (ELEMENTS, 3_000_000, 3_000_000)]
    yield at_most("extra memory at the peak over the largest block", peak_ratio(tensors), 1.01)


def peak_ratio(tensors: Sequence[Tensor]) -> float:
    """Extra bytes at the peak of a step over the bytes of the largest block."""
    step = shaping(tensors, 4)
    step()
    with torch.profiler.profile(profile_memory=True) as profile:
        step()
    current = peak = 0
    results = profile.profiler
    assert results is not None
    assert results.kineto_results is not None
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            current += event.nbytes()
            peak = max(peak, current)
    return peak / max(tensor.nbytes for tensor in tensors)
