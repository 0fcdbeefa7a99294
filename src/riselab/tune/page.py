"""What a training gave, in a sentence, a table and the answers of before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from risegrad.common.files import write_text
from riselab.pages.page import Block, CodeBlock, Fold, ItemList, Page, Paragraph, Part, Row, html
from riselab.pages.tables import Column, Line, Section, Table, TableCell, number_cell, ranked
from riselab.pages.text import visible

Record = Mapping[str, Any]
TITLES = {"keep": "After, kept", "plain": "After, plain"}
NAMES = {"keep": "kept", "plain": "plain training"}
COLUMNS = (
    Column("Exact", better=1, explanation="percent of held-out examples"),
    Column("NLL", better=-1, explanation="negative log-likelihood of a held-out answer, in nats"),
    Column("Drift", better=-1, explanation="nats per token that other answers have moved"),
    Column("Same", better=1, explanation="percent of other answers' likeliest tokens"),
    Column("Seconds", explanation="of everything, including measurements"),
)
QUESTION = "What was learned, and what is left of the answers to everyday questions?"


def sentence(record: Record, other: Record | None = None) -> str:
    """The finding, which a person can repeat."""
    before, after, name = record["before"], record["after"], Path(record["settings"]["new"]).stem
    text = (
        f"After {record['steps']} steps of {_how(record)} the model answers "
        f"{after['exact']:.0f} % of unseen examples of {name} exactly (before: "
        f"{before['exact']:.0f} %), and its answers to everyday questions have moved by "
        f"{after['drift']:.2g} nats per token: {after['agreement']:.0f} of 100 tokens stayed."
    )
    if other:
        ends = other["after"]
        text += (
            f" {_how(other).capitalize()}: {ends['exact']:.0f} % and {ends['drift']:.2g} nats, "
            f"{ends['agreement']:.0f} of 100."
        )
    return text


def _how(record: Record) -> str:
    return "plain training" if record["method"] == "plain" else "training with keep"


def table(record: Record, other: Record | None = None) -> Table:
    """The numbers of before and after."""
    lines = [Line("before", _cells(record["before"]))]
    for each in _in_order(record, other):
        lines.append(
            Line(NAMES[each["method"]], _cells(each["after"] | {"seconds": each["seconds"]}))
        )
    held = record["examples"]["held"]
    caption = f"On {held} held-out examples, and on everyday questions that nothing was trained on"
    return ranked(Table(caption, "Training", COLUMNS, (Section("", tuple(lines)),)))


def _cells(found: Mapping[str, float]) -> tuple[TableCell | None, ...]:
    digits = {"exact": 1, "nll": 2, "drift": 3, "agreement": 1, "seconds": 0}
    return tuple(number_cell(found.get(name), places) for name, places in digits.items())


def _in_order(record: Record, other: Record | None) -> list[Record]:
    """Plain training first."""
    both = [each for each in (record, other) if each]
    return sorted(both, key=lambda each: str(each["method"]), reverse=True)


def page(record: Record, other: Record | None = None) -> Page:
    """One page; with ``other``, both trainings side by side."""
    settings, runs = record["settings"], _in_order(record, other)
    name, model = Path(settings["new"]).stem, Path(settings["model"]).name
    blocks = (table(record, other), *_use(record))
    answers = tuple(block for n in range(len(record["answers"])) for block in _answers(n, runs))
    samples = tuple(
        block for n in range(len(record["samples"])) for block in _answers(n, runs, "samples")
    )
    made = Fold("How it was made", (ItemList("", tuple(_made(record, other))),))
    return Page(
        f"{model} learns {name}",
        (
            Part("", blocks, QUESTION, sentence(record, other)),
            Part("Everyday questions, before and after", answers),
            Part("Details", (Fold("Unseen examples of what was learned", samples), made)),
        ),
    )


def _answers(number: int, runs: list[Record], of: str = "answers") -> Iterator[Block]:
    asked = runs[0][of][number]
    question = asked["question"]
    wanted: tuple[str, ...] = ()
    if isinstance(question, Mapping):  # a line of the file
        wanted = (f"Right: {_last(question)}",)
        question = _first(question)
    yield Paragraph(f"{number + 1}. {question}", "question")
    before = ItemList("Before", (asked["before"] or "(nothing)", *wanted))
    after = [ItemList(TITLES[r["method"]], (r[of][number]["after"] or "(nothing)",)) for r in runs]
    if len(after) == 1:
        yield Row((before, *after))
    else:  # what is compared stands side by side
        yield before
        yield Row(tuple(after))


def _first(row: Mapping[str, Any]) -> str:
    return str(row["prompt"] if "prompt" in row else row["messages"][-2]["content"])


def _last(row: Mapping[str, Any]) -> str:
    return str(row["answer"] if "answer" in row else row["messages"][-1]["content"])


def _use(record: Record) -> Iterator[Block]:
    settings = record["settings"]
    kind = "AutoModelForCausalLM" if settings["full"] else "AutoPeftModelForCausalLM"
    package = "transformers" if settings["full"] else "peft"
    out = Path(settings["out"]).name
    lines = (f"from {package} import {kind}", "", f'model = {kind}.from_pretrained("{out}")')
    yield CodeBlock("To use it", lines)


def _made(record: Record, other: Record | None) -> Iterator[str]:
    settings, examples = record["settings"], record["examples"]
    yield "All weights trained." if settings["full"] else "LoRA, r = 8, on all linear layers."
    yield (
        f"AdamW at {record['optimizer']['lr']:g} with warm-up and decay, {record['steps']} steps "
        f"of {record['optimizer']['batch']} of {examples['learned']} examples; only answers count; "
        f"{record['step_seconds']:.2f} s per step."
    )
    yield "The drift is KL(then || now) on the answers that the model gave before training."
    for each in _in_order(record, other):
        if each["keep"]:
            yield f"With keep, on examples that were kept and held out: {each['keep']['sentence']}"
    packages = record["environment"]["packages"]
    named = ("risegrad", "torch", "transformers", "peft")
    yield ", ".join(f"{name} {packages[name]}" for name in named if name in packages) + "."


def write(path: Path, record: Record, other: Record | None = None) -> None:
    """The page as one file."""
    write_text(path, html(page(record, other)))


def text(record: Record, other: Record | None = None) -> str:
    """The table and the sentence for a terminal."""
    return "\n".join([*table(record, other).plain(), "", visible(sentence(record, other))])
