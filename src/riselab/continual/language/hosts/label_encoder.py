"""An encoder for short texts: a text is given the label whose name means the nearest to it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from riselab.common.settings import Positive
from riselab.continual.host import Session
from riselab.continual.language import SUMMARIES
from riselab.continual.language.batches import TextBatch, Tokens, padded, tokenized
from riselab.continual.language.hosts.lora import (
    LanguageHostSettings,
    OLoraSettings,
    PenaltyWeight,
    SeqLora,
    overlap,
    per_task,
    restack,
    stacks_of,
)
from riselab.continual.language.kit import LanguageKit
from riselab.continual.language.models import pooled

TOKENS = 1024
"""Of one batch where nothing is trained, padding included: more gains nothing on a CPU, and long
texts among short ones would make them all long."""


@dataclass(frozen=True)
class LabelEncoderSettings(LanguageHostSettings):
    """How sharp the choice between labels is."""

    scale: Positive = 20.0
    """Multiplies the cosine of text and label: the scores whose softmax the loss looks at."""
    main: Literal["accuracy", "stream_labels"] = "accuracy"
    """Which score counts: ``accuracy`` over each task's own labels, or ``stream_labels``, over
    those of all tasks from the start, so that nothing but the model changes (zero-shot ability)."""


class LabelEncoder(SeqLora):
    """One LoRA, or all weights, for all tasks and no trained head: labels stay where the pretrained
    model has them.

    The score of a label is ``scale * cos(text, label)``, both means over tokens. The loss is over
    the session's own labels; so is the main score, for each task over its own. The side score is
    over all labels that were seen, and those of the task itself. With ``main = "stream_labels"``
    the main score is over the labels of the whole stream, and ``accuracy`` is the second.
    """

    name = "label-encoder"
    summary = SUMMARIES[name]
    Settings = LabelEncoderSettings
    main_score = "accuracy"
    side_score = "all_labels"
    masks_classes = True
    trains_head = False
    prompt = "sentence"

    def __init__(self, kit: LanguageKit, settings: LabelEncoderSettings) -> None:
        if kit.model.kind != "encoder":
            raise ValueError(
                f"host {self.name!r} needs an encoder such as BERT, got {kit.model.model_type}, "
                f"which is a {kit.model.kind} model"
            )
        super().__init__(kit, settings)
        if settings.main != self.main_score:
            self.main_score, self.side_score = settings.main, self.main_score
        self.seen = 0
        """How many tasks were learned."""
        self.places = _places(kit)
        # Before anything is learned: the model is the pretrained one.
        self.labels = self._embedded(tokenized(kit.model.tokenizer, _names(kit), kit.limit))

    def begin(self, task: int) -> Session:
        return replace(
            super().begin(task),
            loss=lambda batch, every: self._loss(self._scores(batch, task), batch, task, every),
            logits=lambda batch: self._scores(batch, task),
            loss_of_logits=lambda scores, batch, every: self._loss(scores, batch, task, every),
            predictions=lambda batch: self._scores(batch, task)[:, self.places[task]],
            features=self._unit,
            seen_before=self._known(task),
        )

    def finish(self, task: int) -> None:
        self.seen = task + 1

    def hits(self, task: int, split: str) -> tuple[Iterable[str], Tensor]:
        data, device = self.kit.answered(task, split), self.kit.devices.device
        mine = list(self.kit.devices.share(range(len(data.prompts))))
        right = torch.tensor([data.classes[index] for index in mine], device=device)
        with self.kit.devices.autocast():
            texts = self._embedded(data.prompts, mine)
        scores = texts @ self.labels.T
        both = (self.main_score, self.side_score)
        choices = [self._choices(score, task) for score in both]
        found = [(names[scores[:, names].argmax(1)] == right).sum() for names in choices]
        return both, torch.stack([*found, torch.tensor(len(mine), device=device)])

    def _choices(self, score: str, task: int) -> Tensor:
        """Places of the labels that a text of the task may get in this score."""
        own = self.places[task]
        if score == "accuracy":
            return own
        seen = len(self.labels) if score == "stream_labels" else self._known(self.seen)
        known = torch.arange(seen, device=own.device)
        return torch.cat([known, own[own >= seen]])

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.seen = state["seen"]

    def keep(self, folder: Path) -> None:
        """Also the labels, where the pretrained model that embedded them is gone."""
        super().keep(folder)
        if not self.kit.model.layers:
            vectors = zip(self.kit.labels, self.labels.cpu(), strict=True)
            save_file({name: v.clone() for name, v in vectors}, folder / "labels.safetensors")

    def _scores(self, batch: TextBatch, task: int) -> Tensor:
        """Of all labels up to this task, in the order in which they came."""
        known = self.labels[: self._known(task + 1)]
        scores: Tensor = self.settings.scale * self._unit(batch) @ known.T
        return scores

    def _unit(self, batch: TextBatch) -> Tensor:
        """Texts as unit vectors."""
        return normalize(pooled(self.kit.model.net, batch.source, batch.mask).float(), dim=1)

    def _loss(self, scores: Tensor, batch: TextBatch, task: int, every: bool) -> Tensor:
        if every:
            return cross_entropy(scores, batch.targets)
        own = self.places[task]
        wanted = (batch.targets.unsqueeze(1) == own).int().argmax(1)
        return cross_entropy(scores[:, own], wanted)

    def _known(self, tasks: int) -> int:
        """How many labels the first ``tasks`` tasks have; tasks may share some."""
        return 1 + max((int(places.max()) for places in self.places[:tasks]), default=-1)

    @torch.no_grad()
    def _embedded(self, tokens: Tokens, indices: Sequence[int] | None = None) -> Tensor:
        """Unit vectors of texts; those of like lengths share a batch, which pads little."""
        model, device = self.kit.model, self.kit.devices.device
        wanted = range(len(tokens)) if indices is None else indices
        lengths = tokens.lengths()
        found = torch.empty(len(wanted), int(model.net.config.hidden_size), device=device)
        for part in _batches([lengths[index] for index in wanted]):
            rows = [tokens[wanted[place]] for place in part]
            source, mask = padded(rows, int(model.tokenizer.pad_token_id))
            found[part] = pooled(model.net, source.to(device), mask.to(device)).float()
        return normalize(found, dim=1)


@dataclass(frozen=True)
class OLabelEncoderSettings(LabelEncoderSettings):
    """As for ``o-lora``: the weights of the two penalties."""

    lambda1: PenaltyWeight = OLoraSettings.lambda1
    """Of the overlap of the new A with each earlier one."""
    lambda2: PenaltyWeight = OLoraSettings.lambda2
    """Of the size of the new pair."""


class OLabelEncoder(LabelEncoder):
    """O-LoRA on the encoder: a new LoRA for every task beside the frozen earlier ones, its A kept
    nearly orthogonal to theirs by a penalty in the loss."""

    name = "o-label-encoder"
    summary = SUMMARIES[name]
    keeps_parameters = False
    adds_to_layers = True
    Settings = OLabelEncoderSettings
    settings: OLabelEncoderSettings

    def __init__(self, kit: LanguageKit, settings: OLabelEncoderSettings) -> None:
        if not kit.model.layers:
            raise ValueError(f"host {self.name!r} needs model.trains = 'lora'")
        self.lambda1 = per_task("lambda1", settings.lambda1, kit.stream)
        self.lambda2 = per_task("lambda2", settings.lambda2, kit.stream)
        super().__init__(kit, settings)

    def begin(self, task: int) -> Session:
        self._start(task)
        session = super().begin(task)
        weights, layers = (self.lambda1[task], self.lambda2[task]), self.kit.model.layers.values()

        def loss(scores: Tensor, batch: TextBatch, every: bool) -> Tensor:
            return self._loss(scores, batch, task, every) + overlap(layers, *weights)

        return replace(
            session,
            loss=lambda batch, every: loss(self._scores(batch, task), batch, every),
            loss_of_logits=loss,
        )

    def finish(self, task: int) -> None:
        super().finish(task)
        for layer in self.kit.model.layers.values():
            layer.freeze()

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "stacks": stacks_of(self.kit.model.layers)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]
        restack(self.kit.model.layers, state["stacks"], self.kit.devices.device)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of texts, long ones first: as many as ``TOKENS`` hold, padded to the first.

    >>> list(_batches([700, 3, 300, 500]))
    [[0], [3, 2], [1]]
    """
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    while order:
        size = max(1, TOKENS // max(lengths[order[0]], 1))
        yield order[:size]
        order = order[size:]


def plain_words(label: str) -> str:
    """A label as one would say it.

    >>> plain_words("card_payment-fee__charged")
    'card payment fee charged'
    """
    return " ".join(re.sub(r"[_-]", " ", label).split())


def _names(kit: LanguageKit) -> list[str]:
    names = [plain_words(label) for label in kit.labels]
    for label, name in zip(kit.labels, names, strict=True):
        if not name or names.count(name) > 1:
            raise ValueError(
                "labels must differ in their words, which are all that the encoder sees of them, "
                f"got {label!r}, which reads {name!r}"
            )
    return names


def _places(kit: LanguageKit) -> list[Tensor]:
    """Of each task's labels among all of the stream."""
    where = {label: place for place, label in enumerate(kit.labels)}
    device = kit.devices.device
    return [
        torch.tensor([where[label] for label in task.classes], device=device) for task in kit.stream
    ]
