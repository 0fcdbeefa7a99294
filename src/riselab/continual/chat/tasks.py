"""Tasks of questions and answers, read from files."""

from __future__ import annotations

import gzip
import json
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from risegrad.common.seeds import generator_for
from riselab.continual.chat.settings import ChatStreamSettings
from riselab.continual.chat.texts import Prompt
from riselab.continual.host import Stream, Task

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
CHOICE_SEED = 0
"""Of the choice of examples, which is the same for all seeds of a run."""


@dataclass(frozen=True)
class ChatExample:
    """What is asked and what is to be answered."""

    prompt: Prompt
    answer: str


Examples = tuple[ChatExample, ...]


def build_stream(settings: ChatStreamSettings) -> Stream[Examples]:
    """All tasks with their examples."""
    if not settings.tasks:
        raise ValueError("stream.tasks must name at least one task, got none")
    tasks = tuple(_task(settings, name) for name in settings.tasks)
    return Stream(settings.name, tasks)


def _task(settings: ChatStreamSettings, name: str) -> Task[Examples]:
    folders = [Path(settings.data).expanduser() / part for part in name.split("+")]
    rows = {s: [row for f in folders for row in _rows(f, s)] for s in ("train", "test")}
    classes = tuple(dict.fromkeys(row["label"] for row in rows["train"] if "label" in row))
    classes = classes[: settings.classes or None]
    train, test = (
        [_example(row, settings.question, classes) for row in rows[s] if _counts(row, classes)]
        for s in ("train", "test")
    )
    train, test = _shuffled(train, name, "train"), _shuffled(test, name, "test")
    aside = max(1, round(settings.validation * len(train)))
    kept = tuple(train[aside:][: settings.train_size or None])
    if not kept or not test:
        raise ValueError(
            f"task {name!r} must have at least two examples to learn from, one to test"
        )
    most = settings.test_size or None
    return Task(name, classes, kept, tuple(train[:aside][:most]), tuple(test[:most]))


def _counts(row: dict[str, Any], classes: Sequence[str]) -> bool:
    return "label" not in row or row["label"] in classes


def _shuffled(rows: list[ChatExample], *purpose: str) -> list[ChatExample]:
    order = torch.randperm(len(rows), generator=generator_for(CHOICE_SEED, "chat", *purpose))
    return [rows[place] for place in order.tolist()]


def _example(row: dict[str, Any], question: str, classes: Sequence[str]) -> ChatExample:
    if "messages" in row:
        *asked, last = row["messages"]
        if asked and last.get("role") == "assistant":
            return ChatExample(tuple(asked), last["content"])
    elif isinstance(row.get("prompt"), str) and isinstance(row.get("answer"), str):
        return ChatExample(row["prompt"], row["answer"])
    elif isinstance(row.get("sentence"), str) and isinstance(row.get("label"), str):
        # Not str.format: braces in a sentence are its own.
        asked = question.replace("{labels}", ", ".join(classes)).replace("{text}", row["sentence"])
        return ChatExample(asked, row["label"])
    raise ValueError(
        "an example must have the texts 'prompt' and 'answer', or 'sentence' and 'label', or "
        f"'messages' of which the last is the assistant's; got {reprlib.repr(row)}"
    )


def _rows(folder: Path, split: str) -> list[dict[str, Any]]:
    for suffix in SUFFIXES:
        path = folder / f"{split}{suffix}"
        if path.is_file():
            data = path.read_bytes()
            text = (gzip.decompress(data) if suffix.endswith(".gz") else data).decode()
            try:
                lines = text.split("\n") if ".jsonl" in suffix else None
                found = (
                    json.loads(text)
                    if lines is None
                    else [json.loads(x) for x in lines if x.strip()]
                )
            except ValueError as error:
                raise ValueError(f"{path}: is not JSON ({error})") from error
            if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
                raise ValueError(f"{path}: must be a list of examples, or one on each line")
            return found
    raise FileNotFoundError(
        f"stream.data: {str(folder)!r} must have {split}.jsonl or {split}.json, plain or gzipped"
    )
