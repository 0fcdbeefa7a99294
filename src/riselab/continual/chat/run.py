"""One run of a chat model: from settings to a result.

New is the exact match on each task when it was learned. Fgt is the drift: how far the answers to
general instructions have moved at the end of the stream, in hundredths of a nat per token. Points
of earlier tasks that were lost are ``task_forgetting``, and everything else that is measured beside
the tasks stands under its own name (``wiki_change``, ``choice_change``, ...).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from risegrad.common.seeds import seed_for
from riselab.common.inputs import look_at
from riselab.common.settings import Unused, essence, read, without
from riselab.continual import metrics
from riselab.continual.chat.abilities import FILES, Abilities
from riselab.continual.chat.adapters import trained_parts
from riselab.continual.chat.cache import Made, cached, content_of, own_sources
from riselab.continual.chat.model import (
    averaged_back,
    by_length,
    kept_chats,
    load,
    old_chats,
    put,
    trainable,
)
from riselab.continual.chat.settings import RULES, ChatRun, ChatStreamSettings
from riselab.continual.chat.tasks import Examples, build_stream
from riselab.continual.chat.texts import ChatTexts, answer_scores
from riselab.continual.chat.training import ChatLearner
from riselab.continual.checkpoints import Checkpoints
from riselab.continual.devices import Devices
from riselab.continual.host import Report, Stream
from riselab.continual.learning import History, origin_of
from riselab.continual.preflight import Known, complaint, missing_extras, off_hub, once
from riselab.continual.results import result
from riselab.continual.runs import Domain

SCORE = "exact_match"
SCORED = 32
"""Chats that are scored together."""
HELD, HELD_TOKENS = 16, 48
"""Own chats and their length, on which the drift is measured where it may decide."""
AFTERWARDS = ("rule.share", "loop.score_on", "stream.test_size")
"""What makes no difference to training."""


class ChatDomain(Domain[ChatRun]):
    """Chat models, which have a loop of their own: steps instead of epochs, rules of their own."""

    def read(self, plain: Mapping[str, Any]) -> ChatRun:
        settings = read(ChatRun, plain)
        if reasons := settings.rule.unused():
            raise Unused(reasons)
        rule, trains = settings.rule, settings.model.trains
        # They need the weights of then as they were, beside an adapter that began as zero.
        if rule.name in ("kl-new", "ewc") and trains not in ("lora", "oplora"):
            raise ValueError(
                f"rule.name {rule.name!r} needs model.trains = 'lora' or 'oplora', got {trains!r}"
            )
        if rule.share != 1 and trains not in ("lora", "oplora", "all"):
            raise ValueError(
                f"rule.share needs model.trains = 'lora', 'oplora' or 'all', got {trains!r}"
            )
        return settings

    def missing(self, settings: ChatRun, known: Known) -> list[str]:
        missing = missing_extras(
            ["transformers", "peft", "safetensors"], "language", "a chat model"
        )
        if settings.abilities.follow:
            missing += missing_extras(
                ["lm_eval", "langdetect", "nltk"], "ifeval", "abilities.follow"
            )
        missing += once(known, _unreadable, settings.stream)
        place = settings.model.weights
        if place and not (Path(place).expanduser() / "config.json").is_file():
            missing.append(
                f"model.weights must be a folder in the form of transformers, got {place!r}"
            )
        if not place and (why := off_hub(settings.model.name)):
            missing.append(
                f"model.name {settings.model.name!r} is {why}: give a folder with its files as "
                "--set model.weights=FOLDER"
            )
        folder = settings.abilities.folder
        if settings.rule.old == "prompts" and not folder:
            missing.append("rule.old = 'prompts' needs abilities.folder, whose prompts they are")
        if folder and not any((Path(folder).expanduser() / name).is_file() for name in FILES):
            missing.append(f"abilities.folder must have some of {', '.join(FILES)}, got {folder!r}")
        return missing

    def estimate(self, settings: ChatRun) -> dict[str, Any]:
        """Chats of the stream, and how many pass forward and backward while learning."""
        stream = build_stream(settings.stream)
        trained = len(stream) * settings.adapter.steps * settings.loop.batch
        tests = sum(
            (len(stream) - n) * len(_scored(stream, n, settings)) for n in range(len(stream))
        )
        chats = sum(len(task.train) for task in stream)
        return {
            "tasks": len(stream),
            "chats": chats,
            "forward": trained + tests,
            "backward": trained,
        }

    def seconds(self, settings: ChatRun) -> float:
        """How long the steps of a run would take here, from one that is timed."""
        stream = build_stream(settings.stream)
        model, texts, devices = _loaded(settings)
        chats = [texts.chat(e.prompt, e.answer) for e in stream[0].train[: settings.loop.batch]]
        model = trained_parts(model, settings.model, settings.seed, [texts.batch(chats[:1])])
        started = time.perf_counter()
        with devices.inside(model):
            scores, labels = answer_scores(model, texts.batch(chats))
            cross_entropy(scores.float(), labels).backward()  # type: ignore[no-untyped-call]
        return (time.perf_counter() - started) * settings.adapter.steps * len(stream)

    def perform(self, settings: ChatRun, folder: Path, report: Report) -> dict[str, Any]:
        """Learn the stream, going on from what is in ``folder``, then score."""
        stream = build_stream(settings.stream)
        accelerators = range(torch.accelerator.device_count())
        with torch.random.fork_rng(devices=accelerators):
            torch.manual_seed(seed_for(settings.seed, "chat"))
            model, texts, devices = _loaded(settings)
            abilities = _abilities(settings, stream, model, texts)
            before = _untrained(settings, stream, model, texts)
            old = []
            if "old" in RULES[settings.rule.name].uses or settings.model.trains in (
                "corda",
                "lora-null",
            ):
                old = old_chats(
                    model, texts.tokenizer, settings, settings.rule.examples, settings.seed
                )
            one_by_one = [texts.batch([chat]) for chat in old]
            model = trained_parts(model, settings.model, settings.seed, one_by_one)
            began = {name: p.detach().clone() for name, p in trainable(model).items()}
            learner = ChatLearner(
                model, texts, settings, [task.train for task in stream], old,
                Checkpoints(folder / "checkpoints", origin_of(settings)), report,
            )  # fmt: skip
            whole = settings.model.trains in ("all", "osf")  # too large for a cache
            with devices.inside(model):
                ends, plain = learner.learn() if whole else cached(_key(settings), learner.learn)
                history, nll = Scoring(settings, stream, texts).history(model, began, (ends, plain))
            # As the untrained model was measured: rounding is not to count as drift.
            with averaged_back(model, began, settings.rule.share):
                beside = abilities.compare(model)
        history.before = {SCORE: before}
        found = result(stream, history, SCORE, lambda A, union: metrics.summary_language(A))
        found["metrics"] |= _beside(found["metrics"], beside, plain) | {"nll": nll}
        return found


DOMAIN = ChatDomain()


def _unreadable(stream: ChatStreamSettings) -> list[str]:
    return complaint(lambda: build_stream(stream))


def _loaded(settings: ChatRun) -> tuple[Any, ChatTexts, Devices]:
    devices = Devices(settings.loop.precision, settings.loop.device)
    model, tokenizer = load(settings.model, devices.device)
    return model, ChatTexts(tokenizer, settings.model.length), devices


def _abilities(
    settings: ChatRun, stream: Stream[Examples], model: Any, texts: ChatTexts
) -> Abilities:
    """To report: those of the folder. To choose: the drift on chats that no rule has."""
    decides = settings.loop.score_on == "validation"
    own = (
        kept_chats(model, texts.tokenizer, [], HELD, HELD_TOKENS, seed_for(settings.seed, "held"))
        if decides
        else []
    )
    new = [e.prompt for n in range(len(stream)) for e in _scored(stream, n, settings)]
    return Abilities(
        model, texts.tokenizer, settings.abilities.folder, settings.abilities, new, own
    )


def _untrained(
    settings: ChatRun, stream: Stream[Examples], model: Any, texts: ChatTexts
) -> list[tuple[int, int]]:
    """The exact answers of the model as it comes, scored once for all its runs."""
    scored = [_scored(stream, number, settings) for number in range(len(stream))]
    asked = [[(e.prompt, e.answer) for e in examples] for examples in scored]
    key = {"untrained": 1, "model": content_of(model), "length": texts.length, "asked": asked}

    def make() -> Made:
        return {}, {"counts": [score(model, texts, examples)[0] for examples in scored]}

    return [(hits, total) for hits, total in cached(key, make)[1]["counts"]]


def _key(settings: ChatRun) -> dict[str, Any]:
    """What the trained weights depend on."""
    readings = settings.reads()
    own = without(essence(settings, complete=True), [*readings, *AFTERWARDS, "abilities"])
    return {"trained": own, "inputs": look_at(readings), "code": own_sources()}


def _beside(
    own: dict[str, Any], beside: dict[str, float], plain: dict[str, Any]
) -> dict[str, float | None]:
    drift = beside.get("drift", beside.get("drift_new"))
    kept = plain["kept"] or {}
    ours = {f"kept_{name}": kept[name] for name in ("mean", "strength") if name in kept}
    forgotten = None if drift is None else 100 * drift
    return beside | ours | {"forgetting": forgotten, "task_forgetting": own["forgetting"]}


def _scored(stream: Stream[Examples], number: int, settings: ChatRun) -> Examples:
    task = stream[number]
    return task.validation if settings.loop.score_on == "validation" else task.test


class Scoring:
    """Exact answers and their likelihood, after each task."""

    def __init__(self, settings: ChatRun, stream: Stream[Examples], texts: ChatTexts) -> None:
        self.settings, self.stream, self.texts = settings, stream, texts

    def history(self, model: Any, began: Any, learned: Made) -> tuple[History, float]:
        """The scores of all tasks so far after each, and the mean NLL of an answer when learned."""
        ends, plain = learned
        found, nll = History(), []
        for task in range(len(self.stream)):
            of = f"{task}/"
            put(model, {n.removeprefix(of): p for n, p in ends.items() if n.startswith(of)})
            started = time.perf_counter()
            with averaged_back(model, began, self.settings.rule.share):
                scored = [_scored(self.stream, n, self.settings) for n in range(task + 1)]
                rows = [score(model, self.texts, each) for each in scored]
            nll.append(rows[-1][1])
            found.scores.append({SCORE: [counts for counts, _ in rows]})
            found.seconds["score"].append(time.perf_counter() - started)
        found.losses = _by_epoch(plain["losses"])
        found.memory_bytes, found.data_bytes = plain["bytes"], plain["data"]
        found.seconds |= {"train": plain["train"], "remember": plain["remember"]}
        found.trainable = {"network": sum(p.numel() for p in trainable(model).values())}
        return found, sum(nll) / len(nll)


@torch.no_grad()
def score(model: Any, texts: ChatTexts, examples: Examples) -> tuple[tuple[int, int], float]:
    """How many answers are exactly right, of how many, and the mean NLL of a whole answer."""
    model.eval()
    hits, nll = 0, 0.0
    chats = [texts.chat(example.prompt, example.answer) for example in examples]
    for group in by_length(chats, SCORED):
        scores, labels = answer_scores(model, texts.batch(group))
        nll += float(cross_entropy(scores.float(), labels, reduction="sum"))
        # Each answer token is the likeliest one: greedy decoding writes this and stops.
        right = torch.split(scores.argmax(-1) == labels, [chat.answer for chat in group])
        hits += sum(bool(each.all()) for each in right)
    return (hits, len(chats)), nll / len(chats)


def _by_epoch(losses: Sequence[dict[str, Any]], parts: int = 4) -> list[dict[str, Any]]:
    """Means over quarters of each task's steps."""
    found = []
    for task in dict.fromkeys(entry["task"] for entry in losses):
        own = [entry["loss"] for entry in losses if entry["task"] == task]
        size = -(-len(own) // parts)
        for part in range(0, len(own), size):
            mean = sum(own[part : part + size]) / len(own[part : part + size])
            found.append({"task": task, "epoch": part // size, "loss": mean})
    return found
