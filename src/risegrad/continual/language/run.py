"""One run in language: settings, the parts they describe, and what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from risegrad.continual import metrics
from risegrad.continual.budget import Budget
from risegrad.continual.config import read_run
from risegrad.continual.devices import Devices
from risegrad.continual.language import pace
from risegrad.continual.language.build import build_stream, texts_of
from risegrad.continual.language.hosts import HOSTS, LanguageHost
from risegrad.continual.language.kit import LanguageKit
from risegrad.continual.language.model import LanguageModelSettings, load_model, model_of
from risegrad.continual.language.needs import needs as needs
from risegrad.continual.language.settings import LanguageStreamSettings
from risegrad.continual.language.work import work
from risegrad.continual.learn import learn_stream
from risegrad.continual.progress import Report
from risegrad.continual.results import defined, matrices, result
from risegrad.continual.rules import Rule
from risegrad.continual.train import Loop
from risegrad.files import cache_folder
from risegrad.inputs import Reading
from risegrad.settings import as_plain

USUAL = Budget(
    epochs=1, optimizer="adamw", lr=1e-3, weight_decay=0.0, schedule="constant", clip=1.0
)
"""The benchmark's: AdamW without decay, a constant rate, one epoch, gradients of norm 1 at most."""


@dataclass(frozen=True)
class LanguageRun:
    """Everything that a run in language depends on."""

    stream: LanguageStreamSettings
    host: Any
    """The settings of the host, with its ``name``."""
    model: LanguageModelSettings = field(default_factory=LanguageModelSettings)
    rule: Rule = field(default_factory=Rule)
    adapter: Budget = USUAL
    """Of LoRA."""
    head: Budget = USUAL
    """Of the classifier on an encoder."""
    loop: Loop = field(default_factory=Loop)
    additions: tuple[Any, ...] = ()
    seed: int = 0
    """Of initialization, batches, dropout and draws; the choice of examples has its own."""
    domain: Literal["language"] = "language"

    def reads(self) -> dict[str, Reading]:
        """The texts and the model, by the settings that name them."""
        return texts_of(self.stream) | model_of(self.model)


def read_config(plain: Mapping[str, Any]) -> LanguageRun:
    """Plain tables into settings; a budget says only what differs from the benchmark's."""
    budgets = {name: as_plain(USUAL) | dict(plain.get(name, {})) for name in ("adapter", "head")}
    return read_run(LanguageRun, {**plain, **budgets}, HOSTS)


def estimate(settings: LanguageRun) -> dict[str, Any]:
    """Texts of the stream, and how many pass forward and backward while learning."""
    return work(settings, build_stream(settings.stream))


def seconds(settings: LanguageRun) -> float:
    """How long a run would take here, from a few timed steps."""
    return pace.seconds(settings, make_host)


def perform(settings: LanguageRun, folder: Path, report: Report) -> dict[str, Any]:
    """Learn the stream, going on from what lies in ``folder``."""
    devices = Devices(settings.loop.precision, settings.loop.device)
    host = make_host(settings, devices)
    stream = host.kit.stream
    history = learn_stream(host, len(stream), settings, devices, folder, report)
    found = result(stream, history, host.main_score, lambda A, union: metrics.summary_language(A))
    summary = metrics.summary_language(matrices(history.scores, "constrained")[0])
    for name in ("avg", "last", "forgetting"):
        found["metrics"][f"constrained_{name}"] = defined(getattr(summary, name))
    return found


def make_host(settings: LanguageRun, devices: Devices) -> LanguageHost:
    kit = LanguageKit(
        stream=build_stream(settings.stream),
        model=load_model(settings.model),
        rule=settings.rule,
        adapter=settings.adapter,
        head=settings.head,
        loop=settings.loop,
        devices=devices,
        seed=settings.seed,
        bucket=settings.stream.bucket,
        cache=cache_folder("tokens"),
    )
    return HOSTS[settings.host.name](kit, settings.host)
