"""python -m benchmarks.studies.memory_of digits | minilm FOLDER DATA | vit FILE DATA

Which ``of`` should be the default of ``remember``: "predictions" or "features"? Task after task is
learned with a memory of either; results go to memory_of.json.
"""

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

import risegrad
from benchmarks.studies.stream_trials import (
    Batch,
    Method,
    Outcome,
    Problem,
    as_rows,
    at_equal_learning,
    keep,
    trials,
)

RESULTS = Path(__file__).with_suffix(".json")
SEEDS = (0, 1, 2)


def shuffled(count: int, size: int, seed: int) -> list[Tensor]:
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return list(torch.split(order, size))


def percent(right: Tensor) -> float:
    return 100 * float(right.float().mean())


class TurnedDigits:
    """scikit-learn's digits, turned by 45 degrees more each time; all weights train, one head."""

    name, epochs, base_rate, tasks = "turned digits, all weights of 64-128-128-10", 10, 1e-3, 4

    def __init__(self) -> None:
        from scipy.ndimage import rotate
        from sklearn.datasets import load_digits

        digits = load_digits()
        self.labels = torch.as_tensor(digits.target)
        images = digits.images / 16
        self.inputs = [
            torch.as_tensor(rotate(images, 45 * t, axes=(1, 2), reshape=False, order=1))
            .float()
            .flatten(1)
            for t in range(self.tasks)
        ]
        self.train = torch.arange(len(self.labels)) % 4 != 3

    def model(self, seed: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def batches(self, task: int, seed: int) -> list[Batch]:
        x, y = self.inputs[task][self.train], self.labels[self.train]
        return [(x[chosen], y[chosen]) for chosen in shuffled(len(y), 32, seed)]

    def loss(self, model: nn.Module, batch: Batch, task: int) -> Tensor:
        return cross_entropy(model(batch[0]), batch[1])

    @torch.no_grad()
    def score(self, model: nn.Module, task: int) -> float:
        x, y = self.inputs[task][~self.train], self.labels[~self.train]
        return percent(model(x).argmax(1) == y)

    def memory(self, model: nn.Module, task: int, of: str, seed: int) -> risegrad.Memory:
        chosen: Any = (lambda m, b: m(b[0])) if of == "outputs" else of
        return risegrad.remember(model, self.batches(task, seed + 77), of=chosen, seed=seed)


class Encoder(nn.Module):
    """Mean-pooled sentence vectors of length 1."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def forward(self, **tokens: Tensor) -> Tensor:
        hidden = self.base(**tokens).last_hidden_state
        mask = tokens["attention_mask"][..., None].to(hidden)
        return normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


class Intents:
    """banking77 by MiniLM with LoRA: the nearest embedding of the task's label names."""

    name, epochs, base_rate, tasks = "banking77, MiniLM with LoRA r=8", 2, 1e-3, 3
    per_label, test, temperature = 12, 132, 0.05
    remembered = 66

    def __init__(self, folder: str, data: str) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.folder = folder
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        base = Encoder(AutoModel.from_pretrained(folder)).eval()
        self.names: list[Tensor] = []
        self.trained: list[Any] = []
        self.tested: list[Any] = []
        for task in range(self.tasks):
            place = Path(data) / f"banking-{task + 1}"
            labels = json.loads((place / "labels.json").read_text())
            with torch.no_grad():
                self.names.append(base(**self.tokens(labels)))
            train, test = (self.examples(place / f"{part}.json.gz", labels)
                           for part in ("train", "test"))  # fmt: skip
            few = [[e for e in train if e[1] == k][: self.per_label] for k in range(len(labels))]
            self.trained.append([example for part in few for example in part])
            every = max(1, len(test) // self.test)
            self.tested.append(test[::every][: self.test])

    def examples(self, path: Path, labels: list[str]) -> list[tuple[str, int]]:
        with gzip.open(path) as file:
            return [(e["sentence"], labels.index(e["label"])) for e in json.load(file)]

    def tokens(self, texts: list[str]) -> dict[str, Tensor]:
        made = self.tokenizer(
            texts, padding=True, truncation=True, max_length=48, return_tensors="pt"
        )
        return dict(made)

    def model(self, seed: int) -> nn.Module:
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModel

        lora = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "value"])
        return Encoder(get_peft_model(AutoModel.from_pretrained(self.folder), lora)).eval()

    def batch(self, examples: list[tuple[str, int]]) -> Batch:
        return self.tokens([e[0] for e in examples]), torch.tensor([e[1] for e in examples])

    def batches(self, task: int, seed: int) -> list[Batch]:
        own = self.trained[task]
        return [self.batch([own[i] for i in part]) for part in shuffled(len(own), 16, seed)]

    def logits(self, model: nn.Module, batch: Batch, task: int) -> Tensor:
        found: Tensor = model(**batch[0]) @ self.names[task].T / self.temperature
        return found

    def loss(self, model: nn.Module, batch: Batch, task: int) -> Tensor:
        return cross_entropy(self.logits(model, batch, task), batch[1])

    @torch.no_grad()
    def score(self, model: nn.Module, task: int) -> float:
        own = self.tested[task]
        right = []
        for start in range(0, len(own), 64):
            batch = self.batch(own[start : start + 64])
            right.append(self.logits(model, batch, task).argmax(1) == batch[1])
        return percent(torch.cat(right))

    def memory(self, model: nn.Module, task: int, of: str, seed: int) -> risegrad.Memory:
        batches = self.batches(task, seed + 77)
        return risegrad.remember(
            model, batches, of=of, examples=self.remembered, seed=seed,
            predict=None if of == "features" else lambda m, b: self.logits(m, b, task),
        )  # fmt: skip


class Classifier(nn.Module):
    def __init__(self, body: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, classes, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(normalize(self.body(images), dim=-1) * 10)
        return found


class Images:
    """CIFAR-100 in small by a ViT-S with LoRA on qkv; the loss is within the task's ten classes."""

    name, epochs, base_rate, tasks = "CIFAR-100, ViT-S with LoRA r=8", 2, 1e-3, 3
    classes, per_class, test, size = 10, 40, 15, 42

    def __init__(self, file: str, data: str) -> None:
        self.file = file
        with np.load(data) as arrays:
            self.arrays = {key: arrays[key] for key in arrays.files}
        order = np.random.RandomState(1993).permutation(100)
        self.order = order[: self.classes * self.tasks].reshape(self.tasks, self.classes)
        self.parts = {
            part: [self.take(part, t, count) for t in range(self.tasks)]
            for part, count in (("train", self.per_class), ("test", self.test))
        }

    def take(self, part: str, task: int, count: int) -> tuple[Tensor, Tensor]:
        images, labels = [], []
        for place, label in enumerate(self.order[task]):
            rows = np.flatnonzero(self.arrays[f"{part}_labels"] == label)[:count]
            images.append(torch.as_tensor(self.arrays[f"{part}_images"][rows]))
            labels += [task * self.classes + place] * len(rows)
        pixels = torch.cat(images).permute(0, 3, 1, 2).float() / 255
        mean, std = (torch.tensor(v).view(3, 1, 1)
                     for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))  # fmt: skip
        pixels = nn.functional.interpolate(pixels, size=self.size, mode="bicubic")
        return (pixels - mean) / std, torch.tensor(labels)

    def model(self, seed: int) -> nn.Module:
        import timm
        from peft import LoraConfig, get_peft_model
        from safetensors.torch import load_file
        from timm.layers.pos_embed import resample_abs_pos_embed

        body: Any = timm.create_model(
            "vit_small_patch14_dinov2.lvd142m", pretrained=False, img_size=self.size, num_classes=0
        )
        weights = load_file(self.file)
        side = self.size // 14
        weights["pos_embed"] = resample_abs_pos_embed(weights["pos_embed"], [side, side])
        body.load_state_dict(weights)
        lora = LoraConfig(r=8, lora_alpha=16, target_modules=["qkv"])
        return Classifier(get_peft_model(body, lora), body.num_features, self.order.size).eval()

    def batches(self, task: int, seed: int) -> list[Batch]:
        x, y = self.parts["train"][task]
        return [(x[chosen], y[chosen]) for chosen in shuffled(len(y), 16, seed)]

    def logits(self, model: nn.Module, batch: Batch, task: int) -> Tensor:
        start = task * self.classes
        found: Tensor = model(batch[0])[:, start : start + self.classes]
        return found

    def loss(self, model: nn.Module, batch: Batch, task: int) -> Tensor:
        return cross_entropy(self.logits(model, batch, task), batch[1] - task * self.classes)

    @torch.no_grad()
    def score(self, model: nn.Module, task: int) -> float:
        x, y = self.parts["test"][task]
        found = self.logits(model, (x, y), task).argmax(1) + task * self.classes
        return percent(found == y)

    def memory(self, model: nn.Module, task: int, of: str, seed: int) -> risegrad.Memory:
        batches = self.batches(task, seed + 77)
        # The rows of a head belong to one task each, so a memory has nothing to say of it.
        return risegrad.remember(
            model, batches, of=of, seed=seed, exempt=["head"],
            predict=None if of == "features" else lambda m, b: self.logits(m, b, task),
        )  # fmt: skip


def methods(
    plain: tuple[float, ...], shaped: tuple[float, ...], kinds: tuple[str, ...]
) -> list[Method]:
    return [Method("nothing", plain), *(Method(of, shaped) for of in kinds)]


def chosen(words: list[str]) -> tuple[str, Problem, list[Method]]:
    kinds: tuple[str, ...] = ("predictions", "features")
    match words:
        case ["digits"]:
            kinds = (*kinds, "outputs")
            rates = (3e-4, 1e-3, 3e-3)
            return "digits", TurnedDigits(), methods((1e-4, 3e-4, 1e-3), rates, kinds)
        case ["minilm", folder, data]:
            return "minilm", Intents(folder, data), methods((5e-4, 2e-3), (1e-3, 4e-3), kinds)
        case ["vit", file, data]:
            return "vit", Images(file, data), methods((3e-4, 1e-3), (1e-3, 3e-3), kinds)
    raise SystemExit(__doc__)


def main(words: list[str]) -> None:
    name, problem, ways = chosen(words)
    about = {"problem": problem.name, "tasks": problem.tasks, "epochs": problem.epochs}
    outcomes: list[Outcome] = []
    for seed in SEEDS:
        outcomes += trials(problem, ways, seed)
        compared = at_equal_learning(outcomes)
        # After every seed: a run that is stopped leaves what it found.
        keep(RESULTS, name, {"equal learning": compared, "runs": as_rows(outcomes)}, about)
    print(json.dumps(compared, indent=1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:])
