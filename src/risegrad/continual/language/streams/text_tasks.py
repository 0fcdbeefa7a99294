"""The fifteen tasks: their labels and instructions, their prompt, and the paper's orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    """One task of the pool. ``train`` and ``test`` are how many examples the benchmark has."""

    name: str
    kind: str
    labels: tuple[str, ...]
    train: int
    test: int
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
        TextTask("yelp", "SC", STARS, 5000, 7600),
        TextTask("amazon", "SC", STARS, 5000, 7600),
        TextTask("dbpedia", "TC", DBPEDIA, 14000, 7600),
        TextTask("yahoo", "TC", YAHOO, 10000, 7600),
        TextTask(
            "agnews", "TC", ("World", "Sports", "Business", "Science or Technology"), 4000, 7600
        ),
        TextTask("MNLI", "NLI", ("neutral", "entailment", "contradiction"), 3000, 7600),
        TextTask("QQP", "QQP", ("False", "True"), 2000, 7600),
        TextTask("RTE", "NLI", ("contradiction", "entailment"), 2000, 277),
        TextTask("SST-2", "SC", ("Good", "Bad"), 2000, 872),
        TextTask("WiC", "WiC", ("True", "False"), 2000, 638),
        TextTask("CB", "NLI", ("entailment", "contradiction", "neutral"), 250, 56),
        TextTask("COPA", "COPA", ("A", "B"), 400, 100),
        TextTask("BoolQA", "BoolQA", ("True", "False"), 2000, 3270),
        TextTask("MultiRC", "MultiRC", ("False", "True"), 2000, 4848),
        TextTask("IMDB", "SC", ("Good", "Bad"), 2000, 7600),
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
