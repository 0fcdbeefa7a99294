"""Eigenvectors in half precision: half of the bytes, and the same filter to three digits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from risegrad.memory.factor import Factor
from risegrad.memory.files import side_of
from risegrad.memory.memory import Memory
from risegrad.memory.remembering import memory_bytes, remember

DIM, RANK = 96, 5


def low(seed: int = 0) -> Factor:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.linalg.qr(torch.randn(DIM, RANK, generator=generator)).Q
    return Factor.of_eigenpairs(vectors, torch.logspace(2, 0, RANK), 0.1)


def test_filters_and_products_are_those_of_long_ones() -> None:
    long, short = low(), low().shortened()
    assert short.bytes == memory_bytes([DIM], RANK) == long.bytes - 2 * DIM * RANK
    x = torch.randn(DIM, 7, generator=torch.Generator().manual_seed(1))
    for found, wanted in (
        (short.filtered(x, 0.1), long.filtered(x, 0.1)),
        (short.filtered_right(x.T, 0.1), long.filtered_right(x.T, 0.1)),
        (short.product(x), long.product(x)),
        (short.dense(), long.dense()),
    ):
        assert found.dtype == torch.float32
        assert float((found - wanted).norm() / wanted.norm()) < 1e-3


def test_they_stay_short() -> None:
    short = low().shortened()
    for found in (
        short.scaled(2.0),
        short.truncated(3),
        short.grown(DIM + 4),
        short.plus(low(1).shortened()),
        short.rotated(torch.Generator().manual_seed(2)),
        short.to("cpu"),
        short.shortened(),
    ):
        assert found.tensors()["vectors"].dtype == torch.float16
        assert found.tensors()["values"].dtype == found.like.dtype == torch.float32
    assert short.plus(low(1)).tensors()["vectors"].dtype == torch.float32
    assert low().to("cpu", torch.float64).shortened().like.dtype == torch.float64


def test_a_memory_of_a_large_layer_has_them_and_its_file_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    kept = remember(nn.Linear(2000, 3), [torch.randn(4, 2000)], rank=3, progress=False)
    assert kept[next(iter(kept))].inputs.tensors()["vectors"].dtype == torch.float16
    kept.save(tmp_path / "kept.safetensors")
    assert Memory.load(tmp_path / "kept.safetensors") == kept


def test_only_vectors_may_be_short() -> None:
    tensors = low().tensors()
    with pytest.raises(ValueError, match="must be float32 or float64, or its eigenvectors float16"):
        side_of(tensors | {"values": tensors["values"].half()})
