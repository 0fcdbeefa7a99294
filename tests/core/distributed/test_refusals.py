"""What cannot be shaped on shards is refused with the reason, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from core.distributed import jobs
from core.distributed.jobs import Setting
from core.distributed.pool import Pool, WorkerError
from risegrad.core.shapers import Rise, ScaledFO, Shaper

Processes = Callable[[int], Pool]


def test_directions(processes: Processes) -> None:
    setting = Setting(Rise(sampler="directions"), "fsdp", optimizer="sgd")
    for message, unchanged in processes(2).run(jobs.refused, setting):
        assert 'sampler="directions" is the reference for plain tensors' in message
        assert unchanged


@pytest.mark.parametrize("shaper", [Rise(blocks=16), ScaledFO(blocks=16)], ids=["rise", "scaled"])
def test_chunks_of_columns(processes: Processes, shaper: Shaper) -> None:
    setting = Setting(shaper, "columns", model="Even", optimizer="sgd")
    for message, unchanged in processes(2).run(jobs.refused, setting):
        assert "blocks smaller than a tensor need tensors sharded along their first" in message
        assert unchanged


def test_flat_parameters(processes: Processes) -> None:
    for message in processes(2).run(jobs.flattened, Rise()):
        assert "was flattened by FullyShardedDataParallel (FSDP1): use fully_shard" in message


def test_a_failing_worker_is_heard() -> None:
    """The tests above mean something only if errors of workers arrive."""
    pool = Pool(1)
    with pytest.raises(WorkerError, match=r"rank 0 of 1(.|\n)*KeyError: 'nothing'"):
        pool.run(jobs.train, Setting(None, model="nothing"))
