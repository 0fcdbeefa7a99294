"""What makes a stream of text tasks, and what is done with bad input."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from risegrad.common.checks import check_choice
from riselab.common.settings import Checked, Count, Limits, Seed32, Share

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class OwnTextTask(Checked):
    """A task under any name: where its examples are, and which columns hold texts and labels."""

    path: str = ""
    """A folder in the benchmark's form, or a CSV, TSV, JSON, JSON lines or Parquet file (all but
    Parquet also as ``.gz``) of training examples."""
    hub: str = ""
    """Instead of ``path``: a dataset on the Hugging Face hub."""
    config: str = ""
    """With ``hub``: the dataset's configuration, if it has several."""
    test: str = ""
    """Of a file: another one with the test examples; without, ``held_out`` of the one is for
    testing. Of a dataset: its split for testing; empty: ``test``."""
    text: str = "text"
    """The column of texts."""
    label: str = "label"
    """The column of labels: their names, or whole numbers from 0 that count through ``labels``."""
    labels: tuple[str, ...] = ()
    """The names of all labels; empty: ``labels.json`` of a folder, a dataset's own names, or all
    that occur in the training examples, sorted."""
    instruction: str = ""
    """What the prompt asks of a model that writes; empty: what the topic is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.path) == bool(self.hub):
            raise ValueError(
                "a task needs either path (a folder in the benchmark's form, or a file: "
                f"{', '.join(TABLES)}) or hub (a dataset), with text and label, the names of its "
                f"columns, and labels; got path={self.path!r}, hub={self.hub!r}"
            )
        for name, column in (("text", self.text), ("label", self.label)):
            if not column:
                raise ValueError(f"{name} must be the name of a column, got ''")
        if self.config and not self.hub:
            raise ValueError(f"config is of a dataset on the hub, got {self.config!r} with a path")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must be different, got {', '.join(self.labels)}")


PromptForm = Literal["instruction", "sentence"]
"""What a model reads: the benchmark's prompt with instruction and options, or the text alone."""

CHOOSE = "Choose one from the option.\n"
INSTRUCTIONS: dict[str, str] = {
    "SC": f"What is the sentiment of the following paragraph? {CHOOSE}",
    "TC": f"What is the topic of the following paragraph? {CHOOSE}",
    "NLI": 'What is the logical relationship between the "sentence 1" and the "sentence 2"? '
    f"{CHOOSE}",
    "QQP": 'Whether the "first sentence" and the "second sentence" have the same meaning? '
    f"{CHOOSE}",
    "BoolQA": f"According to the following passage, is the question true or false? {CHOOSE}",
    "MultiRC": "According to the following passage and question, is the candidate answer true or "
    f"false? {CHOOSE}",
    "WiC": "Given a word and two sentences, whether the word is used with the same sense in both "
    f"sentence? {CHOOSE}",
    "COPA": "",
}
"""By kind of task, to the letter as the O-LoRA benchmark has them; COPA's texts ask themselves."""

ANSWER = "\nAnswer:"

STARS = ("very negative", "negative", "neutral", "positive", "very positive")
DBPEDIA = (
    "Company", "Educational Institution", "Artist", "Athlete", "Office Holder",
    "Mean of Transportation", "Building", "Natural Place", "Village", "Animal", "Plant", "Album",
    "Film", "Written Work",
)  # fmt: skip
YAHOO = (
    "Society & Culture", "Science & Mathematics", "Health", "Education & Reference",
    "Computers & Internet", "Sports", "Business & Finance", "Entertainment & Music",
    "Family & Relationships", "Politics & Government",
)  # fmt: skip


@dataclass(frozen=True)
class TextTask:
    """One task of the pool."""

    name: str
    kind: str
    labels: tuple[str, ...]
    instruction: str | None = None
    """What is asked, where it is not what its kind always asks."""

    @property
    def folders(self) -> tuple[str, str]:
        """Where its files may lie: below its name, or as in the benchmark below its kind.

        >>> POOL["agnews"].folders, POOL["COPA"].folders
        (('agnews', 'TC/agnews'), ('COPA', 'COPA/COPA'))
        """
        return self.name, f"{self.kind}/{self.name}"

    def prompt(self, sentence: str, labels: Sequence[str] | None = None) -> str:
        """What the model reads; ``labels`` are the options, the pool's own unless given.

        >>> print(POOL["SST-2"].prompt("Text: good fun ."))  # doctest: +NORMALIZE_WHITESPACE
        Task:SC
        Dataset:SST-2
        What is the sentiment of the following paragraph? Choose one from the option.
        Option: Good, Bad
        Text: good fun .
        Answer:
        """
        head = f"Task:{self.kind}\nDataset:{self.name}\n"
        given = self.instruction
        instruction = INSTRUCTIONS[self.kind] if given is None else f"{given.strip()}\n"
        options = f"{instruction}Option: {', '.join(labels or self.labels)} \n"
        return f"{head}{options if instruction else ''}{sentence}{ANSWER}"


POOL: dict[str, TextTask] = {
    task.name: task
    for task in (
        TextTask("yelp", "SC", STARS),
        TextTask("amazon", "SC", STARS),
        TextTask("dbpedia", "TC", DBPEDIA),
        TextTask("yahoo", "TC", YAHOO),
        TextTask("agnews", "TC", ("World", "Sports", "Business", "Science or Technology")),
        TextTask("MNLI", "NLI", ("neutral", "entailment", "contradiction")),
        TextTask("QQP", "QQP", ("False", "True")),
        TextTask("RTE", "NLI", ("contradiction", "entailment")),
        TextTask("SST-2", "SC", ("Good", "Bad")),
        TextTask("WiC", "WiC", ("True", "False")),
        TextTask("CB", "NLI", ("entailment", "contradiction", "neutral")),
        TextTask("COPA", "COPA", ("A", "B")),
        TextTask("BoolQA", "BoolQA", ("True", "False")),
        TextTask("MultiRC", "MultiRC", ("False", "True")),
        TextTask("IMDB", "SC", ("Good", "Bad")),
    )
}

ORDERS: dict[str, tuple[str, ...]] = {
    "order1": ("dbpedia", "amazon", "yahoo", "agnews"),
    "order2": ("dbpedia", "amazon", "agnews", "yahoo"),
    "order3": (
        "yelp", "amazon", "MNLI", "CB", "COPA", "QQP", "RTE", "IMDB", "SST-2", "dbpedia", "agnews",
        "yahoo", "MultiRC", "BoolQA", "WiC",
    ),
}  # fmt: skip
"""The paper's three streams (its Appendix D). O-LoRA numbers them differently: the paper's order 3
is O-LoRA's long stream, and O-LoRA's own third short order is not in the paper."""

DESCRIPTIONS: dict[str, str] = {
    "order1": "text, 4 tasks: DBpedia, Amazon, Yahoo, AG News",
    "order2": "text, 4 tasks: DBpedia, Amazon, AG News, Yahoo",
    "order3": "text, 15 tasks of sentiment, topics, inference, questions and word senses",
}


NAME = re.compile(r"[^\W_][\w.-]*")


@dataclass(frozen=True)
class LanguageStreamSettings(Checked):
    """Which tasks in which order, where they lie, and how much of them is used."""

    name: str = "custom"
    """``order1``, ``order2`` or ``order3`` of the paper, or any other name with ``tasks``."""
    tasks: tuple[str, ...] = ()
    """Names in their order, from the pool, from ``own`` or of any folder in ``data``; empty takes
    those of the named order."""
    leave_out: tuple[str, ...] = ()
    """Tasks of the order that are left out on purpose; the record says so."""
    known: Count = 0
    """How many of the first tasks are known from the start: scored from then on, never trained."""
    data: str = ""
    """The folder with the O-LoRA benchmark's JSON files."""
    own: Mapping[str, OwnTextTask] = field(default_factory=dict, hash=False)
    """Your own tasks, a table each (``stream.own``), by their names in ``tasks``."""
    train_size: Count = 0
    """Training examples per task, before validation is carved out of them; 0: all of them."""
    test_size: Count = 0
    """Test examples per task; 0 as above."""
    validation: Share = 0.0
    """Share of the training examples that is set aside: the benchmark has no validation set of its
    own, its dev set is its test set."""
    held_out: Annotated[float, Limits(above=0, below=1)] = 0.25
    """Where a task has only one of its two files: the share of it that is for testing."""
    unknown_labels: Literal["keep", "drop"] = "keep"
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
        """A task of the pool, your own, or a folder, with its labels."""
        own = self.own.get(name)
        if own is not None:
            return TextTask(name, "TC", own.labels, own.instruction or None)
        return POOL.get(name) or TextTask(name, "TC", ())

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
        if not NAME.fullmatch(task):
            raise ValueError(
                "tasks must be names of letters, digits, '.', '_' and '-' that begin with a letter "
                f"or digit, got {task!r}"
            )
