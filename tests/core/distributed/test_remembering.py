"""A memory is the same at every world size, whoever has which examples; or it is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from core.distributed import jobs
from core.distributed.jobs import Setting
from core.distributed.pool import Pool
from memory.informed.subject_matter import memory

Processes = Callable[[int], Pool]


@pytest.mark.parametrize(
    ("engine", "given", "rank"),
    [("ddp", "its own", None), ("ddp", "the same", 2), ("fsdp", "its own", 2),
     ("fsdp", "the same", None)],
)  # fmt: skip
def test_sums_over_processes(
    processes: Processes, engine: str, given: str, rank: int | None
) -> None:
    """Three batches for two processes, and not all of their examples."""
    setting = Setting(None, engine, model="Normed", dtype=torch.float64)
    expected = jobs.remembered(0, 1, setting.under("plain"), "the same", rank)
    answers = processes(2).run(jobs.remembered, setting, given, rank)
    assert len({answer["hash"] for answer in answers}) == 1
    for answer in answers:
        assert answer["counts"] == expected["counts"] == [20, 20]
        assert set(answer["sides"]) == set(expected["sides"])
        for name, side in expected["sides"].items():
            error = (answer["sides"][name] - side).abs().max()
            assert error <= 1e-12 * side.abs().max(), name


def test_what_needs_whole_parameters_refuses_shards(processes: Processes) -> None:
    kept = memory(layers={"first": (7, 6), "second": (3, 7)})
    setting = Setting(None, "fsdp", dtype=torch.float64)
    for found in processes(2).run(jobs.memory_refusals, setting, kept):
        names = ("an anchor", "a penalty", "damage", "retract", "interpolate")
        for name, message in zip(names, found, strict=True):
            assert f"{name} needs whole parameters, got shards (FSDP2) of scale" in message


def test_remember_refuses_tensor_parallelism(processes: Processes) -> None:
    kept = memory(layers={"first": (12, 8)})
    setting = Setting(None, "tensor parallel", model="Even")
    for (found,) in processes(4).run(jobs.memory_refusals, setting, kept):
        assert "not with tensor parallelism: first.weight" in found
