"""What a chat model can do beside what it is tuned for: measured before, and compared after.

``Abilities(model, tokenizer, folder)`` measures the model now, and ``compare(model)`` says
later what has changed; ``evaluators()`` are for a ``ForgettingMeter`` in your own training. The
folder has any of these files, a JSON object per line:

``instructions.jsonl.gz`` (``prompt``): the drift, ``KL(then || now)`` per token on the answers that
the model gave then, and how often its likeliest token is the same.
``wiki.jsonl.gz`` (``text``): the mean loss of a token.
``choice.jsonl.gz`` (``prompt, options, answer``): which option is likeliest, per character.
``facts.jsonl.gz`` (``prompt, answers``): what share of the answers to other questions of the same
kind ("The capital of ...") is less likely than the right one, so that 50 is chance. A taste for
short answers, or for no sentence around them, lifts all of them alike.

The instructions may have IFEval's fields, too: ``followed`` is the share of them that answers obey,
``answer_tokens`` their mean length, see ``following``.
"""

from __future__ import annotations

import gzip
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from risegrad.integrations.kept_scores import KeptScore
from risegrad.keeping.answers import Answers, predictions
from riselab.common.settings import Checked, Count, PositiveInt
from riselab.continual.chat.cache import Made, cached, content_of
from riselab.continual.chat.following import checkable, followed
from riselab.continual.chat.texts import (
    Batch,
    Chat,
    ChatTexts,
    Prompt,
    answer_scores,
    greedy,
    in_groups,
)

INSTRUCTIONS, WIKI, CHOICE, FACTS = (
    f"{name}.jsonl.gz" for name in ("instructions", "wiki", "choice", "facts")
)
FILES = (INSTRUCTIONS, WIKI, CHOICE, FACTS)
OTHERS, FEWEST = 12, 3
"""Wrong answers beside the right one of a fact, at most, and at least."""
WIKI_TOKENS, WIKI_BATCH, DRIFT_BATCH = 128, 8, 8
VERSION = 1
"""Of how abilities are measured: raised when that changes."""


@dataclass(frozen=True)
class AbilitySettings(Checked):
    """Of what is measured beside the new tasks, how much."""

    folder: str = ""
    """With ``instructions``, ``wiki``, ``choice`` and ``facts``, each a ``.jsonl.gz``, as far as
    they are there; empty: only the drift on inputs of the new tasks is measured."""
    prompts: Count = 24
    """Instructions whose answers are compared: every second of the file's. The others are for rules
    that replay real prompts."""
    new: Count = 12
    """Inputs of the new tasks on which the answers of before and after are compared."""
    tokens: PositiveInt = 48
    """Most tokens of an answer that is compared."""
    longest: PositiveInt = 220
    """Most characters of an instruction; longer ones are passed over."""
    wiki: Count = 24
    """Paragraphs, of which the first 128 tokens are read."""
    choice: Count = 80
    """Questions with options, as many of each task of the file as of any other."""
    facts: Count = 48
    """Facts, as many of each kind as of any other."""
    follow: Count = 0
    """Instructions whose answers IFEval's checkers judge; none of those that rules may replay."""
    written: PositiveInt = 128
    """Most tokens of an answer that is judged."""


class Drift:
    """How far a model's answers to some chats are from those that it gave when this was made."""

    def __init__(self, batches: Sequence[Batch], answers: Sequence[Answers]) -> None:
        self._batches, self._answers = batches, answers
        self.examples = sum(len(batch["input_ids"]) for batch in batches)

    @classmethod
    @torch.no_grad()
    def of(cls, model: Any, batches: Sequence[Batch]) -> Drift:
        """From now on."""
        cpu = torch.device("cpu")
        return cls(batches, [predictions(answer_scores(model, b)[0]).to(cpu) for b in batches])

    @torch.no_grad()
    def measure(self, model: Any) -> tuple[float, float]:
        """Nats per token, and how many percent of the likeliest tokens are the same."""
        distances, same = [], []
        for batch, answers in zip(self._batches, self._answers, strict=True):
            rows = answer_scores(model, batch)[0].cpu()
            distances.append(answers.distances(rows).double())
            agreements = answers.agreements(rows)
            assert agreements is not None
            same.append(agreements.double())
        return float(torch.cat(distances).mean()), 100 * float(torch.cat(same).mean())

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Everything, for a file."""
        found: dict[str, Tensor] = {}
        for number, (batch, a) in enumerate(zip(self._batches, self._answers, strict=True)):
            parts = batch | {"values": a.values, "width": torch.tensor(a.width)}
            parts |= {} if a.classes is None else {"classes": a.classes}
            found |= {f"{name}/{number}/{part}": tensor for part, tensor in parts.items()}
        return found

    @classmethod
    def read(cls, name: str, tensors: Mapping[str, Tensor]) -> Drift:
        """What ``tensors`` gave."""
        parts: dict[int, Batch] = defaultdict(dict)
        for key, tensor in tensors.items():
            of, number, part = key.split("/")
            if of == name:
                parts[int(number)][part] = tensor
        batches, answers = [], []
        for _, batch in sorted(parts.items()):
            values, classes = batch.pop("values"), batch.pop("classes", None)
            answers.append(Answers(values, classes, int(batch.pop("width"))))
            batches.append(batch)
        return cls(batches, answers)


@dataclass
class Ability:
    """One of them by itself: an ``Evaluator``, as the library calls it."""

    examples: int
    score: Callable[[Any], KeptScore]


@dataclass
class Abilities:
    """The abilities of ``model`` at this moment, to compare with later."""

    model: Any
    tokenizer: Any
    folder: str | Path = ""
    sizes: AbilitySettings = field(default_factory=AbilitySettings)
    new: Sequence[Prompt] = ()
    """Inputs of what is to be learned, whose answers are compared, too."""
    own: Sequence[Chat] = ()
    """Chats of one's own in place of everything in the folder, for choices that must not look at
    what is reported."""

    def __post_init__(self) -> None:
        self._texts = ChatTexts(self.tokenizer)
        sizes = {f.name: getattr(self.sizes, f.name) for f in fields(self.sizes)} | {"folder": ""}
        key: dict[str, Any] = {
            "abilities": VERSION,
            "model": content_of(self.model),
            "sizes": sizes,
            "files": {name: rows_of(self.folder, name) for name in FILES},
            "new": self.new[: self.sizes.new],
            "own": self.own,
        }
        tensors, plain = cached(key, self._now)
        self._drifts = {name: Drift.read(name, tensors) for name in plain["drifts"]}
        self.before: dict[str, float] = plain["before"]
        """The scores of the model as it was."""

    def compare(self, model: Any) -> dict[str, float]:
        """Drift and agreement of answers; every score, and its change (``wiki`` is a loss)."""
        found: dict[str, float] = {}
        for name, drift in self._drifts.items():
            found[name], found[name.replace("drift", "agreement")] = drift.measure(model)
        after = self._scores(model)
        return found | after | {f"{name}_change": after[name] - self.before[name] for name in after}

    def evaluators(self) -> dict[str, Ability]:
        """For ``ForgettingCallback(keep=abilities.evaluators())``: all that was measured before.

        Drifts and the loss on wiki are in nats, so a budget holds them; the others have percents.
        """

        def drifted(drift: Drift, model: Any) -> KeptScore:
            return KeptScore(*drift.measure(model))

        drifts = {n: Ability(d.examples, partial(drifted, d)) for n, d in self._drifts.items()}
        wiki, choice = (len(rows_of(self.folder, name)) for name in (WIKI, CHOICE))
        facts, sizes = len(facts_of(rows_of(self.folder, FACTS))), self.sizes
        others = {
            "wiki": Ability(min(wiki, sizes.wiki), lambda m: _there(self._read(m))),
            "choice": Ability(min(choice, sizes.choice), lambda m: _percent(self._choice(m))),
            "facts": Ability(min(facts, sizes.facts), lambda m: _percent(self._facts(m))),
            "followed": Ability(
                len(self._judged()), lambda m: _percent(self._followed(m).get("followed"))
            ),
        }
        return drifts | {name: each for name, each in others.items() if name in self.before}

    def _now(self) -> Made:
        drifts = {
            name: Drift.of(self.model, [self._texts.batch(g) for g in in_groups(c, DRIFT_BATCH)])
            for name, c in self._answered()
        }
        tensors = {k: t for name, drift in drifts.items() for k, t in drift.tensors(name).items()}
        return tensors, {"drifts": list(drifts), "before": self._scores(self.model)}

    def _answered(self) -> Iterator[tuple[str, Sequence[Chat]]]:
        """Chats in which the model of now answers, by the name of the drift that is measured."""
        if self.own:
            yield "drift", self.own
        asked: dict[str, list[Any]] = {
            "drift": [] if self.own else instructions(self.folder, self.sizes)[0]
        }
        asked["drift_new"] = list(self.new)[: self.sizes.new]
        for name, prompts in asked.items():
            if prompts:
                yield name, greedy(self.model, self._texts, prompts, self.sizes.tokens)

    @torch.no_grad()
    def _scores(self, model: Any) -> dict[str, float]:
        if self.own:
            return {}
        ways = {"wiki": self._wiki, "choice": self._choice, "facts": self._facts}
        found = {name: way(model) for name, way in ways.items() if getattr(self.sizes, name)}
        measured = {name: value for name, value in found.items() if value is not None}
        return measured | (self._followed(model) if self.sizes.follow else {})

    def _followed(self, model: Any) -> dict[str, float]:
        """Percent of the instructions that are obeyed, and how long answers are, in tokens."""
        return followed(model, self._texts, self._judged(), self.sizes.written)

    def _judged(self) -> list[dict[str, Any]]:
        replayed = {*instructions(self.folder, self.sizes)[1]}
        rows = [row for row in rows_of(self.folder, INSTRUCTIONS) if row["prompt"] not in replayed]
        return checkable(rows)[: self.sizes.follow]

    def _wiki(self, model: Any) -> float | None:
        """The mean loss of a token."""
        found = self._read(model)
        return None if found is None else found.loss

    def _read(self, model: Any) -> KeptScore | None:
        """The mean loss of a token of wiki, and how many percent of them are the likeliest."""
        read = [row["text"] for row in rows_of(self.folder, WIKI)][: self.sizes.wiki]
        texts = sorted((self._texts.text(text)[:WIKI_TOKENS] for text in read), key=len)
        losses, hits = [], []
        for group in in_groups([Chat(t, len(t) - 1) for t in texts if len(t) > 1], WIKI_BATCH):
            scores, labels = answer_scores(model, self._texts.batch(group))
            losses.append(cross_entropy(scores.float(), labels, reduction="none").double())
            hits.append((scores.argmax(-1) == labels).double())
        if not losses:
            return None
        return KeptScore(float(torch.cat(losses).mean()), 100 * float(torch.cat(hits).mean()))

    def _choice(self, model: Any) -> float | None:
        """Percent right."""
        right = []
        for row in evenly(rows_of(self.folder, CHOICE), self.sizes.choice, lambda r: r["task"]):
            said = [f" {option}" for option in row["options"]]
            found = self._likelihoods(model, f"{row['prompt']}\nAnswer:", said)
            each = [float(f) / len(text) for f, text in zip(found, said, strict=True)]
            right.append(each.index(max(each)) == row["answer"])
        return 100 * fmean(right) if right else None

    def _facts(self, model: Any) -> float | None:
        """Percent of the wrong answers that are less likely than the right one."""
        shares = []
        asked = facts_of(rows_of(self.folder, FACTS))
        for prompt, right, wrong, _ in evenly(asked, self.sizes.facts, lambda fact: fact[3]):
            found = self._likelihoods(model, prompt, [f" {answer}" for answer in (right, *wrong)])
            shares.append(float((found[1:] < found[0]).double().mean()))
        return 100 * fmean(shares) if shares else None

    def _likelihoods(self, model: Any, prompt: str, said: Sequence[str]) -> Tensor:
        """The log-likelihood of each continuation; the prompt is read once."""
        begun = torch.tensor([self._texts.text(prompt)], device=model.device)
        tokens = [self._texts.text(text) for text in said]
        out = model(input_ids=begun, use_cache=True, logits_to_keep=1)
        most = max(map(len, tokens))
        padded = torch.tensor([t + [0] * (most - len(t)) for t in tokens], device=model.device)
        scores = out.logits[:, -1:].expand(len(tokens), -1, -1)
        if most > 1:
            cache: Any = out.past_key_values
            cache.batch_repeat_interleave(len(tokens))
            # What follows the end of a shorter one is not looked at, so no mask is needed.
            rest = model(input_ids=padded[:, :-1], past_key_values=cache, use_cache=True).logits
            scores = torch.cat([scores, rest], 1)
        chosen = scores.float().log_softmax(-1).gather(-1, padded.unsqueeze(-1))[..., 0].double()
        counts = torch.tensor([[n < len(t) for n in range(most)] for t in tokens])
        return torch.where(counts, chosen.cpu(), 0.0).sum(1)


Found = TypeVar("Found")


def _there(found: Found | None) -> Found:
    assert found is not None, "what was measured before is measured again"
    return found


def _percent(found: float | None) -> KeptScore:
    return KeptScore(None, _there(found))


def instructions(folder: str | Path, sizes: AbilitySettings) -> tuple[list[str], list[str]]:
    """Prompts to measure on, and others, for rules that may replay some."""
    read = [row["prompt"] for row in rows_of(folder, INSTRUCTIONS)]
    short = [prompt for prompt in read if len(prompt) <= sizes.longest]
    return short[::2][: sizes.prompts], short[1::2]


Fact = tuple[str, str, list[str], str]
"""Prompt, right answer, wrong answers, kind."""


def facts_of(rows: Sequence[dict[str, Any]]) -> list[Fact]:
    """The wrong answers are right ones of others of the same kind: "The capital of ..."."""
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        kinds[row["prompt"].partition(" of ")[0]].append(row)
    found: list[Fact] = []
    for kind, members in kinds.items():
        known = list(dict.fromkeys(row["answers"][0] for row in members))
        for row in members:
            wrong = [answer for answer in known if answer not in row["answers"]]
            if len(wrong) >= FEWEST:
                wrong = random.Random(row["prompt"]).sample(wrong, min(OTHERS, len(wrong)))
                found.append((row["prompt"], row["answers"][0], wrong, kind))
    return found


def evenly(items: Sequence[Any], most: int, kind: Any) -> list[Any]:
    """The first of each kind, then the second of each, until there are ``most``."""
    turns: dict[str, int] = defaultdict(int)
    keyed = []
    for place, item in enumerate(items):
        keyed.append((turns[kind(item)], place, item))
        turns[kind(item)] += 1
    return [item for _, _, item in sorted(keyed, key=lambda entry: entry[:2])[:most]]


def rows_of(folder: str | Path, name: str) -> list[dict[str, Any]]:
    """A JSON object per line; none where there is no such file."""
    path = Path(folder).expanduser() / name
    if not folder or not path.is_file():
        return []
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
