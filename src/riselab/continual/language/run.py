"""One run in language: settings, the parts they describe, and what came out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from risegrad.common.settings import as_plain
from riselab.common.inputs import Reading
from riselab.continual import metrics, preflight
from riselab.continual.additions.memory import MemorySettings
from riselab.continual.devices import Devices
from riselab.continual.host import Report, Stream, TrainingBudget
from riselab.continual.language.hosts.lora import LanguageHost
from riselab.continual.language.hosts.register import HOSTS
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
from riselab.continual.learning import learn_stream
from riselab.continual.preflight import (
    Known,
    checkpoint_bytes,
    complaint,
    missing_extras,
    off_hub,
    once,
)
from riselab.continual.results import defined, matrices, result
from riselab.continual.rules import Rule
from riselab.continual.runs import read_run
from riselab.continual.training import Loop

TEXTS = 64
"""How many are answered to see how long that takes."""

MakeHost = Callable[["LanguageRun", Devices], LanguageHost]


def timed_seconds(settings: LanguageRun, make_host: MakeHost) -> float:
    """About how many seconds the whole run would take here."""
    stream = build_stream(settings.stream)
    step, answer = _paces(_small(settings), make_host)
    return trained(settings, stream) * step + scored(settings, stream) * answer


def _small(settings: LanguageRun) -> LanguageRun:
    """The same with a batch of texts per task."""
    stream = replace(
        settings.stream, train_size=settings.loop.batch, test_size=TEXTS, validation=0.0
    )
    loop = replace(settings.loop, score_on="test")
    return replace(settings, stream=stream, loop=loop, seed=0)


@cache
def _paces(settings: LanguageRun, make_host: MakeHost) -> tuple[float, float]:
    """Seconds of a text in a step, and of one that is answered and scored."""
    devices = Devices(settings.loop.precision, settings.loop.device)
    host = make_host(settings, devices)
    step = preflight.step(host, settings, devices)
    answered = len(host.kit.stream[0].test)
    return step, preflight.per_example(lambda: host.score([0]), answered, devices)


def work(settings: LanguageRun, stream: Stream[TextSplit]) -> dict[str, Any]:
    """Texts through the model, counted forward and backward; scoring included."""
    tests = _tests(settings, stream)
    rule = Rule(settings.rule.name or "fo", settings.rule.q)
    forward, backward = (1, 1) if rule.exact else (2 * rule.q, 0)
    passed = trained(settings, stream)
    return {
        "tasks": len(stream),
        "train texts": sum(len(task.train) for task in stream),
        "test texts": sum(tests),
        "forward": passed * forward + scored(settings, stream),
        "backward": passed * backward,
    }


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


def needs(settings: LanguageRun, known: Known) -> dict[str, Any]:
    """``missing``: a sentence each, with the way to get it; ``bytes`` of its checkpoints."""
    missing = once(known, _data, settings.stream) + once(known, _weights, settings.model)
    whole = settings.model.trains == "all"
    tasks = 1 if whole else len(settings.stream.order)  # hosts may keep one LoRA per task
    return {"missing": missing, "bytes": checkpoint_bytes(_trained(settings.model) * tasks)}


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
    if model.trains == "all":
        # In squares of the width: attention 4, its feed-forward layers 8; a decoder beside an
        # encoder has a second attention.
        squares = 4 + 8 + (2 * 4 + 8 if known.get("is_encoder_decoder") else 0)
        return squares * width**2 * layers + _first(known, "vocab_size") * width
    return 2 * model.rank * width * 2 * 3 * layers


def _first(known: Mapping[str, Any], *names: str) -> int:
    """What architectures call by one of these names; of T5-large, if this one has none of them."""
    found = next((known[name] for name in names if known.get(name)), LARGE[names[0]])
    return int(found)


USUAL = TrainingBudget(
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
    adapter: TrainingBudget = USUAL
    """Of LoRA, or of all weights."""
    head: TrainingBudget = USUAL
    """Of the classifier on an encoder."""
    memory: MemorySettings = field(default_factory=MemorySettings)
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
    settings = read_run(LanguageRun, {**plain, **budgets}, HOSTS, lambda run: run.model.unused())
    _check_trains(settings.model, HOSTS[settings.host.name])
    return settings


def _check_trains(model: LanguageModelSettings, host: type[LanguageHost]) -> None:
    if model.trains == "all" and not host.keeps_parameters:
        raise ValueError(
            f"model.trains must be 'lora' with host {host.name!r}, which freezes what each task "
            f"has trained and goes on with a new LoRA; got {model.trains!r}"
        )


def estimate(settings: LanguageRun) -> dict[str, Any]:
    """Texts of the stream, and how many pass forward and backward while learning."""
    return work(settings, build_stream(settings.stream))


def seconds(settings: LanguageRun) -> float:
    """How long a run would take here, from a few timed steps."""
    return timed_seconds(settings, make_host)


def perform(settings: LanguageRun, folder: Path, report: Report) -> dict[str, Any]:
    """Learn the stream, continuing from what is in ``folder``."""
    devices = Devices(settings.loop.precision, settings.loop.device)
    host = make_host(settings, devices)
    stream = host.kit.stream
    history = learn_stream(host, len(stream), settings, devices, folder, report)
    found = result(stream, history, host.main_score, lambda A, union: metrics.summary_language(A))
    summary = metrics.summary_language(matrices(history.scores, host.side_score)[0])
    for name in ("avg", "last", "forgetting"):
        found["metrics"][f"{host.side_score}_{name}"] = defined(getattr(summary, name))
    return found


def make_host(settings: LanguageRun, devices: Devices) -> LanguageHost:
    """The host with its stream, its model and everything else that the settings describe."""
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
