"""The same tasks from the Hugging Face hub: each task's own dataset, brought into one form."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from riselab.common.inputs import Hub, Local, Reading
from riselab.continual.language.streams.files import (
    Example,
    TextPart,
    TextSource,
    label_text,
    occurring,
    read_folder,
    read_own,
)
from riselab.continual.language.streams.settings import (
    DBPEDIA,
    POOL,
    STARS,
    YAHOO,
    LanguageStreamSettings,
    OwnTextTask,
    TextTask,
)

Row = Mapping[str, Any]
NO_YES = ("False", "True")


@dataclass(frozen=True)
class HubTask:
    """A dataset by name and configuration, its text as the benchmark writes it, and its labels.

    ``labels`` are in the order of the dataset's own numbers, which begin at ``first``.
    """

    path: str
    labels: tuple[str, ...]
    sentence: Callable[[Row], str]
    config: str | None = None
    label: str = "label"
    first: int = 0
    test: str = "test"


def _titled(title: str, text: str) -> Callable[[Row], str]:
    return lambda row: f"Title: {row[title]}\nText: {row[text]}\n"


def _text(column: str, end: str = "\n") -> Callable[[Row], str]:
    return lambda row: f"Text: {row[column]}{end}"


def _pair(first: str, second: str, names: tuple[str, str] = ("sentence 1", "sentence 2")) -> Any:
    return lambda row: f"{names[0]}: {row[first]}\n{names[1]}: {row[second]}"


def _copa(row: Row) -> str:
    return (
        f'Which sentence is the {row["question"]} of "{row["premise"]}"? Choose one between A and '
        f"B.\nA: {row['choice1']}\nB: {row['choice2']}"
    )


def _wic(row: Row) -> str:
    return f"word: {row['word']}\n{row['sentence1']}\n{row['sentence2']}"


def _multirc(row: Row) -> str:
    return (
        f"paragraph: {row['paragraph']}\nquestion: {row['question']}\n"
        f"candidate answer: {row['answer']}"
    )


# The test labels of GLUE and SuperGLUE are secret, so testing is on their validation splits.
_glue = partial(HubTask, "nyu-mll/glue", test="validation")
_super = partial(HubTask, "aps/super_glue", test="validation")
_NLI = ("entailment", "contradiction", "neutral")
HUB: dict[str, HubTask] = {
    "yelp": HubTask("Yelp/yelp_review_full", STARS, _text("text")),
    "amazon": HubTask(
        "yassiracharki/Amazon_Reviews_for_Sentiment_Analysis_fine_grained_5_classes", STARS,
        _titled("review_title", "review_text"), label="class_index", first=1,
    ),
    "dbpedia": HubTask("fancyzhx/dbpedia_14", DBPEDIA, _titled("title", "content")),
    "yahoo": HubTask(
        "community-datasets/yahoo_answers_topics", YAHOO,
        lambda row: f"Title: {row['question_title']}\nText: {row['question_content']} "
                    f"{row['best_answer']}\n",
        label="topic",
    ),
    "agnews": HubTask("fancyzhx/ag_news", POOL["agnews"].labels, _text("text")),
    "MNLI": _glue(("entailment", "neutral", "contradiction"), _pair("premise", "hypothesis"),
                  "mnli", test="validation_matched"),
    "QQP": _glue(NO_YES, _pair("question1", "question2", ("first sentence", "second sentence")),
                 "qqp"),
    "RTE": _glue(_NLI[:2], _pair("sentence1", "sentence2"), "rte"),
    "SST-2": _glue(("Bad", "Good"), _text("sentence", ""), "sst2"),
    "WiC": _super(NO_YES, _wic, "wic"),
    "CB": _super(_NLI, _pair("premise", "hypothesis"), "cb"),
    "COPA": _super(("A", "B"), _copa, "copa"),
    "BoolQA": _super(NO_YES, _pair("question", "passage", ("question", "passage")), "boolq"),
    "MultiRC": _super(NO_YES, _multirc, "multirc"),
    "IMDB": HubTask("stanfordnlp/imdb", ("Bad", "Good"), lambda row: str(row["text"])),
}  # fmt: skip


Choose = Callable[[str, int], Sequence[int]]
"""Of "train" or "test" and a number of rows: the rows that are used."""


def own_dataset(own: OwnTextTask) -> HubTask:
    """Your own dataset, by its columns."""
    return HubTask(
        own.hub,
        own.labels,
        lambda row: str(row[own.text]),
        own.config or None,
        own.label,
        test=own.test or "test",
    )


def read_hub(task: TextTask, hub: HubTask, choose: Choose) -> TextSource:
    """A task's training and test examples, downloaded or from the local cache of ``datasets``.

    Some datasets have millions of rows, so only the chosen ones are looked at.
    """
    found = _load(task, hub)
    missing = [split for split in ("train", hub.test) if split not in found]
    if missing:
        raise ValueError(
            f"{task.name}: {hub.path!r} must have the splits train and {hub.test}, "
            f"got {', '.join(found)}"
        )
    if not hub.labels:
        hub = replace(hub, labels=_own_names(found["train"], hub.label))
    parts = []
    for purpose, split in (("train", "train"), ("test", hub.test)):
        rows = found[split].select(choose(purpose, len(found[split])))
        try:
            examples = as_examples(hub, rows)
        except KeyError as error:
            raise ValueError(
                f"{task.name}: {hub.path!r} must have the column {error}, "
                f"got {', '.join(rows.column_names)}"
            ) from error
        parts.append(TextPart(f"{hub.path}:{split}", examples))
    return TextSource(task.labels or hub.labels or occurring(parts[0]), *parts)


def _own_names(rows: Any, column: str) -> tuple[str, ...]:
    """The label names that a dataset itself has for its numbers, if it has."""
    return tuple(getattr(rows.features.get(column), "names", ()))


def _load(task: TextTask, hub: HubTask) -> Any:
    datasets: Any = importlib.import_module("datasets")
    try:
        return datasets.load_dataset(hub.path, hub.config)
    # A RuntimeError is a dataset that is a script: newer versions of the library run none.
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise FileNotFoundError(
            f"{task.name}: the dataset {hub.path!r} is not on the hub or not reachable "
            f"({type(error).__name__}: {error}); read files with stream.source=folder "
            "stream.data=PATH where there is no network"
        ) from error


def as_examples(hub: HubTask, rows: Iterable[Row]) -> tuple[Example, ...]:
    """Rows in the benchmark's form; a number without a label text stands for itself."""
    return tuple(_example(hub, row) for row in rows)


def _example(hub: HubTask, row: Row) -> Example:
    """Some reviews have no title and some questions no text: that is empty, not "None"."""
    given = {column: "" if value is None else value for column, value in row.items()}
    return Example(hub.sentence(given), label_text(row[hub.label], hub.labels, hub.first))


def dataset_of(settings: LanguageStreamSettings, name: str) -> HubTask | None:
    """The dataset on the hub that a task comes from; None if it comes from files."""

    own = settings.own.get(name)
    if own is not None:
        return own_dataset(own) if own.hub else None
    return HUB[name] if settings.source == "hub" else None


def read_source(settings: LanguageStreamSettings, name: str, choose: Choose) -> TextSource | None:
    """A task's examples; None where no folder of its name has any."""
    task, dataset = settings.task(name), dataset_of(settings, name)
    if dataset is not None:
        return read_hub(task, dataset, choose)
    own = settings.own.get(name)
    return read_folder(settings.data, task) if own is None else read_own(name, own)


def texts_of(settings: LanguageStreamSettings) -> dict[str, Reading]:
    """What a stream reads, by the setting that names it: its tasks, no others."""
    found: dict[str, Reading] = {}
    folders: list[str] = []
    for name in settings.order:
        own, dataset = settings.own.get(name), dataset_of(settings, name)
        if dataset is not None:
            place = f"stream.data.{name}" if own is None else f"stream.own.{name}.hub"
            found[place] = Hub(dataset.path, "dataset")
        elif own is not None:
            files = {"path": own.path, "test": own.test}
            found |= {f"stream.own.{name}.{at}": Local(file) for at, file in files.items() if file}
        else:
            folders += settings.task(name).folders
    if folders and settings.data:
        found["stream.data"] = Local(settings.data, tuple(folders))
    return found
