"""From settings to a stream of text tasks."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from riselab.continual.batches import chosen, share
from riselab.continual.host import Stream, Task
from riselab.continual.language.streams.files import (
    SUFFIXES,
    Example,
    TextSource,
    checked,
    read_source,
)
from riselab.continual.language.streams.settings import (
    ORDERS,
    LanguageStreamSettings,
    PromptForm,
    TextTask,
)
from riselab.continual.preflight import too_few, untested

HOLD_OUT, TRAIN, VALIDATION, TEST = range(4)  # purposes of choices: each has its own seed
PURPOSES = {"train": TRAIN, "test": TEST}


@dataclass(frozen=True)
class TextSplit:
    """Prompts with their answers; ``labels`` are positions in the task's labels, -1 for others."""

    prompts: tuple[str, ...]
    answers: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.prompts)


def build_stream(
    settings: LanguageStreamSettings, usual: PromptForm = "instruction"
) -> Stream[TextSplit]:
    """All tasks, read and split; what a reader of a record must know is in the notes.

    ``usual`` is the form of the prompts where the settings leave it to the host.
    """
    if settings.prompt == "auto":
        settings = replace(settings, prompt=usual)
    found = {name: _source(settings, name) for name in settings.order}
    missing = [name for name, source in found.items() if source is None]
    if missing:
        raise FileNotFoundError(
            f"neither a train nor a test file for {', '.join(missing)} in {settings.data!r}; "
            f"looked for train and test{' and '.join(SUFFIXES)} in "
            f"{', '.join(folder for name in missing for folder in settings.task(name).folders)}; "
            "a task from elsewhere needs its table [stream.own.NAME] with path or hub; "
            f"--set 'stream.leave_out={json.dumps(missing)}' leaves them out and says so in the "
            "record"
        )
    notes, tasks = _order_notes(settings), []
    there: dict[str, list[tuple[str, int]]] = {"train": [], "test": []}
    for name, source in found.items():
        assert source is not None
        train, test, told = _halves(settings.task(name), source, settings)
        there["train"].append((name, len(train)))
        there["test"].append((name, len(test)))
        tasks.append(_task(settings.task(name), source.labels, train, test, settings))
        notes += [*told, *untested(_tested(tasks[-1]), name)]
    notes += too_few("train_size", settings.train_size, there["train"])
    notes += too_few("test_size", settings.test_size, there["test"])
    return Stream(settings.name, tuple(tasks), tuple(notes), settings.planned, settings.known)


def _source(settings: LanguageStreamSettings, name: str) -> TextSource | None:
    """A task as it was read; of a dataset on the hub, the rows that will be used."""

    def rows(purpose: str, count: int) -> list[int]:
        size, key = (
            _sizes(settings)[purpose],
            _key(settings, settings.task(name), PURPOSES[purpose]),
        )
        picked = chosen(np.arange(count), size, *key)[0] if 0 < size < count else np.arange(count)
        return [int(row) for row in picked]

    return read_source(settings, name, rows)


def _sizes(settings: LanguageStreamSettings) -> dict[str, int]:
    """Training and test examples that are wanted; 0 means all of them."""
    return {"train": settings.train_size, "test": settings.test_size}


def _order_notes(settings: LanguageStreamSettings) -> list[str]:
    notes = []
    if settings.name in ORDERS and settings.planned != ORDERS[settings.name]:
        notes.append(f"differs from {settings.name}: tasks are {', '.join(settings.planned)}")
    if settings.leave_out:
        left = [task for task in settings.planned if task in settings.leave_out]
        notes.append(f"left out of the stream: {', '.join(left)}")
    return notes


def _task(
    task: TextTask,
    labels: tuple[str, ...],
    train: list[Example],
    test: list[Example],
    settings: LanguageStreamSettings,
) -> Task[TextSplit]:
    sizes = _sizes(settings)
    train = _some(train, sizes["train"], _key(settings, task, TRAIN))
    aside = share(len(train), settings.validation)
    picked, rest = chosen(np.arange(len(train)), aside, *_key(settings, task, VALIDATION))
    parts = {
        "train": [train[i] for i in rest],
        "validation": [train[i] for i in picked],
        "test": _some(test, sizes["test"], _key(settings, task, TEST)),
    }
    for purpose in ("train", "test"):
        if not parts[purpose]:
            raise ValueError(f"{task.name}: there must be a {purpose} example, got none")
    form = settings.prompt
    splits = {name: _split(task, examples, labels, form) for name, examples in parts.items()}
    return Task(task.name, labels, **splits)


def _tested(task: Task[TextSplit]) -> list[tuple[str, int]]:
    """How many test examples each label has."""
    counts = Counter(task.test.labels)
    return [(label, counts[place]) for place, label in enumerate(task.classes)]


def _halves(
    task: TextTask, source: TextSource, settings: LanguageStreamSettings
) -> tuple[list[Example], list[Example], list[str]]:
    """Training and test examples; a file that serves as both is split by a fixed seed."""
    notes: list[str] = []
    usable: dict[str, list[Example]] = {}
    for name, part in (("train", source.train), ("test", source.test)):
        if part is not None:
            usable[name], told = checked(part, task.name, source.labels, settings)
            notes += told
    if len(usable) == 2:
        return usable["train"], usable["test"], notes
    (name, examples), (other,) = next(iter(usable.items())), {"train", "test"} - set(usable)
    count = share(len(examples), settings.held_out)
    picked, rest = chosen(np.arange(len(examples)), count, *_key(settings, task, HOLD_OUT))
    notes.append(
        f"{task.name}: no {other} split; {count} of its {len(examples)} {name} examples are for "
        f"testing, chosen by seed {settings.split_seed}"
    )
    return [examples[i] for i in rest], [examples[i] for i in picked], notes


def _some(examples: list[Example], size: int, key: Sequence[int]) -> list[Example]:
    if not size or size >= len(examples):
        return examples
    picked, _ = chosen(np.arange(len(examples)), size, *key)
    return [examples[i] for i in picked]


def _key(settings: LanguageStreamSettings, task: TextTask, purpose: int) -> tuple[int, int, int]:
    return settings.split_seed, zlib.crc32(task.name.encode()), purpose


def _split(
    task: TextTask, examples: Sequence[Example], labels: tuple[str, ...], form: str
) -> TextSplit:
    places = {label: place for place, label in enumerate(labels)}
    alone = form == "sentence"
    return TextSplit(
        prompts=tuple(
            example.sentence.strip() if alone else task.prompt(example.sentence, labels)
            for example in examples
        ),
        answers=tuple(example.label for example in examples),
        labels=tuple(places.get(example.label, -1) for example in examples),
    )
