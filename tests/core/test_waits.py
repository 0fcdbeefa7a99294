"""What a step asks of a device: no wait, and of layers of one shape as much as of one."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from benchmarks.operations import Operations
from core.attach.subjects import fixed
from risegrad.core.attachment import On, attach
from risegrad.core.draws import Draws, tile_size
from risegrad.core.shaped_step import block_scalars
from risegrad.core.shapers import CovarianceNoise, IsotropicNoise, Rise, ScaledFO, Shaper
from risegrad.memory.factor import Factor
from risegrad.memory.informed import Informed
from risegrad.memory.layers import LayerMemory
from risegrad.memory.memory import Memory
from risegrad.zeroth_order import Restore, SpsaSettings, spsa

OUT, IN = 10, 12
PARTS: dict[str, dict[str, tuple[int, ...]]] = {
    "LoRA": {"lora_A.default.weight": (4, IN), "lora_B.default.weight": (OUT, 4)},
    "whole": {"weight": (OUT, IN), "bias": (OUT,)},
}


def factor(size: int, seed: int) -> Factor:
    root = fixed((size, size), seed)
    return Factor(root @ root.T / size)


def layers(count: int, trained: str, rank: int | None) -> tuple[Memory, dict[str, nn.Parameter]]:
    kept, params = {}, {}
    for n in range(count):
        sides = {"inputs": factor(IN, n), "outputs": factor(OUT, 50 + n)}
        kept[f"layers.{n}.q"] = LayerMemory("linear", (OUT, IN), sides, 8, 8)
        for number, (part, shape) in enumerate(PARTS[trained].items()):
            params[f"layers.{n}.q.{part}"] = nn.Parameter(fixed(shape, 90 * number + n))
    memory = Memory(kept)
    return memory if rank is None else memory.truncated(rank), params


def second_step(shaper: Shaper, params: Mapping[str, Tensor], on: On) -> Operations:
    """The first one prepares what stays."""
    optimizer = torch.optim.AdamW(params.values(), lr=0.1, foreach=True, capturable=False)
    attach(optimizer, shaper, params, on, advise=False)
    plain = torch.optim.AdamW(params.values(), lr=0.1, foreach=True)
    found: list[Operations] = []
    for each in (plain, optimizer):
        for _ in range(2):
            for number, param in enumerate(params.values()):
                param.grad = fixed(param.shape, 200 + number)
            seen = Operations()
            with seen:
                each.step()
        found.append(seen)
    # AdamW itself counts its steps on the host, which reads numbers of the host.
    found[1].counts -= found[0].counts
    return found[1]


@pytest.mark.filterwarnings("ignore:.*divides each gradient by its own size")
@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("trained", PARTS)
def test_an_informed_step_is_as_many_operations_for_any_depth(
    trained: str, rank: int | None, on: On
) -> None:
    found = []
    for count in (10, 30):
        memory, params = layers(count, trained, rank)
        found.append(second_step(Informed(memory), params, on))
    assert not found[0].waits
    assert found[0].counts == found[1].counts
    assert 10 < found[0].counts.total() < 250


@pytest.mark.filterwarnings("ignore:.*divides each gradient by its own size")
@pytest.mark.parametrize("shaper", [Rise, ScaledFO, IsotropicNoise, CovarianceNoise])
@pytest.mark.parametrize("on", ["gradient", "update"])
def test_a_step_of_rise_or_a_control_waits_for_nothing(shaper: type[Shaper], on: On) -> None:
    _, params = layers(10, "LoRA", None)
    assert not second_step(shaper(q=4), params, on).waits


@pytest.mark.parametrize("restore", ["copy", "arithmetic"])
def test_an_estimate_reads_its_losses_and_one_norm(restore: Restore) -> None:
    """However many tensors there are; and it draws and adds for each of them."""
    found = []
    for count in (10, 30):
        _, params = layers(count, "LoRA", None)
        with Operations() as seen:
            spsa(
                lambda params=params: sum(p.sum() for p in params.values()),
                params,
                SpsaSettings(q=3, clip=1.0),
                restore=restore,
            )
        found.append(seen.counts)
        assert seen.counts["_local_scalar_dense"] == 2 * 3
        assert not seen.waits - {"_local_scalar_dense"}
    assert found[0]["add_"] < found[1]["add_"]


def test_the_numbers_of_all_blocks_go_to_the_device_in_one_message() -> None:
    blocks = torch.full((7,), 5.0, dtype=torch.float64)
    with Operations() as seen:
        found = block_scalars(blocks, blocks, Draws(0, 1), torch.device("meta"))
    assert seen.counts["_to_copy"] == 1
    assert found.chi2.shape == found.normal.shape == (7,)
    assert found.chi2.is_meta


def test_a_device_draws_no_more_for_a_small_tensor_than_it_has() -> None:
    assert tile_size("cuda", 8192) == 8192
    assert tile_size("cuda", 1 << 24) == tile_size("cuda") == 1 << 20
    assert tile_size("cpu", 8192) == tile_size("cpu") == 1 << 14
