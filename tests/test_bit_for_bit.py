"""Rebuilding the house changes no number: a few tiny runs give what they gave before it.

The digests were made by commit e85d68d, the last one before the rooms were moved (that of the
sandbox by the commit that merged its rooms: its figures 1 to 6 kept every byte). A change that
means to change numbers must say so, and replace the digests by its own.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from continual.language.tiny_text import config as text_config
from continual.language.tiny_text import save_model, write_task
from continual.tiny import config
from riselab.continual.host import silent
from riselab.continual.runs import perform, read_config
from riselab.sandbox.quadratics import one_thread
from riselab.sandbox.run import SandboxSettings
from riselab.sandbox.run import run as run_sandbox

MADE_WITH = ("2.15.0+cu132", "AVX512")
HERE = (torch.__version__, torch.backends.cpu.get_cpu_capability())

pytestmark = pytest.mark.skipif(
    HERE != MADE_WITH,
    reason=f"the digests were made with torch and instructions {MADE_WITH}, here are {HERE}: "
    "sums may be rounded otherwise",
)

VISION = {
    "rise": {"rule": {"name": "rise", "q": 2}},
    "zo": {"host": {"name": "zo-fc"}, "rule": {"name": "zo", "q": 2}},
    "ewc": {"additions": [{"name": "ewc", "weight": 100.0}]},
}
DIGESTS = {
    "rise": "246e83e88cb6d9f8",
    "zo": "d77831496a3384aa",
    "ewc": "7bce0a37f75765ab",
    "seq-lora": "2f7f5b7feceabe81",
    "sandbox": "78c548ebac11621b",
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums over several threads depend on how many there are."""
    with one_thread():
        yield


def digest(numbers: Any) -> str:
    """Of plain data; every bit of a float is in its text."""
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def plain_data(value: Any) -> Any:
    """Dataclasses and tensors as dictionaries and lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if is_dataclass(value):
        return {field.name: plain_data(getattr(value, field.name)) for field in fields(value)}
    return [plain_data(one) for one in value] if isinstance(value, list | tuple) else value


def learned(plain: Any, folder: Path) -> Any:
    """Losses and scores of a run: the last losses depend on every bit of the parameters."""
    found = perform(read_config(plain), folder, silent)
    return {name: found[name] for name in ("losses", "scores", "metrics")}


@pytest.mark.parametrize("name", VISION)
def test_a_vision_run(name: str, tmp_path: Path) -> None:
    assert digest(learned(config(**VISION[name]), tmp_path)) == DIGESTS[name]


def test_a_language_run(tmp_path: Path) -> None:
    for task in ("agnews", "SST-2", "RTE"):
        write_task(tmp_path / "tasks", task)
    weights = save_model(tmp_path / "model")
    plain = text_config(
        tmp_path / "tasks", weights, host={"name": "seq-lora"}, rule={"name": "rise"}
    )
    assert digest(learned(plain, tmp_path / "run")) == DIGESTS["seq-lora"]


def test_a_sandbox_run() -> None:
    settings = SandboxSettings(d=8, q=2, samples=640, large_d=16, block=4, steps=4)
    assert digest(plain_data(run_sandbox(settings))) == DIGESTS["sandbox"]
