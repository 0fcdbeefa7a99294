"""Chats as tokens: what was said, the answer that counts, and what a model answers by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from risegrad.curvature.batches import IGNORED

Prompt = str | Sequence[Mapping[str, str]]
"""A question, or the messages up to it."""
Batch = dict[str, Tensor]


class Chat(NamedTuple):
    """Tokens, of which the last ``answer`` are the answer, what ends it included."""

    tokens: list[int]
    answer: int


@dataclass(frozen=True)
class ChatTexts:
    """A tokenizer and its chat template; without one, prompt and answer stand side by side."""

    tokenizer: Any
    length: int = 0
    """Most tokens of a chat, of which the first are left out; 0: as many as there are."""

    def asked(self, prompt: Prompt) -> list[int]:
        """The tokens up to where the answer begins."""
        return self._tokens(self._begun(prompt))[-self.length :]

    def chat(self, prompt: Prompt, answer: str) -> Chat:
        """What was asked, and the answer as the template closes it."""
        begun, close = self._begun(prompt), str(self.tokenizer.eos_token or "")
        if self.tokenizer.chat_template:
            said = [*_messages(prompt), {"role": "assistant", "content": answer}]
            whole = self._rendered(said, add_generation_prompt=False).rstrip("\n")
            close = (
                whole.removeprefix(begun + answer) if whole.startswith(begun + answer) else close
            )
        tokens = self._tokens(answer + close)
        return Chat([*self._tokens(begun), *tokens][-self.length :], len(tokens))

    def batch(self, chats: Sequence[Chat]) -> Batch:
        """Answers end where their rows end, so that their scores are the last ones."""
        most = max(len(chat.tokens) for chat in chats)
        gaps = [most - len(chat.tokens) for chat in chats]
        mask = torch.tensor([[0] * gap + [1] * (most - gap) for gap in gaps])
        tokens = [[self.padding] * gap + c.tokens for gap, c in zip(gaps, chats, strict=True)]
        labels = [
            [IGNORED] * (most - chat.answer) + chat.tokens[len(chat.tokens) - chat.answer :]
            for chat in chats
        ]
        return {
            "input_ids": torch.tensor(tokens),
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "labels": torch.tensor(labels),
        }

    @property
    def padding(self) -> int:
        """What stands before shorter chats."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        return next(token for token in known if token is not None)

    def text(self, text: str) -> list[int]:
        """A text as it is."""
        return self._tokens(text)[: self.length or None]

    def _begun(self, prompt: Prompt) -> str:
        if self.tokenizer.chat_template:
            return self._rendered(_messages(prompt), add_generation_prompt=True)
        return "\n".join(m["content"] for m in _messages(prompt)) + "\n"

    def _rendered(self, messages: list[Mapping[str, str]], **options: bool) -> str:
        template = self.tokenizer.apply_chat_template
        text: str = template(messages, tokenize=False, **options)
        return text

    def _tokens(self, text: str) -> list[int]:
        # The template has written all special tokens that it wants.
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found


def _messages(prompt: Prompt) -> list[Mapping[str, str]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def answer_scores(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The scores (logits) of every token of the answers, and which tokens these are."""
    inputs = {name: tensor.to(model.device) for name, tensor in batch.items()}
    labels = inputs.pop("labels")
    longest = int((labels != IGNORED).sum(1).max())
    logits = model(**inputs, use_cache=False, logits_to_keep=longest + 1).logits
    labels = labels[:, -longest:]
    counts = labels != IGNORED
    return logits[:, -longest - 1 : -1][counts], labels[counts]


def in_groups(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    """So many at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


@torch.no_grad()
def greedy(
    model: Any, texts: ChatTexts, prompts: Sequence[Prompt], most: int, batch: int = 16
) -> list[Chat]:
    """What the model answers if it always takes the likeliest token, ``most`` at most."""
    found: list[Chat] = []
    for group in in_groups(prompts, batch):
        asked = [texts.asked(prompt) for prompt in group]
        answers = _continued(model, texts.batch([Chat(tokens, 1) for tokens in asked]), most)
        for tokens, answer in zip(asked, answers, strict=True):
            found.append(Chat(tokens + answer, len(answer)))
    return found


def _continued(model: Any, batch: Batch, most: int) -> list[list[int]]:
    tokens, mask, at = (
        batch[name].to(model.device) for name in ("input_ids", "attention_mask", "position_ids")
    )
    ends = torch.tensor(ends_of(model), device=model.device)
    answers: list[Tensor] = []
    done = torch.zeros(len(tokens), dtype=torch.bool, device=model.device)
    cache: Any = None
    while len(answers) < most and not bool(done.all()):
        out = model(
            input_ids=tokens, attention_mask=mask, position_ids=at,
            past_key_values=cache, use_cache=True, logits_to_keep=1,
        )  # fmt: skip
        cache, tokens = out.past_key_values, out.logits[:, -1:].argmax(-1)
        answers.append(torch.where(done.unsqueeze(1), -1, tokens))
        done |= torch.isin(tokens[:, 0], ends)
        mask, at = torch.cat([mask, mask[:, :1] * 0 + 1], 1), at[:, -1:] + 1
    return [[token for token in row if token >= 0] for row in torch.cat(answers, 1).tolist()]


def ends_of(model: Any) -> list[int]:
    """The tokens at which the model stops."""
    found = getattr(model.generation_config, "eos_token_id", None)
    listed = found if isinstance(found, list) else [found]
    return [token for token in listed if token is not None]
