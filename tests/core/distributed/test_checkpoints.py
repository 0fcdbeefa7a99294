"""A checkpoint written at one world size resumes at another, as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.distributed import jobs
from core.distributed.jobs import Setting
from core.distributed.pool import Pool
from core.distributed.test_world_sizes import assert_close
from risegrad.core.shapers import CovarianceNoise, Rise
from tail import by_default

Processes = Callable[[int], Pool]
BEFORE, AFTER = 2, 3

WAYS = {
    "more shards": (("fsdp", 2), ("fsdp", 4)),
    "fewer shards": (("fsdp", 4), ("fsdp", 1)),
    "replicas to shards": (("ddp", 2), ("fsdp", 4)),
    "shards to replicas": (("fsdp", 4), ("ddp", 2)),
    "shards to hybrid": (("fsdp", 2), ("hybrid", 4)),
}


def resumed(
    processes: Processes, folder: Path, setting: Setting, way: str, form: str
) -> list[dict[str, Any]]:
    (engine, size), (other, other_size) = WAYS[way]
    path = str(folder / "checkpoint")
    processes(size).run(jobs.save, setting.under(engine, steps=BEFORE), path, form)
    rest = setting.under(other, steps=AFTER)
    return processes(other_size).run(jobs.resume, rest, path, form, BEFORE)


def check(setting: Setting, results: list[dict[str, Any]]) -> None:
    whole = jobs.train(0, 1, setting.under("plain", steps=BEFORE + AFTER))
    for result in results:
        assert (result["loaded"], result["steps"]) == (BEFORE, BEFORE + AFTER)
        assert_close(result["parameters"], whole["parameters"])


FORMS = by_default(
    ("more shards", "sharded"), ("fewer shards", "full"), ("shards to replicas", "sharded"),
    slow=[("more shards", "full"), ("fewer shards", "sharded"), ("shards to replicas", "full"),
          *((way, form) for way in ("replicas to shards", "shards to hybrid")
            for form in ("sharded", "full"))],
)  # fmt: skip


@pytest.mark.parametrize(("way", "form"), FORMS)
def test_resumes_at_another_world_size(
    processes: Processes, tmp_path: Path, way: str, form: str
) -> None:
    setting = Setting(Rise(blocks="module"))
    check(setting, resumed(processes, tmp_path, setting, way, form))


@pytest.mark.parametrize("way", by_default("replicas to shards", slow=["more shards"]))
def test_flattened_optimizer_states(processes: Processes, tmp_path: Path, way: str) -> None:
    setting = Setting(Rise(blocks=16))
    check(setting, resumed(processes, tmp_path, setting, way, "flat"))


def test_updates_resume(processes: Processes, tmp_path: Path) -> None:
    setting = Setting(CovarianceNoise(), on="update", optimizer="momentum")
    check(setting, resumed(processes, tmp_path, setting, "more shards", "sharded"))


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_saving_an_optimizer_without_state_is_no_step(
    processes: Processes, tmp_path: Path, on: Any
) -> None:
    # torch steps such an optimizer with zero rates, hoping that it will have state then.
    setting = Setting(Rise(), optimizer="sgd", on=on)
    check(setting, resumed(processes, tmp_path, setting, "fewer shards", "sharded"))


@pytest.mark.parametrize("form", ["sharded", "full", "flat"])
def test_other_settings_are_refused(processes: Processes, tmp_path: Path, form: str) -> None:
    path = str(tmp_path / "checkpoint")
    saving = Setting(Rise(q=4), "fsdp", steps=1)
    processes(2).run(jobs.save, saving, path, form)
    other = saving.under("fsdp", shaper=Rise(q=5))
    for message in processes(2).run(jobs.resuming_error, other, path, form):
        assert "saved with other settings: q: saved 4, here 5;" in message
