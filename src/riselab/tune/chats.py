"""Files of chats: messages, or a prompt and its answer, one JSON object per line."""

from __future__ import annotations

import gzip
import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from risegrad.common.seeds import generator_for
from riselab.continual.chat.tasks import CHOICE_SEED, ChatExample
from riselab.tune.settings import TASKS

FEWEST = 10
"""Chats, of which a fifth is held out to score on."""
HELD, MOST_HELD = 0.2, 100
ROLES = ("system", "user", "assistant", "tool")


def read_chats(argument: str, place: str) -> list[ChatExample]:
    """All examples of a file or a task of the package; every answer of a long chat is one."""
    path = Path(place).expanduser()
    if path.is_file():
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    elif place in TASKS:
        task = files("riselab.tune").joinpath("tasks", f"{place}.jsonl")
        text = task.read_text(encoding="utf-8")
    else:
        raise ValueError(
            f"{argument} must be a file with a chat in JSON on each line, or a task of the package "
            f"({', '.join(TASKS)}), got {place!r}"
        )
    found: list[ChatExample] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found += _examples(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{argument}: {place}, line {number}: {error}") from error
    if len(found) < FEWEST:
        raise ValueError(f"{argument} must have at least {FEWEST} answers, got {len(found)}")
    return found


def _examples(row: Any) -> Iterator[ChatExample]:
    if isinstance(row, Mapping):
        answer = row.get("answer", row.get("completion"))
        if "messages" in row:
            yield from _of_messages(row["messages"])
            return
        asked, said = _said(row.get("prompt"), "user"), _said(answer, "assistant")
        if asked and said and len(said) == 1:
            prompt = row["prompt"]
            yield ChatExample(prompt if isinstance(prompt, str) else asked, said[0]["content"])
            return
    raise ValueError(
        "a chat must have 'messages', or 'prompt' and 'completion' (or 'answer'); "
        f"got {reprlib.repr(row)}"
    )


def _of_messages(messages: Any) -> Iterator[ChatExample]:
    said = _said(messages, "")
    ends = [n for n, message in enumerate(said) if message["role"] == "assistant" and n]
    if not ends:
        raise ValueError(
            "messages must be a list of {'role', 'content'} with an answer of the assistant's; "
            f"got {reprlib.repr(messages)}"
        )
    for end in ends:
        yield ChatExample(said[:end], said[end]["content"])


def _said(given: Any, role: str) -> tuple[dict[str, str], ...]:
    """A text as a message of ``role``, messages as they are; none of what is neither."""
    if isinstance(given, str) and role:
        return ({"role": role, "content": given},)
    if not isinstance(given, list):
        return ()
    fits = all(
        isinstance(m, Mapping) and m.get("role") in ROLES and isinstance(m.get("content"), str)
        for m in given
    )
    return tuple({"role": m["role"], "content": m["content"]} for m in given) if fits else ()


def split(examples: Sequence[ChatExample]) -> tuple[list[ChatExample], list[ChatExample]]:
    """What is learned, and what is held out: a fifth, chosen alike for every seed and method."""
    order = torch.randperm(len(examples), generator=generator_for(CHOICE_SEED, "tune"))
    held = min(MOST_HELD, round(HELD * len(examples)))
    chosen = [examples[place] for place in order.tolist()]
    return chosen[held:], chosen[:held]


def plain(example: ChatExample) -> dict[str, Any]:
    """As a line of a file has it."""
    asked = example.prompt if isinstance(example.prompt, str) else [*map(dict, example.prompt)]
    if isinstance(asked, str):
        return {"prompt": asked, "answer": example.answer}
    return {"messages": [*asked, {"role": "assistant", "content": example.answer}]}
