"""Runs in language: their settings and the parts that these describe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from riselab.common.inputs import Reading
from riselab.common.settings import as_plain
from riselab.continual import metrics, preflight
from riselab.continual.devices import Devices
from riselab.continual.host import Stream, TrainingBudget
from riselab.continual.language.hosts import HOSTS
from riselab.continual.language.hosts.lora import LanguageHost
from riselab.continual.language.kit import LanguageKit
from riselab.continual.language.models import (
    LanguageModelSettings,
    check_folder,
    load_model,
    model_of,
)
from riselab.continual.language.streams.build import TextSplit, build_stream
from riselab.continual.language.streams.hub import dataset_of, read_source, texts_of
from riselab.continual.language.streams.settings import LanguageStreamSettings
from riselab.continual.learning import History, Run
from riselab.continual.preflight import Known, complaint, missing_extras, off_hub, once
from riselab.continual.results import defined, matrices
from riselab.continual.rules import Rule
from riselab.continual.runs import HostDomain, Matrix, read_run

USUAL = TrainingBudget(
    epochs=1, optimizer="adamw", lr=1e-3, weight_decay=0.0, schedule="constant", clip=1.0
)
"""The benchmark's: AdamW without decay, a constant rate, one epoch, gradients of norm 1 at most."""


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

    def read(self, plain: Mapping[str, Any]) -> LanguageRun:
        """A budget says only what differs from the benchmark's."""
        usual = as_plain(USUAL)
        budgets = {name: usual | dict(plain.get(name, {})) for name in ("adapter", "head")}
        settings = read_run(
            LanguageRun, {**plain, **budgets}, HOSTS, lambda run: run.model.unused()
        )
        _check_trains(settings.model, HOSTS[settings.host.name])
        return settings

    def missing(self, settings: LanguageRun, known: Known) -> list[str]:
        return once(known, _data, settings.stream) + once(known, _weights, settings.model)

    def checkpoint(self, settings: LanguageRun) -> int:
        # Hosts may keep one LoRA per task.
        tasks = 1 if settings.model.trains != "lora" else len(settings.stream.order)
        return _trained(settings.model) * tasks

    def estimate(self, settings: LanguageRun) -> dict[str, Any]:
        """Texts through the model, counted forward and backward; scoring included."""
        stream = build_stream(settings.stream)
        rule = Rule(settings.rule.name or "fo", settings.rule.q)
        forward, backward = (trained(settings, stream) * n for n in rule.passes)
        return {
            "tasks": len(stream),
            "train texts": sum(len(task.train) for task in stream),
            "test texts": sum(_tests(settings, stream)),
            "forward": forward + scored(settings, stream),
            "backward": backward,
        }

    def seconds(self, settings: LanguageRun) -> float:
        stream = build_stream(settings.stream)
        step, answer = _paces(_small(settings))
        return trained(settings, stream) * step + scored(settings, stream) * answer

    def host(self, settings: LanguageRun, devices: Devices) -> LanguageHost:
        host = HOSTS[settings.host.name]
        stream = build_stream(settings.stream, host.prompt)
        kit = LanguageKit(
            stream=stream,
            model=load_model(settings.model),
            rule=settings.rule,
            adapter=settings.adapter,
            head=settings.head,
            loop=settings.loop,
            devices=devices,
            seed=settings.seed,
            bucket=settings.stream.bucket,
            trains_head=host.trains_head,
            prompt=host.prompt if settings.stream.prompt == "auto" else settings.stream.prompt,
        )
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


def _check_trains(model: LanguageModelSettings, host: type[LanguageHost]) -> None:
    if model.trains != "lora" and not host.keeps_parameters:
        raise ValueError(
            f"model.trains must be 'lora' with host {host.name!r}, which freezes what each task "
            f"has trained and continues with a new LoRA; got {model.trains!r}"
        )


TEXTS = 64
"""How many are answered to see how long that takes."""


def _small(settings: LanguageRun) -> LanguageRun:
    """The same with a batch of texts per task."""
    stream = replace(
        settings.stream, train_size=settings.loop.batch, test_size=TEXTS, validation=0.0
    )
    loop = replace(settings.loop, score_on="test")
    return replace(settings, stream=stream, loop=loop, seed=0)


@cache
def _paces(settings: LanguageRun) -> tuple[float, float]:
    """Seconds of a text in a step, and of one that is answered and scored."""
    devices = settings.devices
    host = DOMAIN.host(settings, devices)
    step = preflight.step(host, settings, devices)
    answered = len(host.stream[0].test)
    return step, preflight.per_example(lambda: host.score([0]), answered, devices)


def trained(settings: LanguageRun, stream: Stream[TextSplit]) -> int:
    """Texts of all training steps; those of known tasks are not among them."""
    return sum(len(task.train) for task in stream.tasks[stream.known :]) * settings.adapter.epochs


def scored(settings: LanguageRun, stream: Stream[TextSplit]) -> int:
    """Texts read for scores: every task so far after each, and the next ones if zero-shot.

    Known tasks are scored once before all training, and that counts as all their sessions.
    """
    tests, known = _tests(settings, stream), stream.known
    count = sum(sum(tests[: t + 1]) for t in range(known, len(tests)))
    if settings.host.zero_shot:
        return count + sum(tests) + sum(tests[known + 1 :])
    return count + sum(tests[:known])


def _tests(settings: LanguageRun, stream: Stream[TextSplit]) -> list[int]:
    return [len(getattr(task, settings.loop.score_on)) for task in stream]


LARGE = {"d_model": 1024, "num_layers": 24, "vocab_size": 32128, "is_encoder_decoder": 1}
"""T5-large, where a model's own shape is not known."""


def _data(stream: LanguageStreamSettings) -> list[str]:
    """Files are small and read here; data sets on the hub are only looked for."""
    datasets = {name: dataset_of(stream, name) for name in stream.order}
    places = dict.fromkeys(found.path for found in datasets.values() if found)
    if not places:
        return complaint(lambda: build_stream(stream))
    if lacking := missing_extras(["datasets"], "language", "text tasks from the hub"):
        return lacking
    files = [name for name, found in datasets.items() if found is None]
    missing = [
        f"the dataset {place!r} is {why}: give files with --set stream.source=folder "
        "--set stream.data=FOLDER, or stream.own.NAME.path"
        for place in places
        if (why := off_hub(place, "dataset"))
    ]
    return missing + complaint(lambda: [read_source(stream, name, _all) for name in files])


def _all(purpose: str, count: int) -> range:
    """All rows."""
    return range(count)


def _weights(model: LanguageModelSettings) -> list[str]:
    if model.weights:
        return complaint(lambda: check_folder(Path(model.weights).expanduser()))
    if why := off_hub(model.name):
        return [
            f"model.name {model.name!r} is {why}: give a folder with its files as "
            "--set model.weights=FOLDER"
        ]
    return []


def _trained(model: LanguageModelSettings) -> int:
    """About: two layers in each attention of an encoder and a decoder, or all weights."""
    try:
        known = json.loads((Path(model.weights).expanduser() / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        known = LARGE
    width = _first(known, "d_model", "hidden_size", "n_embd")
    layers = _first(known, "num_layers", "num_hidden_layers", "n_layer")
    if model.trains != "lora":
        # In squares of the width: attention 4, its feed-forward layers 8; a decoder beside an
        # encoder has a second attention.
        squares = 4 + 8 + (2 * 4 + 8 if known.get("is_encoder_decoder") else 0)
        return squares * width**2 * layers + _first(known, "vocab_size") * width
    return 2 * model.rank * width * 2 * 3 * layers


def _first(known: Mapping[str, Any], *names: str) -> int:
    """What architectures call by one of these names; of T5-large, if this one has none of them."""
    found = next((known[name] for name in names if known.get(name)), LARGE[names[0]])
    return int(found)
