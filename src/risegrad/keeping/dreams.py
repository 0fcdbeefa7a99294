"""Examples that a generative model writes itself: its own samples stand for what it knows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from risegrad.common.checks import check_int, check_number, check_positive_int
from risegrad.core.draws import mix
from risegrad.core.undisturbed import Generators
from risegrad.curvature.batches import IGNORED
from risegrad.curvature.targets import evaluating
from risegrad.memory.examples import kind_of, padded
from risegrad.memory.ranks import Ranks
from risegrad.memory.remembering import Progress, shown

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


Batch = dict[str, Tensor]
LONGER = 3
"""How many times as long the longer half of a chat model's answers may be: a model that was only
kept to short answers would forget how to write several sentences."""
DRAWS = 4
"""How often a sample that is empty or repeats one token is drawn again."""


@torch.no_grad()
def dreamed(
    model: nn.Module,
    tokenizer: Any,
    n: int,
    *,
    prompts: Sequence[str] | None = None,
    system: str | None = None,
    length: int = 64,
    batch: int = 16,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Progress | bool = True,
) -> list[Batch]:
    """Batches for ``remember`` and ``keep``, ``n`` examples in all, in transformers' form.

    A chat model writes the user's turn in its chat template and then the answer; only the answer
    counts, and every second one may be three times ``length`` tokens long. A base model writes from
    its first token, an encoder-decoder answers random tokens. ``prompts`` (used in turn) replace
    the users' turns, the beginnings or the inputs. ``system``: a chat's system prompt.

    Tokens are drawn from the model's probabilities (at ``temperature``), whatever its
    ``generation_config`` says; empty samples and repetitions of one token are drawn again.
    ``progress``: a bar if it takes long, False for none, or ``progress(examples, n)``. Neither
    the model nor the global random state changes.
    """
    check_positive_int("n", n)
    check_positive_int("batch", batch)
    check_positive_int("length", length)
    check_number("temperature", temperature, above=0)
    if not callable(getattr(model, "generate", None)) or kind_of(model) == "reads":
        raise TypeError(f"model must be one that generates text, got {type(model).__name__}")
    if prompts is not None and not prompts:
        raise ValueError("prompts must hold at least one text, got none")
    chat = None if kind_of(model) == "answers" else ChatTemplate.of(tokenizer, system)
    if system is not None and chat is None:
        raise ValueError("system is for chat models, and this tokenizer has no chat template")
    seed, generators = check_int("seed", seed), Generators()
    writer = _Writer(model, tokenizer, temperature)
    found: list[Batch] = []
    done = 0
    try:
        with evaluating(model), shown(progress, n, Ranks(), "examples the model writes") as told:
            for count, most in _plan(n, batch, length, halves=chat is not None):
                generators.seed(mix(seed, done) % 2**63)  # transformers draws from the global one
                turns = None if prompts is None else [
                    prompts[(done + i) % len(prompts)] for i in range(count)
                ]  # fmt: skip
                if chat is None:
                    found.append(writer.texts(turns, count, most))
                else:
                    found.append(writer.chats(chat, turns, count, length, most))
                done += count
                told(done, n)
    finally:
        generators.put_back()
    return found


def _plan(n: int, batch: int, length: int, *, halves: bool) -> Iterator[tuple[int, int]]:
    """How many examples each batch has and how many tokens an answer, the longer half last."""
    longer = n // 2 if halves else 0
    for total, most in ((n - longer, length), (longer, LONGER * length)):
        for start in range(0, total, batch):
            yield min(batch, total - start), most


class _Writer:
    """A model that writes, batch by batch."""

    def __init__(self, model: nn.Module, tokenizer: Any, temperature: float) -> None:
        self.model, self.tokenizer, self.temperature = model, tokenizer, temperature
        self.seq2seq = kind_of(model) == "answers"
        self.ends = _ends(model, tokenizer)
        known = (tokenizer.pad_token_id, *self.ends)
        self.padding = next((t for t in known if t is not None), 0)

    def texts(self, prompts: Sequence[str] | None, count: int, most: int) -> Batch:
        """From the first token, or from prompts: all of it counts."""
        begun = self._beginnings(count, most) if prompts is None else [
            torch.tensor(self.tokenizer(text)["input_ids"]) for text in prompts
        ]  # fmt: skip
        new = self._written(begun, most, fresh=prompts is None)
        if self.seq2seq:
            labels = pad_sequence(new, batch_first=True, padding_value=IGNORED)
            return {**self._padded(begun), "labels": labels}
        whole = [torch.cat(parts) for parts in zip(begun, new, strict=True)]
        return self._labelled(whole, [0] * count)

    def chats(
        self, chat: ChatTemplate, asked: Sequence[str] | None, count: int, length: int, most: int
    ) -> Batch:
        """The user's turn, unless it is given, and then the answer: only that counts."""
        if asked is None:
            opened = torch.tensor(chat.opened)
            new = self._written([opened] * count, length, stop=chat.closes, fresh=True)
            asked = [chat.question(row.tolist()) or chat.greeting for row in new]
        begun = [torch.tensor(chat.asked(question)) for question in asked]
        new = self._written(begun, most)
        whole = [torch.cat(parts) for parts in zip(begun, new, strict=True)]
        return self._labelled(whole, [len(prompt) for prompt in begun])

    def _beginnings(self, count: int, length: int) -> list[Tensor]:
        if self.seq2seq:
            special = {self.tokenizer.pad_token_id, *self.ends}
            config: Any = self.model.config
            plain = torch.tensor([t for t in range(config.vocab_size) if t not in special])
            return list(plain[torch.randint(len(plain), (count, length))])
        firsts = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        first = next((t for t in firsts if t is not None), None)
        if first is None:
            raise ValueError("the tokenizer has no first token (bos or eos): pass prompts=")
        return [torch.tensor([first])] * count

    def _written(
        self, begun: Sequence[Tensor], most: int, stop: Sequence[int] = (), fresh: bool = False
    ) -> list[Tensor]:
        """What the model goes on with, up to the end; degenerate samples are drawn again.

        Where it began by itself (``fresh``), a model that gives hardly anything else is an error.
        """
        ends = {*self.ends, *stop}
        new = self._drawn(begun, most, ends)
        for _ in range(DRAWS):
            again = [i for i, row in enumerate(new) if _degenerate(row, ends)]
            if not again:
                break
            drawn = self._drawn([begun[i] for i in again], most, ends)
            new = [drawn[again.index(i)] if i in again else row for i, row in enumerate(new)]
        else:
            bad = sum(_degenerate(row, ends) for row in new)
            if fresh and bad > len(new) // 2:
                raise ValueError(
                    f"the model does not write usable examples: {bad} of {len(new)} are empty or "
                    "one token repeated; pass prompts, or examples"
                )
        return new

    def _drawn(self, begun: Sequence[Tensor], most: int, ends: set[int]) -> list[Tensor]:
        inputs = self._padded(begun)
        device = next(self.model.parameters()).device
        options: dict[str, Any] = {
            "temperature": self.temperature,
            "max_new_tokens": most,
            "pad_token_id": self.padding,
            "eos_token_id": [*ends] or None,
        }
        with _sampling(self.model, options) as chosen:
            generate: Any = self.model.generate
            moved = {name: tensor.to(device) for name, tensor in inputs.items()}
            made = generate(**moved, **chosen).cpu()
        start = 1 if self.seq2seq else inputs["input_ids"].shape[1]
        return [_until(row[start:], ends) for row in made]

    def _padded(self, begun: Sequence[Tensor]) -> Batch:
        # A causal model goes on at the right, so what comes before is padded on the left.
        side = "right" if self.seq2seq else "left"
        ones = [torch.ones_like(tokens) for tokens in begun]
        return {
            "input_ids": pad_sequence(
                [*begun], batch_first=True, padding_value=self.padding, padding_side=side
            ),
            "attention_mask": pad_sequence(ones, batch_first=True, padding_side=side),
        }

    def _labelled(self, whole: Sequence[Tensor], masked: Sequence[int]) -> Batch:
        rows = []
        for row, count in zip(whole, masked, strict=True):
            hidden = torch.arange(len(row)) < count
            rows.append({"input_ids": row, "labels": row.masked_fill(hidden, IGNORED)})
        return padded(rows, self.padding)


BEGINNINGS = ("decoder_start_token_id", "bos_token_id")
"""What generating needs to know of a model beside its ends."""


@contextmanager
def _sampling(model: nn.Module, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Plain sampling with a cache, whatever the model's own ``generation_config`` asks for.

    transformers fills what an option leaves open from the model's own, so that steps aside.
    """
    plain = {"do_sample": True, "top_k": 0, "use_cache": True, **options}
    holders: list[Any] = [m for m in model.modules() if "generation_config" in vars(m)]
    if not holders:
        yield plain
        return
    own = [holder.generation_config for holder in holders]
    begins = {name: getattr(own[0], name, None) for name in BEGINNINGS}
    fresh = type(own[0])(**plain, **begins)
    try:
        for holder in holders:
            holder.generation_config = fresh
        yield {"generation_config": fresh}
    finally:
        for holder, found in zip(holders, own, strict=True):
            holder.generation_config = found


def _degenerate(tokens: Tensor, ends: set[int]) -> bool:
    """Nothing but an end, or one token over and over."""
    inner = [token for token in tokens.tolist() if token not in ends]
    return not inner or (len(inner) > 2 and len(set(inner)) == 1)


def _until(tokens: Tensor, ends: set[int]) -> Tensor:
    """Up to the end of the text, its mark included; what comes after is padding."""
    at = [i for i, token in enumerate(tokens.tolist()) if token in ends]
    return tokens[: at[0] + 1] if at else tokens


def _ends(model: nn.Module, tokenizer: Any) -> list[int]:
    """The tokens that end a text: the tokenizer's, and those that the model stops at."""
    own = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    more = own if isinstance(own, list | tuple) else [own]
    return [*dict.fromkeys(t for t in (tokenizer.eos_token_id, *more) if t is not None)]
