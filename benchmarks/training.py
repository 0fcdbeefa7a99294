"""How much of a training step (forward, backward, AdamW) the shaping takes."""

import statistics
from collections.abc import Iterator

import torch

from benchmarks.models import Subject, t5, vit
from benchmarks.timing import Ratio, at_most, seconds
from risegrad import Rise, attach
from risegrad.core.shaped_step import shape_tensors

ROUNDS = 7


def share(subject: Subject) -> float:
    """Shaping time over the time of forward, backward and AdamW, measured round by round."""
    trained = {n: p for n, p in subject.model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(trained.values(), lr=1e-6)
    handle = attach(optimizer, Rise(q=4), params=trained)
    handle.detach()
    layout, shaper = handle.layout, handle.shaper

    def step() -> None:
        optimizer.zero_grad()
        subject.loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def shape() -> None:
        shape_tensors(shaper, layout, [trained[name].grad for name in layout.names], 0)

    step()
    shape()
    rounds = [(seconds(step), seconds(shape)) for _ in range(ROUNDS)]
    return statistics.median(shaping / rest for rest, shaping in rounds)


def run() -> Iterator[Ratio]:
    for subject, bound in (
        (vit(full=False), 0.02),
        (vit(full=True), 0.10),
        (t5(full=False), 0.02),
        (t5(full=True), 0.10),
        (t5(full=True, source=256, target=8), 0.10),
    ):
        count = sum(p.numel() for p in subject.model.parameters() if p.requires_grad)
        name = f"share of a training step: {subject.name}, batch 8"
        yield at_most(name, share(subject), bound, detail=f"{count:,} trained parameters")
