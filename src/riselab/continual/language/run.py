"""Runs in language: their settings and the parts that these describe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from riselab.common.inputs import Reading
from riselab.common.settings import as_plain
from riselab.continual import metrics
from riselab.continual.devices import Devices
from riselab.continual.host import TrainingBudget
from riselab.continual.language.hosts import HOSTS
from riselab.continual.language.hosts.lora import LanguageHost
from riselab.continual.language.kit import LanguageKit
from riselab.continual.language.models import (
    LanguageModelSettings,
    check_folder,
    load_model,
    model_of,
)
from riselab.continual.language.streams.build import build_stream
from riselab.continual.language.streams.files import read_source, texts_of
from riselab.continual.language.streams.settings import LanguageStreamSettings
from riselab.continual.learning import History, Run
from riselab.continual.preflight import complaint, missing_extras, off_hub
from riselab.continual.results import defined, matrices
from riselab.continual.runs import HostDomain, Matrix, Work, read_run

USUAL = TrainingBudget(
    epochs=1, optimizer="adamw", lr=1e-3, weight_decay=0.0, schedule="constant", clip=1.0
)
"""The benchmark's: AdamW without decay, a constant rate, one epoch, gradients of norm 1 at most."""

TEXTS = 64
"""How many are answered to see how long that takes."""
LARGE = {"d_model": 1024, "num_layers": 24, "vocab_size": 32128, "is_encoder_decoder": 1}
"""T5-large, where a model's own shape is not known."""


@dataclass(frozen=True)
class LanguageRun(Run):
    """A run in language."""

    stream: LanguageStreamSettings
    adapter: TrainingBudget = USUAL
    """Of LoRA, or of all weights."""
    head: TrainingBudget = USUAL
    """Of the classifier on an encoder."""
    model: LanguageModelSettings = field(default_factory=LanguageModelSettings)
    domain: Literal["language"] = "language"

    def reads(self) -> dict[str, Reading]:
        """The texts and the model, by the settings that name them."""
        return texts_of(self.stream) | model_of(self.model)


class LanguageDomain(HostDomain[LanguageRun]):
    """Texts, and models that read them."""

    examples = "texts"
    hosts = HOSTS

    def read(self, plain: Mapping[str, Any]) -> LanguageRun:
        """A budget says only what differs from the benchmark's."""
        usual = as_plain(USUAL)
        budgets = {name: usual | dict(plain.get(name, {})) for name in ("adapter", "head")}
        settings = read_run(
            LanguageRun, {**plain, **budgets}, HOSTS, lambda run: run.model.unused()
        )
        host = HOSTS[settings.host.name]
        if settings.model.trains != "lora" and not host.keeps_parameters:
            raise ValueError(
                f"model.trains must be 'lora' with host {host.name!r}, which freezes what each "
                f"task has trained and continues with a new LoRA; got {settings.model.trains!r}"
            )
        return settings

    def no_data(self, stream: LanguageStreamSettings) -> list[str]:
        """Files are small and read here; data sets on the hub are only looked for."""
        own = {name: stream.own[name] for name in stream.order if name in stream.own}
        places = dict.fromkeys(one.hub for one in own.values() if one.hub)
        if not places:
            return complaint(lambda: build_stream(stream))
        if lacking := missing_extras(["datasets"], "language", "text tasks from the hub"):
            return lacking
        files = [name for name in stream.order if name not in own or not own[name].hub]
        missing = [
            f"the dataset {place!r} is {why}: give files as stream.own.NAME.path"
            for place in places
            if (why := off_hub(place, "dataset"))
        ]
        return missing + complaint(lambda: [read_source(stream, name, _all) for name in files])

    def no_model(self, model: LanguageModelSettings) -> list[str]:
        """Weights are looked for, not read."""
        if model.weights:
            return complaint(lambda: check_folder(Path(model.weights).expanduser()))
        if why := off_hub(model.name):
            return [
                f"model.name {model.name!r} is {why}: give a folder with its files as "
                "--set model.weights=FOLDER"
            ]
        return []

    def checkpoint(self, settings: LanguageRun) -> int:
        """Two layers in each attention of an encoder and a decoder, or all weights."""
        model = settings.model
        try:
            place = Path(model.weights).expanduser() / "config.json"
            known = LARGE if not model.weights else json.loads(place.read_text("utf-8"))
        except (OSError, ValueError):
            known = LARGE

        def first(*names: str) -> int:
            """What architectures call by one of these names."""
            return int(next((known[name] for name in names if known.get(name)), LARGE[names[0]]))

        width = first("d_model", "hidden_size", "n_embd")
        layers = first("num_layers", "num_hidden_layers", "n_layer")
        if model.trains != "lora":
            # In squares of the width: attention 4, its feed-forward layers 8; a decoder beside an
            # encoder has a second attention.
            squares = 4 + 8 + (2 * 4 + 8 if known.get("is_encoder_decoder") else 0)
            return squares * width**2 * layers + first("vocab_size") * width
        # Hosts may keep one LoRA per task.
        return 2 * model.rank * width * 2 * 3 * layers * len(settings.stream.order)

    def work(self, settings: LanguageRun) -> Work:
        """Scored are every task so far after each, and the next ones if zero-shot. Known tasks are
        scored once before all training, and that counts as all their sessions."""
        stream = build_stream(settings.stream)
        sizes = [len(task.train) for task in stream]
        tests = [len(getattr(task, settings.loop.score_on)) for task in stream]
        known, ahead = stream.known, settings.host.zero_shot
        scored = sum(sum(tests[: t + 1]) for t in range(known, len(tests)))
        scored += sum(tests) + sum(tests[known + 1 :]) if ahead else sum(tests[:known])
        return Work(sizes, tests, sum(sizes[known:]) * settings.adapter.epochs, scored)

    def small(self, settings: LanguageRun) -> LanguageRun:
        few, batch = settings.stream, settings.loop.batch
        few = replace(few, train_size=batch, test_size=TEXTS, validation=0.0)
        return replace(settings, stream=few)

    def score(self, host: LanguageHost) -> int:
        host.score([0])
        return len(host.stream[0].test)

    def host(self, settings: LanguageRun, devices: Devices) -> LanguageHost:
        host = HOSTS[settings.host.name]
        stream = build_stream(settings.stream, host.prompt)
        kit = LanguageKit(settings, stream, devices, load_model(settings.model), host)
        return host(kit, settings.host)

    def summarize(
        self, settings: LanguageRun, matrix: Matrix, union: list[float]
    ) -> metrics.Summary:
        return metrics.summary_language(matrix)

    def more(self, found: dict[str, Any], host: LanguageHost, history: History) -> None:
        """The same three numbers by the side score."""
        side = host.side_score
        summary = metrics.summary_language(matrices(history.scores, side)[0])
        for name in ("avg", "last", "forgetting"):
            found["metrics"][f"{side}_{name}"] = defined(getattr(summary, name))


DOMAIN = LanguageDomain()


def _all(purpose: str, count: int) -> range:
    """All rows."""
    return range(count)
