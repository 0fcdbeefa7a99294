"""What shaping adds to the traffic: nothing for replicas, one small sum for shards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.distributed import jobs
from core.distributed.jobs import Setting
from core.distributed.pool import Pool
from risegrad.core.shapers import IsotropicNoise, Rise, ScaledFO, Shaper

Processes = Callable[[int], Pool]


def messages(pool: Pool, setting: Setting) -> list[tuple[str, int]]:
    """The collectives during the optimizer's step, the same in every process."""
    sent = [result["messages"] for result in pool.run(jobs.train, setting)]
    assert all(each == sent[0] for each in sent)
    first: list[tuple[str, int]] = sent[0]
    return first


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("shaper", [Rise(), IsotropicNoise(blocks="whole")], ids=["rise", "noise"])
def test_replicas_are_silent(processes: Processes, shaper: Shaper, on: jobs.On) -> None:
    assert messages(processes(2), Setting(shaper, "ddp", on=on, steps=1)) == []


# Net has 5 tensors in 3 modules (the root holds one), and 8 chunks of up to 16 elements.
BLOCKS = {"tensor": 5, "module": 3, "whole": 1, 16: 8}


@pytest.mark.parametrize("engine", ["fsdp", "hybrid"])
@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_shards_need_one_sum_of_two_numbers_per_block(
    processes: Processes, engine: str, on: jobs.On, blocks: str | int
) -> None:
    setting = Setting(Rise(blocks=blocks), engine, on=on, steps=1)
    assert messages(processes(4), setting) == [("allreduce_", 2 * BLOCKS[blocks])]


def test_scaling_needs_none(processes: Processes) -> None:
    assert messages(processes(4), Setting(ScaledFO(), "fsdp", steps=1)) == []


def test_an_unshaped_step_needs_none(processes: Processes) -> None:
    """So what was counted above is ours."""
    assert messages(processes(4), Setting(None, "fsdp", steps=1)) == []
