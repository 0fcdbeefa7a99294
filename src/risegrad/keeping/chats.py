"""A chat model's template, opened at the user's turn so that the model writes it itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

MARK = "[[risegrad]]"
"""Stands for a question, to see what the template puts before and after one."""


@dataclass(frozen=True)
class ChatTemplate:
    """What comes before a user's turn and after it."""

    tokenizer: Any
    system: str | None
    before: str
    after: str
    greeting: str = "Hello"
    """Asked where the model wrote no question even when it was asked again."""

    @classmethod
    def of(cls, tokenizer: Any, system: str | None = None) -> Self | None:
        """The tokenizer's own; None if it has none."""
        if not getattr(tokenizer, "chat_template", None):
            return None
        whole = tokenizer.apply_chat_template(
            _messages(MARK, system), tokenize=False, add_generation_prompt=True
        )
        before, found, after = whole.partition(MARK)
        if not found:
            raise ValueError("the tokenizer's chat template does not show the user's turn")
        return cls(tokenizer, system, before, after)

    @property
    def opened(self) -> list[int]:
        """The tokens up to where the user begins."""
        return self._tokens(self.before)

    @property
    def closes(self) -> list[int]:
        """The token that ends a user's turn, if it is one of the template's own."""
        first = self._tokens(self.after.lstrip())[:1]
        return first if set(first) <= set(self.tokenizer.all_special_ids) else []

    def question(self, tokens: list[int]) -> str:
        """What the user said, without what closes the turn."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False)
        for close in (self.after.strip().split("\n")[0], *self.tokenizer.all_special_tokens):
            text = text.partition(close)[0] if close else text
        return text.strip()

    def asked(self, question: str) -> list[int]:
        """The tokens up to where the answer begins."""
        return self._tokens(
            self.tokenizer.apply_chat_template(
                _messages(question, self.system), tokenize=False, add_generation_prompt=True
            )
        )

    def _tokens(self, text: str) -> list[int]:
        # The template has written all special tokens that it wants.
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found


def _messages(question: str, system: str | None) -> list[dict[str, str]]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": question}]
