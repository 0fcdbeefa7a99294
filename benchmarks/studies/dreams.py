"""python -m benchmarks.studies.dreams T5_FOLDER BANKING_FOLDER CL_BENCHMARK_FOLDER

How much worse is a memory of dreamed examples than one of real ones? A small T5 learns one task by
a fresh LoRA; what it loses on a task that it was taught before is compared where all methods have
learned equally much. Results go to dreams.json.
"""

import copy
import gzip
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoTokenizer, T5ForConditionalGeneration

import risegrad
from benchmarks.studies.stream_trials import as_rows, deviation, keep
from riselab.continual.language.streams.settings import POOL

RESULTS = Path(__file__).with_suffix(".json")
SEEDS = (0, 1, 2)
OLD = "agnews"
TAUGHT, TESTED, PER_LABEL, REMEMBERED = 64, 24, 4, 32
RATE, EPOCHS, BETWEEN, DAMPING, WORDS = 3e-3, 4, 2, 0.3, 24

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Example:
    prompt: str
    answer: str


@dataclass(frozen=True)
class Point:
    """Where a run was after an epoch. Losses in nats per answer, the score in percent."""

    method: str
    seed: int
    epoch: int
    new_loss: float
    kept_loss: float
    kept: float
    seconds: float


def read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path) as file:
        found: list[dict[str, str]] = json.load(file)
    return found


class Subject:
    """The model, which is taught the old task, and the examples of both tasks."""

    def __init__(self, model: str, banking: str, pool: str) -> None:
        self.pool = Path(pool)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self.options = tuple(json.loads((self.pool / OLD / "labels.json").read_text()))
        self.old, self.kept = self._old("train", TAUGHT), self._old("test", TESTED)
        place = Path(banking) / "banking-1"
        labels = json.loads((place / "labels.json").read_text())
        train, test = (read(place / f"{part}.json.gz") for part in ("train", "test"))
        few = [[e for e in train if e["label"] == label][:PER_LABEL] for label in labels]
        self.learned = [self._question(e) for part in few for e in part]
        self.tested = [self._question(e) for e in test[:: len(test) // TESTED][:TESTED]]
        self.taught = self._teach(T5ForConditionalGeneration.from_pretrained(model))

    def _old(self, part: str, count: int) -> list[Example]:
        rows = read(self.pool / OLD / f"{part}.json.gz")
        chosen = rows[:: len(rows) // count][:count]
        return [Example(self.instruction(e["sentence"]), e["label"]) for e in chosen]

    def _question(self, e: dict[str, str]) -> Example:
        return Example(f"What does the customer ask about?\n{e['sentence']}", e["label"])

    def instruction(self, text: str) -> str:
        return POOL[OLD].prompt(" ".join(text.split()[:WORDS]), self.options)

    def generic(self) -> list[str]:
        """Film reviews: text that has nothing to do with what is kept or learned."""
        rows = read(self.pool / "IMDB" / "train.json.gz")
        return [row["sentence"] for row in rows[:: len(rows) // REMEMBERED][:REMEMBERED]]

    def _teach(self, base: nn.Module) -> nn.Module:
        torch.manual_seed(0)
        model: Any = with_lora(base)
        for epoch in range(EPOCHS):
            learn(model, self.batches(self.old, epoch), optimizer_of(model))
        merged: nn.Module = model.merge_and_unload()
        return merged

    def batch(self, prompts: list[str], answers: list[str]) -> Batch:
        made = self.tokenizer(prompts, padding=True, return_tensors="pt")
        labels = self.tokenizer(answers, padding=True, return_tensors="pt")["input_ids"]
        labels = labels.masked_fill(labels == self.tokenizer.pad_token_id, -100)
        return {**made, "labels": labels}

    def batches(self, examples: list[Example], seed: int, size: int = 8) -> list[Batch]:
        order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
        return [
            self.batch([examples[i].prompt for i in part], [examples[i].answer for i in part])
            for part in torch.split(order, size)
        ]


def with_lora(base: nn.Module) -> nn.Module:
    found: Any = base
    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q", "v"])
    return get_peft_model(found, lora).eval()


def trained_in(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(trained_in(model).values(), lr=RATE, weight_decay=0.0)


def learn(model: nn.Module, batches: list[Batch], optimizer: torch.optim.Optimizer) -> None:
    model.train()
    for batch in batches:
        optimizer.zero_grad()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained_in(model).values(), 1.0)
        optimizer.step()
    model.eval()


Source = Callable[[Subject, nn.Module, int], list[Batch]]


def real(subject: Subject, model: nn.Module, seed: int) -> list[Batch]:
    return subject.batches(subject.old[: 2 * REMEMBERED : 2], seed)


def dreamed_from_prompts(subject: Subject, model: nn.Module, seed: int) -> list[Batch]:
    """The old task's instruction around foreign text, and the model's answers."""
    return dreams(subject, model, seed, [subject.instruction(text) for text in subject.generic()])


def dreamed_from_nothing(subject: Subject, model: nn.Module, seed: int) -> list[Batch]:
    return dreams(subject, model, seed, None)


def dreams(subject: Subject, model: nn.Module, seed: int, prompts: list[str] | None) -> list[Batch]:
    return risegrad.dreamed(
        model, subject.tokenizer, REMEMBERED, prompts=prompts, length=8, batch=8, seed=seed
    )


def generic_text(subject: Subject, model: nn.Module, seed: int) -> list[Batch]:
    """Foreign text and how it goes on: no instruction, nothing sampled."""
    words = [text.split() for text in subject.generic()]
    pairs = [Example(" ".join(w[:WORDS]), " ".join(w[WORDS : WORDS + 4])) for w in words]
    return subject.batches([pair for pair in pairs if pair.answer], seed)


SOURCES: dict[str, Source] = {
    "real examples": real,
    "dreamed from the old task's instruction": dreamed_from_prompts,
    "dreamed from random tokens": dreamed_from_nothing,
    "generic text": generic_text,
}


def answer_losses(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.mT, labels, reduction="none").sum(1)


@torch.no_grad()
def loss_of(subject: Subject, model: nn.Module, examples: list[Example]) -> float:
    """Nats per right answer."""
    found = [
        answer_losses(model(**batch).logits, batch["labels"])
        for batch in subject.batches(examples, 0)
    ]
    return float(torch.cat(found).mean())


@torch.no_grad()
def score_of(subject: Subject, model: nn.Module) -> float:
    """Percent of the old task's questions whose right label is the likeliest."""
    net: Any = model
    n = len(subject.options)
    labels = subject.batch(["."] * n, list(subject.options))["labels"]
    right = []
    for example in subject.kept:
        asked = subject.batch([example.prompt], ["."])
        hidden = net.get_encoder()(asked["input_ids"]).last_hidden_state.expand(n, -1, -1)
        mask = asked["attention_mask"].expand(n, -1)
        logits = net(encoder_outputs=(hidden,), attention_mask=mask, labels=labels).logits
        likeliest = int(answer_losses(logits, labels).argmin())
        right.append(subject.options[likeliest] == example.answer)
    return float(100 * sum(right) / len(right))


def run(subject: Subject, method: str, seed: int) -> list[Point]:
    start = time.process_time()
    torch.manual_seed(seed)
    model = with_lora(copy.deepcopy(subject.taught))
    optimizer = optimizer_of(model)
    if method in SOURCES:
        batches = SOURCES[method](subject, model, seed)
        memory = risegrad.remember(model, batches, examples=None, seed=seed)
        shaper = risegrad.Informed(memory, damping=DAMPING)
        risegrad.attach(optimizer, shaper, params=trained_in(model), on="update")
    points = []
    for epoch in range(1, EPOCHS + 1):
        learn(model, subject.batches(subject.learned, 100 * seed + epoch), optimizer)
        if epoch % BETWEEN == 0:
            new, kept = (loss_of(subject, model, part) for part in (subject.tested, subject.kept))
            score, spent = score_of(subject, model), time.process_time() - start
            points.append(Point(method, seed, epoch, new, kept, score, spent))
            print(points[-1], flush=True)
    return points


def at_equal_learning(points: list[Point], before: float) -> dict[str, Any]:
    """How much the loss of kept answers rose, where every method's new loss is the same.

    Seed by seed, at the lowest new loss that every method reached, on the line between epochs.
    """
    risen: dict[str, list[float]] = {}
    levels = []
    for seed in sorted({p.seed for p in points}):
        own = [p for p in points if p.seed == seed]
        curves = {p.method: sorted((q.new_loss, q.kept_loss) for q in own if q.method == p.method)
                  for p in own}  # fmt: skip
        level = max(min(loss for loss, _ in curve) for curve in curves.values())
        levels.append(level)
        for method, curve in curves.items():
            risen.setdefault(method, []).append(_on_line(curve, level) - before)
    rows = [
        {"method": m, "kept loss risen by": round(statistics.mean(v), 3),
         "deviation": deviation(v)} for m, v in risen.items()
    ]  # fmt: skip
    return {"new loss": round(statistics.mean(levels), 3), "methods": rows}


def _on_line(curve: list[tuple[float, float]], level: float) -> float:
    for (low, f), (high, g) in itertools.pairwise(curve):
        if low <= level <= high:
            return f + (g - f) * (level - low) / (high - low) if high > low else min(f, g)
    return curve[0][1] if level < curve[0][0] else curve[-1][1]


def main(words: list[str]) -> None:
    if len(words) != 3:
        raise SystemExit(__doc__)
    subject = Subject(*words)
    before = {
        "new loss": loss_of(subject, subject.taught, subject.tested),
        "kept loss": loss_of(subject, subject.taught, subject.kept),
        "kept": score_of(subject, subject.taught),
    }
    print(before, flush=True)
    about = {"old": OLD, "rate": RATE, "epochs": EPOCHS, "damping": DAMPING, "before": before}
    points: list[Point] = []
    for seed in SEEDS:
        points += [p for method in ("plain", *SOURCES) for p in run(subject, method, seed)]
        compared = at_equal_learning(points, before["kept loss"])
        # After every seed: a run that is stopped leaves what it found.
        keep(RESULTS, "t5", {"equal learning": compared, "points": as_rows(points)}, about)
    print(json.dumps(compared, indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
