"""Draws are a pure function of (seed, step, position)."""

import random

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from risegrad.core.draws import TILE, Draws, Room, mix

SIZE = 3 * TILE + 1000


def normals(draws, start=0, stop=SIZE, dtype=torch.float32, **other):
    return draws.normals(torch.empty(stop - start, dtype=dtype), start, **other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_any_part_equals_that_part_of_the_whole(dtype):
    draws = Draws(seed=1, step=2)
    whole = normals(draws, dtype=dtype)
    edges = [
        (0, 5),
        (5, 9),
        (7, TILE),
        (TILE - 3, TILE + 3),
        (TILE, 2 * TILE),
        (10, SIZE),
        (SIZE - 1, SIZE),
        (2 * TILE - 1, 2 * TILE),
        (4, 4),
    ]
    for start, stop in edges:
        assert torch.equal(normals(draws, start, stop, dtype), whole[start:stop])
        assert torch.equal(normals(Draws(1, 2), start, stop, dtype), whole[start:stop])


def test_room_is_used_again_and_never_shared():
    room, like = Room(), torch.empty(0)
    first, second = room.take(10, like), room.take(4, like)
    first.fill_(1)
    second.fill_(2)
    assert first.eq(1).all()
    room.clear()
    assert room.take(7, like).data_ptr() == first.data_ptr()
    room.clear()
    assert room.take(20, like).numel() == 20
    assert room.take(3, like.double()).dtype == torch.float64


def test_other_seed_step_direction_or_stream_gives_other_numbers():
    base = Draws(1, 2)
    first = normals(base)
    others = [
        normals(Draws(2, 2)),
        normals(Draws(1, 3)),
        normals(base, direction=1),
        normals(base, stream=1),
    ]
    for other in others:
        assert abs(torch.corrcoef(torch.stack([first, other]))[0, 1]) < 5 / SIZE**0.5
    tiles = first[: 2 * TILE].view(2, TILE)
    assert abs(torch.corrcoef(tiles)[0, 1]) < 5 / TILE**0.5


def test_numbers_have_their_law():
    assert kstest(normals(Draws(3, 4)).numpy(), "norm").pvalue > 1e-3
    degrees = np.full(20_000, 4.0)
    assert kstest(Draws(3, 4).chi_squares(degrees).numpy(), "chi2", args=(4,)).pvalue > 1e-3
    assert kstest(Draws(3, 4).scalar_normals(20_000).numpy(), "norm").pvalue > 1e-3


def test_blocks_appended_later_leave_earlier_numbers_unchanged():
    draws = Draws(5, 6)
    few, many = np.array([1.0, 4.0]), np.array([1.0, 4.0, 64.0])
    assert torch.equal(draws.chi_squares(few), draws.chi_squares(many)[:2])
    assert torch.equal(draws.scalar_normals(2), draws.scalar_normals(3)[:2])


def test_global_random_states_are_untouched():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    draws = Draws(7, 8)
    normals(draws)
    draws.chi_squares(np.ones(3))
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_mix_spreads_close_words():
    words = {
        mix(seed, step, tile) for seed in range(20) for step in range(20) for tile in range(20)
    }
    assert len(words) == 8000
    # 32 bits of a seed survive in torch's CPU engine: both halves must depend on every word.
    assert len({word & 0xFFFFFFFF for word in words}) == 8000
    assert mix(-1) == mix((1 << 64) - 1)
