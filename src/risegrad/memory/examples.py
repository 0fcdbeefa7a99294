"""Batches of whatever stands for what must be kept: texts, messages, tokenized examples, images.

Texts are prepared as TRL's ``SFTTrainer`` prepares those it trains on, and everything else as the
loader does that training reads from. Nothing here needs transformers: a tokenizer is given.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset

from risegrad.curvature.batches import IGNORED

SEED = 0
"""Of the order in which examples are taken."""
BATCH = 8
FORMS = (
    "pass texts (a list of them, or a column 'text'), 'messages', 'prompt' and 'completion', or "
    "tokenized examples with 'input_ids'"
)
LABELS = ("labels", "label", "label_ids")
MASKS = ("completion_mask", "assistant_masks")
Row = dict[str, Any]


@dataclass(frozen=True)
class TextForm:
    """How texts become tokens and which of these count, as TRL's ``SFTConfig`` says it."""

    tokenizer: Any = None
    """A tokenizer or processor of transformers; messages are rendered with its chat template."""
    text_field: str = "text"
    max_length: int | None = None
    """Tokens of an example; None: as many as the tokenizer says that the model takes."""
    truncation_mode: Literal["keep_start", "keep_end"] = "keep_start"
    completion_only: bool = True
    """Of prompt and completion, the labels of the prompt do not count."""
    answers_only: bool = False
    """Of messages, only the assistant's count, where there are any."""
    chat_template: str | None = None
    """Instead of the tokenizer's own."""

    def tokens(self, example: Any, kind: Kind) -> Row:
        """A text, messages, or prompt and completion, as numbers; labels as training has them."""
        fields = _fields(example, self.text_field)
        if kind == "writes" and "completion" in fields:
            row = self._completed(fields)
        elif isinstance(told := fields.get("messages", fields.get("prompt")), list):
            row = self._told(told, fields)
        elif not fields.keys() & {"text", "prompt"}:
            raise TypeError(f"{_columns(example)} hold no text: {FORMS}")
        elif kind == "writes":
            whole = _ended(fields["text"], self._plain.eos_token) if "text" in fields else None
            row = {"input_ids": self._ids(whole or fields["prompt"])}
        else:
            row = self._read(fields, kind)
        return self.cut(_labelled(row, self) if kind == "writes" else row)

    def cut(self, row: Row) -> Row:
        """Not longer than ``max_length``."""
        found: object = getattr(self._plain, "model_max_length", None)
        most = self.max_length or (found if isinstance(found, int) else None)
        ids = row.get("input_ids")
        if most is None or ids is None or len(ids) <= most:
            return row
        part = slice(None, most) if self.truncation_mode == "keep_start" else slice(-most, None)
        along = {*MASKS, "input_ids", "attention_mask", "token_type_ids", "labels"}
        same = {n for n, v in row.items() if n in along and _length(v) == len(ids)}
        return {name: value[part] if name in same else value for name, value in row.items()}

    def padded(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Examples of tokens in one batch."""
        found = [getattr(self._plain, f"{name}_token_id", None) for name in ("pad", "eos")]
        return padded(rows, next((token for token in found if token is not None), 0))

    @property
    def _plain(self) -> Any:
        """The tokenizer of a processor."""
        return getattr(self.tokenizer, "tokenizer", self.tokenizer)

    def _ids(self, text: str, **options: Any) -> list[int]:
        found: list[int] = self._plain(text, **options)["input_ids"]
        return found

    def _read(self, fields: Row, kind: Kind) -> Row:
        """For models that read a text as a whole, and may answer with another."""
        if kind == "reads" and "completion" in fields:
            raise TypeError("prompt and completion are for models that write: pass texts")
        options: Row = {"truncation": True}
        if self.max_length is not None:
            options["max_length"] = self.max_length
        row = {
            "input_ids": self._ids(fields["prompt" if "prompt" in fields else "text"], **options)
        }
        if kind == "answers" and "completion" in fields:
            return row | {"labels": self._ids(fields["completion"], **options)}
        classes = [fields[name] for name in LABELS if name in fields]
        return row | ({"labels": classes[0]} if classes else {})

    def _completed(self, fields: Row) -> Row:
        prompt, completion = fields["prompt"], fields["completion"]
        if isinstance(prompt, list) != isinstance(completion, list):
            raise TypeError("prompt and completion must both be texts, or both messages")
        if isinstance(prompt, list):
            row = self._told(prompt + completion, fields)
            begun = self._rendered(prompt, fields, add_generation_prompt=True)["input_ids"]
        else:
            row = {"input_ids": self._ids(prompt + _ended(completion, self._plain.eos_token))}
            begun = self._ids(prompt)
        start = _common(begun, row["input_ids"])
        return row | {"completion_mask": [int(n >= start) for n in range(len(row["input_ids"]))]}

    def _told(self, messages: list[Any], fields: Row) -> Row:
        """Messages as the template renders them, and where the assistant speaks."""
        if not self.answers_only or all(m["role"] != "assistant" for m in messages):
            return {"input_ids": self._rendered(messages, fields)["input_ids"]}
        if re.search(r"\{%-?\s*generation\b", str(self._template)):
            found = self._rendered(messages, fields, return_assistant_tokens_mask=True)
            return {name: found[name] for name in ("input_ids", "assistant_masks")}
        whole = self._rendered(messages, fields)["input_ids"]
        mask = [0] * len(whole)
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._rendered(messages[:number], fields, add_generation_prompt=True)
                until = self._rendered(messages[: number + 1], fields)
                start, end = (_common(part["input_ids"], whole) for part in (before, until))
                mask[start:end] = [1] * (end - start)
        return {"input_ids": whole, "assistant_masks": mask}

    @property
    def _template(self) -> Any:
        return self.chat_template or getattr(self.tokenizer, "chat_template", None)

    def _rendered(self, messages: list[Any], fields: Row, **options: Any) -> Any:
        if not self._template:
            raise ValueError(
                f"messages need a chat template, and {type(self.tokenizer).__name__} has none: set "
                "tokenizer.chat_template, or pass texts"
            )
        tools = fields.get("tools")
        options |= {"tools": (json.loads(tools) if isinstance(tools, str) else tools) or None}
        options |= {"chat_template": self._template, **(fields.get("chat_template_kwargs") or {})}
        return self._plain.apply_chat_template(messages, tokenize=True, return_dict=True, **options)


def padded(rows: Sequence[Row], padding: int) -> dict[str, Tensor]:
    """Examples of tokens in one batch, each by itself and at the left of its row."""
    ids = [torch.as_tensor(row["input_ids"]) for row in rows]
    batch = {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=padding),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
    }
    if "labels" not in rows[0]:
        return batch
    labels = [torch.as_tensor(row["labels"]) for row in rows]
    if labels[0].ndim == 0:
        return batch | {"labels": torch.stack(labels)}
    return batch | {"labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED)}


Kind = Literal["writes", "answers", "reads"]
"""Whether a model goes on writing a text, answers it with another, or only reads it."""


def kind_of(model: nn.Module) -> Kind:
    """What a model of transformers does with a text, also inside peft or Lightning."""
    for module in model.modules():
        generates = getattr(module, "can_generate", None)
        if callable(generates):
            seq2seq = getattr(module.config, "is_encoder_decoder", False)
            return ("answers" if seq2seq else "writes") if generates() else "reads"
    return "reads"


def prepared(
    examples: Any, model: nn.Module, form: TextForm | None = None, like: object = None
) -> Any:
    """Examples as batches in a fixed random order (a stream as it comes); batches as they are.

    ``examples``: a dataset or list of texts, of messages, of prompt and completion, or of whatever
    the loader ``like`` collates for training; or a list or loader of batches.
    """
    if isinstance(examples, str):
        raise TypeError(f"a single text, {examples[:40]!r}: pass a list of texts or a dataset")
    if isinstance(getattr(examples, "column_names", None), Mapping):
        raise TypeError(f"several splits, {', '.join(examples)}: pass one of them")
    form = form or TextForm()
    if not _holds_examples(examples, form.text_field):
        return examples
    options: dict[str, Any] = {
        "batch_size": getattr(like, "batch_size", None) or BATCH,
        "collate_fn": _Collator(model, form, like),
    }
    if isinstance(examples, IterableDataset):
        return DataLoader(examples, **options)
    generator = torch.Generator().manual_seed(SEED)
    return DataLoader(examples, shuffle=True, generator=generator, **options)


class _Collator:
    """Texts by ``form``; other examples by training's own collator, without foreign columns."""

    def __init__(self, model: nn.Module, form: TextForm, like: object) -> None:
        self._kind, self._form = kind_of(model), form
        self._own: Callable[[Any], Any] | None = getattr(like, "collate_fn", None)
        self._trained: Any = getattr(like, "dataset", None)
        unwrap: Any = getattr(model, "get_base_model", lambda: model)
        columns = getattr(self._trained, "column_names", None) or ()
        self._taken = {*inspect.signature(unwrap().forward).parameters, *LABELS, *columns}
        self._raw: bool | None = None
        self._flattens: bool | None = None

    def __call__(self, examples: list[Any]) -> Any:
        text = is_text(examples[0], self._form.text_field)
        if not text or self._trains_on_raw_texts():
            batch = self._collated([self._fitting(example) for example in examples])
            if not text or isinstance(batch, Mapping):  # GRPO's collator leaves texts as they are
                return batch
        if self._form.tokenizer is None:
            raise TypeError(
                "these are texts, and there is no tokenizer: pass tokenizer= (or "
                "processing_class= to the Trainer), or tokenized examples with 'input_ids'"
            )
        return self._form.padded([self._form.tokens(example, self._kind) for example in examples])

    def _trains_on_raw_texts(self) -> bool:
        """Whether training's own collator makes tokens of texts (and pixels of images)."""
        if self._raw is None:
            stream = isinstance(self._trained, IterableDataset) or self._trained is None
            columns = getattr(self._trained, "column_names", None)
            first = dict.fromkeys(columns) if columns else None if stream else self._trained[0]
            self._raw = is_text(first, self._form.text_field)
        return self._raw

    def _fitting(self, example: Any) -> Any:
        """Without what the model does not take; what training's examples have may be needed."""
        if not isinstance(example, Mapping):
            return example
        row = dict(example)
        if "input_ids" in row and self._kind == "writes":
            row = _labelled(row, self._form) if row.keys() & {*MASKS} else row
        row = self._form.cut(row) if self._form.max_length is not None else row
        return {name: row[name] for name in row if name in self._taken} or row

    def _collated(self, rows: list[Any]) -> Any:
        collate = self._own or torch.utils.data.default_collate
        try:
            batch = collate(rows)
        except (KeyError, TypeError, ValueError) as error:
            raise TypeError(f"{_columns(rows[0])} cannot be collated ({error}): {FORMS}") from error
        if isinstance(batch, Mapping) and not batch:
            raise TypeError(f"{_columns(rows[0])} cannot be collated: {FORMS}")
        return self._apart(rows) if self._flattened(batch, rows, collate) else batch

    def _flattened(self, batch: Any, rows: list[Any], collate: Callable[[Any], Any]) -> bool:
        """Whether examples are put behind each other in one row (padding-free, packed)."""
        if self._flattens is None:
            ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
            self._flattens = isinstance(ids, Tensor) and len(ids) == 1
            if self._flattens and len(rows) == 1:
                self._flattens = len(collate(rows * 2)["input_ids"]) == 1
        return self._flattens

    def _apart(self, rows: list[Row]) -> dict[str, Tensor]:
        """One row for each text, also of those that were packed."""
        if self._kind == "writes":
            rows = [_labelled(row, self._form) for row in rows]
        return self._form.padded([text for row in rows for text in _unpacked(row)])


def _holds_examples(given: Any, text_field: str) -> bool:
    if isinstance(given, Dataset) or hasattr(given, "column_names"):
        return True
    if not isinstance(given, list | tuple) or not given:
        return False
    tokens = given[0].get("input_ids") if isinstance(given[0], Mapping) else None
    alone = tokens is not None and torch.as_tensor(tokens).ndim == 1
    return alone or is_text(given[0], text_field)


def is_text(example: Any, text_field: str) -> bool:
    """A text, messages, or a mapping with some; not one with tokens or images already."""
    if isinstance(example, Mapping):
        known = {text_field, "messages", "conversations", "prompt"}
        return bool(known & example.keys()) and not example.keys() & {
            "input_ids",
            "image",
            "images",
        }
    first = example[0] if isinstance(example, list) and example else None
    return isinstance(example, str) or (isinstance(first, Mapping) and "role" in first)


def _fields(example: Any, text_field: str) -> Row:
    """One form for all: ``text``, ``messages``, or ``prompt`` and perhaps ``completion``."""
    if not isinstance(example, Mapping):
        example = {"text" if isinstance(example, str) else "messages": example}
    fields = {name: _messages(value) for name, value in example.items() if value is not None}
    if "conversations" in fields:
        fields["messages"] = fields.pop("conversations")
    if text_field in fields:
        fields["text"] = fields[text_field]
    for name in ("text", "prompt", "completion"):
        if not isinstance(fields.get(name, ""), str if name == "text" else str | list):
            raise TypeError(f"{name!r} must be a text, got {type(fields[name]).__name__}: {FORMS}")
    return fields


def _messages(value: Any) -> Any:
    """Messages with ``from`` and ``value`` by the names that templates know."""
    if not isinstance(value, list) or not all(isinstance(part, Mapping) for part in value):
        return value
    names = {"from": "role", "value": "content"}
    return [{names.get(key, key): item for key, item in part.items()} for part in value]


def _labelled(row: Row, form: TextForm) -> Row:
    """Labels for a model that goes on writing: the tokens that count."""
    if "labels" in row:
        return row
    used = [row[name] for name in MASKS if name in row]
    if not form.completion_only:
        used = [row["assistant_masks"]] if "assistant_masks" in row else []
    counted = [all(bits) for bits in zip(*used, strict=True)] or [True] * len(row["input_ids"])
    pairs = zip(row["input_ids"], counted, strict=True)
    labels = [int(token) if counts else IGNORED for token, counts in pairs]
    return {name: value for name, value in row.items() if name not in MASKS} | {"labels": labels}


def _unpacked(row: Row) -> Iterator[Row]:
    lengths = row.get("seq_lengths") or [len(row["input_ids"])]
    names = [name for name in ("input_ids", "labels") if name in row]
    parts = [torch.split(torch.as_tensor(row[name]), list(lengths)) for name in names]
    for values in zip(*parts, strict=True):
        yield dict(zip(names, values, strict=True))


def _ended(text: str, end: str | None) -> str:
    return text if not end or text.endswith(end) else text + end


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens they begin with alike."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _length(value: Any) -> int:
    return len(value) if hasattr(value, "__len__") else -1


def _columns(row: Any) -> str:
    named = ", ".join(map(repr, row)) if isinstance(row, Mapping) else type(row).__name__
    return f"examples with {named}"
