"""Informed shaping gives the same at every world size, with replicas and with shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core.distributed import jobs, test_checkpoints
from core.distributed.jobs import Setting
from core.distributed.pool import Pool
from core.distributed.test_world_sizes import check
from memory.informed.subject_matter import memory
from risegrad.memory.informed import Informed
from tail import by_default

Processes = Callable[[int], Pool]
pytestmark = pytest.mark.filterwarnings("ignore:.*divides each gradient by its own size")

MEMORY = memory(layers={"first": (7, 6), "second": (3, 7)})
EVEN = memory(layers={"first": (12, 8), "second": (3, 12)})
every_q = pytest.mark.parametrize("q", [None, 4])


@pytest.mark.parametrize(
    ("engine", "size"),
    by_default(("ddp", 2), ("fsdp", 2), slow=[("ddp", 1), ("ddp", 4), ("fsdp", 1), ("fsdp", 4)]),
)
@pytest.mark.parametrize("model", ["Net", "Adapted"])
@every_q
def test_both_places(
    processes: Processes, engine: str, size: int, model: str, q: int | None
) -> None:
    for on in ("gradient", "update"):
        setting = Setting(Informed(MEMORY, q=q), engine, model=model, on=on, optimizer="momentum")
        check(setting, processes(size).run(jobs.train, setting))


CUTS = ("columns", "hybrid", "partly sharded", "tensor parallel")


@pytest.mark.parametrize(
    ("engine", "q"),
    by_default(*((cut, None) for cut in CUTS), slow=[(cut, 4) for cut in CUTS]),
)
def test_other_ways_to_cut(processes: Processes, engine: str, q: int | None) -> None:
    even = engine in ("columns", "tensor parallel")
    shaper = Informed(EVEN if even else MEMORY, q=q)
    setting = Setting(shaper, engine, model="Even" if even else "Net", on="update")
    check(setting, processes(4).run(jobs.train, setting))


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
@every_q
def test_half_precision_and_left_out_rows(processes: Processes, engine: str, q: int | None) -> None:
    rows = (("first.weight", 3), ("first.bias", 3))
    half = Setting(Informed(MEMORY, q=q), engine, dtype=torch.bfloat16, optimizer="sgd", steps=1)
    for setting in (half, Setting(Informed(MEMORY, q=q), engine, left_out=rows, optimizer="sgd")):
        check(setting, processes(2).run(jobs.train, setting))


@pytest.mark.parametrize("way", ["more shards", "shards to replicas"])
@every_q
def test_resumes_at_another_world_size(
    processes: Processes, tmp_path: Path, way: str, q: int | None
) -> None:
    setting = Setting(Informed(MEMORY, q=q), on="update")
    found: list[dict[str, Any]] = test_checkpoints.resumed(
        processes, tmp_path, setting, way, "sharded"
    )
    test_checkpoints.check(setting, found)
