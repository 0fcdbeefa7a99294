"""The closest peer: steps of ZeroFlow and C-Flat from the package `infty`, on the same model."""

from collections.abc import Callable, Iterator

import torch
from infty.optim import C_Flat, ZeroFlow
from torch import Tensor

from benchmarks.models import Subject, vit
from benchmarks.timing import Ratio, at_least, measured_ratio
from risegrad import Rise, attach

Step = Callable[[], object]
RATE = 1e-6


def ours(subject: Subject) -> Step:
    optimizer = _sgd(subject)
    attach(optimizer, Rise(q=4), params=subject.model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        subject.loss().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def zeroflow(subject: Subject, q: int) -> Step:
    base = _sgd(subject)
    peer = ZeroFlow(_trained(subject), base, subject.model, {"q": q})
    peer.set_closure(lambda: (None, [subject.loss()]))
    step: Step = peer.step
    return step


def c_flat(subject: Subject) -> Step:
    base = _sgd(subject)
    peer = C_Flat(_trained(subject), base, subject.model, {})
    peer.set_closure(lambda: (None, [subject.loss()]))
    step: Step = peer.step
    return step


def _trained(subject: Subject) -> list[Tensor]:
    return [p for p in subject.model.parameters() if p.requires_grad]


def _sgd(subject: Subject) -> torch.optim.SGD:
    return torch.optim.SGD(_trained(subject), lr=RATE)


def run() -> Iterator[Ratio]:
    subject = vit(full=False)
    rise = ours(subject)
    peers = {
        "ZeroFlow step (q=4) over ours": zeroflow(subject, 4),
        "ZeroFlow step (q=1) over ours": zeroflow(subject, 1),
        "C-Flat step over ours": c_flat(subject),
    }
    for name, step in peers.items():
        subject.model.train()  # ZeroFlow leaves the model in eval mode
        yield at_least(f"{name}, {subject.name}, batch 8", measured_ratio(step, rise, rounds=3), 1)
