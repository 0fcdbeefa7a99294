"""What makes a stream of text tasks, and what is done with bad input."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from risegrad.common.checks import check_choice
from risegrad.common.declared_fields import Checked, Count, Limits, Seed32, Share
from risegrad.continual.language.streams.own_text_tasks import OwnTextTask
from risegrad.continual.language.streams.text_tasks import ORDERS, POOL, TextTask

NAME = re.compile(r"[^\W_][\w.-]*")


@dataclass(frozen=True)
class LanguageStreamSettings(Checked):
    """Which tasks in which order, where they lie, and how much of them is used."""

    name: str = "custom"
    """``order1``, ``order2`` or ``order3`` of the paper, or any other name with ``tasks``."""
    tasks: tuple[str, ...] = ()
    """Names in their order, from the pool, from ``own`` or, with ``folder``, of any folder in
    ``data``; empty takes those of the named order."""
    leave_out: tuple[str, ...] = ()
    """Tasks of the order that are left out on purpose; the record says so."""
    known: Count = 0
    """How many of the first tasks are known from the start: scored from then on, never trained."""
    source: Literal["folder", "hub"] = "folder"
    """``folder``: the O-LoRA benchmark's JSON files below ``data``; ``hub``: each task's own
    dataset on the Hugging Face hub."""
    data: str = ""
    """The folder; with ``hub``, nothing."""
    own: Mapping[str, OwnTextTask] = field(default_factory=dict, hash=False)
    """By the name that stands in ``tasks``: tasks of one's own, a table each (``stream.own``)."""
    train_size: Count = 0
    """Training examples per task, before validation is carved out of them; 0: all of them, with
    ``hub`` as many as the benchmark has."""
    test_size: Count = 0
    """Test examples per task; 0 as above."""
    validation: Share = 0.0
    """Share of the training examples that is set aside: the benchmark has no validation set of its
    own, its dev set is its test set."""
    held_out: Annotated[float, Limits(above=0, below=1)] = 0.25
    """Share of the test examples where a task has only one of its two files."""
    one_file: Literal["split", "stop"] = "split"
    """What is done then: split that file, or stop."""
    unknown_labels: Literal["keep", "drop", "stop"] = "keep"
    """Examples whose label is not in the label set. The benchmark keeps them: they never count as
    right. They are counted in the notes in any case."""
    empty_texts: Literal["stop", "drop"] = "stop"
    """What is done with examples without text: stop, or leave them out."""
    split_seed: Seed32 = 0
    """Of all choices of examples, and of nothing else: runs with different seeds see the same."""
    prompt: Literal["auto", "instruction", "sentence"] = "auto"
    """What a model reads: the benchmark's ``instruction`` with all options and the text, or the
    ``sentence`` alone; ``auto``: what the host is made for."""
    bucket: bool = True
    """Let examples of about one length share a batch; false gives plain random batches."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_tasks()

    @property
    def order(self) -> tuple[str, ...]:
        """The tasks that come, those left out not among them."""
        return tuple(task for task in self.planned if task not in self.leave_out)

    @property
    def planned(self) -> tuple[str, ...]:
        """The tasks in their order: those that are given, or those of the named order."""
        return self.tasks or ORDERS[self.name]

    def task(self, name: str) -> TextTask:
        """One of the pool, one's own, or a folder: what texts are about, with its own labels."""
        own = self.own.get(name)
        if own is not None:
            return TextTask(name, "TC", own.labels, 0, 0, own.instruction or None)
        return POOL.get(name) or TextTask(name, "TC", (), 0, 0)

    def _check_tasks(self) -> None:
        if not self.tasks:
            check_choice("name", self.name, ORDERS)
        for task in self.planned:
            self._check_name(task)
        for task in self.own:
            check_choice("own", task, self.planned)
        if len(set(self.planned)) < len(self.planned):
            raise ValueError(f"tasks must be different, got {', '.join(self.planned)}")
        for task in self.leave_out:
            check_choice("leave_out", task, self.planned)
        if not self.order:
            raise ValueError("leave_out must leave at least one task, got all of them")

    def _check_name(self, task: str) -> None:
        """Any folder in the benchmark's form is a task; the hub's datasets are known by name."""
        if self.source == "hub" and task not in self.own:
            check_choice("tasks", task, [*POOL, *self.own])
        if not NAME.fullmatch(task):
            raise ValueError(
                "tasks must be names of letters, digits, '.', '_' and '-' that begin with a letter "
                f"or digit, got {task!r}"
            )
