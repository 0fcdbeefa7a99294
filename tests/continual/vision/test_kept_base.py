"""Taught bases in the cache: the same bits, named where broken, and never somebody else's."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from riselab.continual.devices import Devices
from riselab.continual.runs import make_host, read_config
from riselab.continual.vision import base as kept_base
from riselab.continual.vision.run import VisionRun

PLAIN: dict[str, Any] = {
    "domain": "vision",
    "stream": {"name": "turned-digits", "train_per_class": 5, "test_per_class": 2},
    "model": {"name": "mlp", "pretrained": False, "base_epochs": 2, "width": 16},
    "host": {"name": "fine-tune"},
    "loop": {"device": "cpu", "batch": 16},
}


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path))
    return tmp_path / "bases"


def settings(seed: int = 0, **model: Any) -> VisionRun:
    return replace(read_config(PLAIN | {"model": PLAIN["model"] | model}), seed=seed)


def made(wanted: VisionRun) -> tuple[str, Any]:
    """The base of a run, and the head that came with it."""
    kit = make_host(wanted, Devices(device="cpu")).kit
    assert kit.base_head is not None
    return kept_base.fingerprint(torch.nn.ModuleList([kit.vit, kit.base_head]).state_dict()), kit


def never(*given: Any) -> Any:
    raise AssertionError("it was taught again")


def test_a_base_is_taught_once_and_loaded_bit_for_bit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        without.setenv("RISEGRAD_CACHE", "none")
        expected, _ = made(settings())
    assert not folder.exists()
    first, taught = made(settings())
    monkeypatch.setattr(kept_base, "train_base", never)
    torch.manual_seed(7)
    again, loaded = made(settings())
    assert expected == first == again
    assert torch.initial_seed() == 7, "random numbers of others are not touched"
    for kit in (taught, loaded):
        both = [*kit.vit.parameters(), *kit.base_head.parameters()]
        assert not any(parameter.requires_grad for parameter in both)
        assert not kit.vit.training
    assert [file.name for file in folder.iterdir()] == [next(folder.iterdir()).name]


@pytest.mark.parametrize("change", [{"seed": 1}, {"base_epochs": 3}, {"base_lr": 0.1}])
def test_another_base_is_another_file(folder: Path, change: dict[str, Any]) -> None:
    first, _ = made(settings())
    second, _ = made(settings(**change))
    assert first != second
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_broken_file_is_named_and_taught_again(folder: Path, damage: str) -> None:
    expected, _ = made(settings())
    (file,) = folder.iterdir()
    whole = bytearray(file.read_bytes())
    if damage == "flipped":
        whole[-1] ^= 1
    else:
        whole = whole[: len(whole) // 2 if damage == "cut" else 0]
    file.write_bytes(whole)
    with pytest.warns(
        UserWarning, match=f"{file.name} .* is damaged .*: the base is trained again"
    ):
        assert made(settings())[0] == expected
    assert made(settings())[0] == expected, "and kept in its place"


def test_a_cache_that_cannot_be_written_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path / "file"))
    first, _ = made(settings())
    assert made(settings())[0] == first


def test_the_oldest_makes_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_base, "MOST", 2)
    made(settings(seed=0))
    (oldest,) = folder.iterdir()
    os.utime(oldest, (1, 1))
    made(settings(seed=1))
    made(settings(seed=2))
    assert len(list(folder.iterdir())) == 2
    assert not oldest.exists()


@pytest.mark.parametrize("library", ["numpy", "scipy", "scikit-learn"])
def test_another_version_of_what_makes_images_is_another_base(
    folder: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    made(settings())
    real = kept_base.version
    monkeypatch.setattr(kept_base, "version", lambda n: "0.0" if n == library else real(n))
    made(settings())
    assert len(list(folder.iterdir())) == 2
