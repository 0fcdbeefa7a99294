"""What every language host works with: the stream, the model, tokens, budgets, rule, devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from risegrad.common.seeds import generator_for
from riselab.continual.devices import Devices
from riselab.continual.host import Stream
from riselab.continual.language.batches import (
    IGNORED,
    Answered,
    TextBatch,
    TextItems,
    Tokens,
    answer_tokens,
    prompt_limit,
    tokenized,
)
from riselab.continual.language.models import LabelHead, LanguageModel, pooled
from riselab.continual.language.streams.build import TextSplit
from riselab.continual.learning import HostKit

if TYPE_CHECKING:
    from riselab.continual.language.hosts.lora import LanguageHost
    from riselab.continual.language.run import LanguageRun


class LanguageKit(HostKit):
    """The parts that hosts share."""

    stream: Stream[TextSplit]

    def __init__(
        self, settings: LanguageRun, stream: Stream[TextSplit], devices: Devices,
        model: LanguageModel, host: type[LanguageHost],
    ) -> None:  # fmt: skip
        super().__init__(settings, stream, devices)
        self.model, self.bucket = model, settings.stream.bucket
        self.classifier: LabelHead | None = None
        """Of an encoder only, where the host trains one."""
        self._answered: dict[tuple[int, str], Answered] = {}
        device = devices.device
        model.module.to(device)
        if model.kind != "encoder":
            self._check_answers()
        elif host.trains_head:
            width = int(model.net.config.hidden_size)
            generator = generator_for(self.seed, "head")
            self.classifier = LabelHead(width, self.labels, generator).to(device)
        form = settings.stream.prompt
        instructed = (host.prompt if form == "auto" else form) == "instruction"
        cut = model.settings.cut if instructed else "end"  # no "Answer:" to keep
        self.limit = prompt_limit(model.tokenizer, model.settings.source_length, cut)

    @property
    def labels(self) -> tuple[str, ...]:
        """All label texts of the stream, each once, as they first come."""
        return tuple(dict.fromkeys(label for task in self.stream for label in task.classes))

    def answered(self, task: int, split: str) -> Answered:
        """A split as tokens, made when it is first asked for."""
        if (task, split) not in self._answered:
            self._answered[task, split] = self._tokens(getattr(self.stream[task], split))
        return self._answered[task, split]

    def items(self, task: int) -> TextItems:
        """Training examples of this task and those before it, which a memory may ask for."""
        if self.model.kind == "encoder":
            for earlier in range(task + 1):
                self._check_labels(earlier)
        tasks = {t: self.answered(t, "train") for t in range(task + 1)}
        return TextItems(self.model.kind, tasks, int(self.model.tokenizer.pad_token_id))

    def written(self, text: str) -> Tensor:
        """An answer as tokens, with the end that a model has to write."""
        return answer_tokens(self.model.tokenizer, text, self.model.settings.target_length)

    def loss(self, batch: TextBatch) -> Tensor:
        """Mean over the tokens of all answers; for an encoder, over examples."""
        if self.classifier is not None:
            logits = self.classifier(self.model.net, batch.source, batch.mask)
            return torch.nn.functional.cross_entropy(logits, batch.targets)
        loss: Tensor = self._run(batch).loss
        return loss

    def weight(self, batch: TextBatch) -> float:
        """How many predictions that is the mean over."""
        if self.model.kind == "encoder":
            return len(batch)
        targets = batch.targets[:, 1:] if self.model.kind == "decoder" else batch.targets
        return float((targets != IGNORED).sum())

    def predictions(self, batch: TextBatch) -> Tensor:
        """Scores of the next token at every place of an answer; for an encoder, of all labels."""
        if self.classifier is not None:
            scores: Tensor = self.classifier(self.model.net, batch.source, batch.mask)
            return scores
        return self._at_answers(self._run(batch).logits, batch)

    def features(self, batch: TextBatch) -> Tensor:
        """What those scores are computed from."""
        if self.classifier is not None:
            return pooled(self.model.net, batch.source, batch.mask)
        found = self._run(batch, output_hidden_states=True)
        seq2seq = self.model.kind == "seq2seq"
        states = found.decoder_hidden_states if seq2seq else found.hidden_states
        return self._at_answers(states[-1], batch)

    def _run(self, batch: TextBatch, **options: Any) -> Any:
        return self.model.net(
            input_ids=batch.source,
            attention_mask=batch.mask,
            labels=batch.targets,
            use_cache=False,
            **options,
        )

    def _at_answers(self, values: Tensor, batch: TextBatch) -> Tensor:
        """Rows for the places that count; a decoder says there what comes next."""
        targets = batch.targets
        if self.model.kind == "decoder":
            values, targets = values[:, :-1], targets[:, 1:]
        return values[targets != IGNORED]

    def _tokens(self, split: TextSplit) -> Answered:
        prompts: Tokens = tokenized(self.model.tokenizer, split.prompts, self.limit)
        self._check_positions(prompts)
        write = None if self.model.kind == "encoder" else self.written
        return Answered.of(prompts, split.answers, write, self.labels)

    def _check_answers(self) -> None:
        """A label that is cut short could never be written in full, and two may become one."""
        most = self.model.settings.target_length
        for label in self.labels:
            size = len(self.model.tokenizer(label, add_special_tokens=False)["input_ids"]) + 1
            if size > most:
                raise ValueError(
                    f"model.target_length must hold every label and its end: {label!r} has {size} "
                    f"tokens, got {most}"
                )

    def _check_positions(self, prompts: Tokens) -> None:
        """Models with a table of positions fail on longer texts, and not with these words."""
        positions = getattr(self.model.net.config, "max_position_embeddings", None)
        if positions is None:
            return
        settings = self.model.settings
        rest = positions - (settings.target_length if self.model.kind == "decoder" else 0)
        longest = max(prompts.lengths(), default=0)
        if longest > rest:
            raise ValueError(
                f"{self.model.model_type} has {positions} positions, which leaves {rest} for a "
                f"prompt, and one has {longest} tokens: set model.source_length to {rest} or less"
            )

    def _check_labels(self, task: int) -> None:
        unknown = sum(place < 0 for place in self.stream[task].train.labels)
        if unknown:
            raise ValueError(
                f"an encoder can only learn labels of the label set, got {unknown} others in the "
                f"training examples of {self.stream[task].name}: set stream.unknown_labels='drop'"
            )
