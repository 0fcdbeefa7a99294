"""The same seed and the same global batch give the same shaped gradients at every world size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from core.distributed import jobs
from core.distributed.jobs import Setting
from core.distributed.pool import Pool
from risegrad.core.shapers import CovarianceNoise, IsotropicNoise, Rise, ScaledFO, Shaper
from tail import by_default

Processes = Callable[[int], Pool]
# By default, four processes only where fewer would not do, and once for DDP and for FSDP2.
two_or_four = pytest.mark.parametrize("size", by_default(2, slow=[4]))

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-5}
"""Of the largest entry of a tensor: other orders of summation. The noise itself is of order 1."""

SHAPERS: dict[str, Shaper] = {
    "tensor": Rise(q=4),
    "module": Rise(q=4, blocks="module"),
    "whole": Rise(q=2, blocks="whole"),
    "chunks": Rise(q=1, blocks=16),
    "scaled": ScaledFO(q=4),
    "isotropic": IsotropicNoise(q=4, blocks=5),
    "covariance": CovarianceNoise(q=4, blocks="module"),
}


def check(setting: Setting, results: list[dict[str, Any]]) -> None:
    """Every process agrees bit for bit with the first, and that one with a single process."""
    expected = jobs.train(0, 1, setting.under("plain"))
    first = results[0]
    for result in results:
        for what in ("shaped", "parameters"):
            assert_equal(result[what], first[what])
        assert result["untouched"], "a step changed the global random state"
        assert result["steps"] == setting.steps
    assert_close(first["shaped"], expected["shaped"], setting.dtype)
    assert_close(first["parameters"], expected["parameters"], setting.dtype)


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    different = [name for name in expected if not torch.equal(actual[name], expected[name])]
    assert not different


def assert_close(
    actual: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype = torch.float32
) -> None:
    assert set(actual) == set(expected)
    for name, wanted in expected.items():
        assert actual[name].dtype == dtype
        error = (actual[name] - wanted).abs().max() / wanted.abs().max()
        assert error <= TOLERANCE[dtype], f"{name}: {error:.1e}"


SIZES = by_default(
    (1, "tensor"), (4, "tensor"), *((2, kind) for kind in SHAPERS),
    slow=[(4, kind) for kind in SHAPERS if kind != "tensor"],
)  # fmt: skip


@pytest.mark.parametrize(("size", "kind"), SIZES)
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_gradients(processes: Processes, size: int, engine: str, kind: str) -> None:
    setting = Setting(SHAPERS[kind], engine)
    check(setting, processes(size).run(jobs.train, setting))


@two_or_four
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", ["tensor", "chunks", "scaled"])
def test_updates(processes: Processes, size: int, engine: str, kind: str) -> None:
    setting = Setting(SHAPERS[kind], engine, on="update")
    check(setting, processes(size).run(jobs.train, setting))


@two_or_four
@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
@pytest.mark.parametrize("kind", ["module", "chunks"])
def test_half_precision(processes: Processes, size: int, engine: str, kind: str) -> None:
    setting = Setting(SHAPERS[kind], engine, dtype=torch.bfloat16)
    check(setting, processes(size).run(jobs.train, setting))


@two_or_four
@pytest.mark.parametrize("kind", ["tensor", "chunks"])
def test_shards_that_end_inside_a_tile(processes: Processes, size: int, kind: str) -> None:
    setting = Setting(SHAPERS[kind], "fsdp", model="Wide")
    check(setting, processes(size).run(jobs.train, setting))


OTHER_CUTS = by_default(("columns", 2), ("tensor parallel", 4), slow=[("columns", 4)])


@pytest.mark.parametrize(("engine", "size"), OTHER_CUTS)
@pytest.mark.parametrize(
    ("kind", "on"),
    by_default(
        ("tensor", "gradient"), ("whole", "update"), ("scaled", "gradient"),
        slow=[("tensor", "update"), ("whole", "gradient"), ("scaled", "update")],
    ),
)  # fmt: skip
def test_sharded_along_other_dimensions(
    processes: Processes, engine: str, size: int, kind: str, on: Any
) -> None:
    setting = Setting(SHAPERS[kind], engine, model="Even", on=on)
    check(setting, processes(size).run(jobs.train, setting))


@pytest.mark.parametrize("kind", by_default("covariance", slow=["tensor", "chunks"]))
def test_hybrid_sharding(processes: Processes, kind: str) -> None:
    setting = Setting(SHAPERS[kind], "hybrid")
    check(setting, processes(4).run(jobs.train, setting))


@pytest.mark.parametrize("kind", ["tensor", "whole"])
def test_plain_and_sharded_parameters_together(processes: Processes, kind: str) -> None:
    setting = Setting(SHAPERS[kind], "partly sharded")
    check(setting, processes(2).run(jobs.train, setting))


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("kind", ["tensor", "whole"])
def test_parameters_without_gradients(processes: Processes, kind: str, on: Any) -> None:
    setting = Setting(SHAPERS[kind], "fsdp", model="Idle", on=on)
    check(setting, processes(2).run(jobs.train, setting))


LEFT_OUT = by_default(
    ("fsdp", "tensor"), ("fsdp", "isotropic"), ("columns", "whole"), ("tensor parallel", "tensor"),
    # Blocks smaller than a tensor need tensors sharded along their first dimension.
    slow=[("ddp", "tensor"), ("ddp", "whole"), ("ddp", "isotropic"), ("fsdp", "whole"),
          ("columns", "tensor"), ("tensor parallel", "whole")],
)  # fmt: skip


@pytest.mark.parametrize(("engine", "kind"), LEFT_OUT)
def test_rows_that_are_left_out(processes: Processes, engine: str, kind: str) -> None:
    """Shards begin before, at and after the first row that takes part."""
    if engine in ("ddp", "fsdp"):
        setting = Setting(SHAPERS[kind], engine, left_out=(("first.weight", 3), ("first.bias", 5)))
    else:
        rows = (("first.weight", 4), ("second.weight", 2))
        setting = Setting(SHAPERS[kind], engine, model="Even", left_out=rows)
    check(setting, processes(4).run(jobs.train, setting))


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_accumulation_and_clipping(processes: Processes, engine: str) -> None:
    setting = Setting(SHAPERS["tensor"], engine, accumulate=2, clip=0.05)
    check(setting, processes(2).run(jobs.train, setting))
    unclipped = jobs.train(0, 1, setting.under("plain", clip=None))
    clipped = jobs.train(0, 1, setting.under("plain"))
    with pytest.raises(AssertionError):
        assert_close(clipped["shaped"], unclipped["shaped"])


def test_the_zero_redundancy_optimizer(processes: Processes) -> None:
    setting = Setting(SHAPERS["module"])
    for parameters in processes(2).run(jobs.divided_optimizer, setting):
        assert_close(parameters, jobs.train(0, 1, setting)["parameters"])


def test_a_nan_on_one_process_reaches_its_whole_block_and_no_other(processes: Processes) -> None:
    setting = Setting(SHAPERS["module"], "fsdp", optimizer="sgd")
    for finite in processes(4).run(jobs.with_a_nan, setting):
        expected = {name: not name.startswith("first.") for name in finite}
        assert finite == expected


def test_another_seed_is_far_away() -> None:
    """The tolerance above tells draws apart."""
    one, two = (jobs.train(0, 1, Setting(Rise(q=4, seed=seed)))["shaped"] for seed in (0, 1))
    with pytest.raises(AssertionError):
        assert_close(one, two, torch.float32)
    for name, gradient in one.items():
        if gradient.numel() > 1:
            assert (gradient - two[name]).abs().max() > 0.1 * gradient.abs().max()
