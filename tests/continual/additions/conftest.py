"""A tiny network in float64 that learns classes of points, and runs on a few digits."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from riselab.continual.devices import Devices
from riselab.continual.host import ParameterGroup, Session, TrainingBudget
from riselab.continual.rules import Rule
from riselab.continual.training import Loop, SessionTraining
from riselab.continual.vision.models import Head

PER_TASK = 8


@dataclass(frozen=True)
class Points:
    inputs: torch.Tensor
    labels: torch.Tensor

    def __len__(self):
        return len(self.labels)

    def to(self, target):
        return self


class PointItems:
    """Two classes per task; remembers what was asked for."""

    at_hand = True

    def __init__(self, tasks=3, width=6):
        generator = torch.Generator().manual_seed(5)
        self.asked = []
        self.inputs = torch.randn(tasks, PER_TASK, width, dtype=torch.float64, generator=generator)

    def fetch(self, refs, epoch):
        self.asked.append(list(refs))
        if not refs:
            return Points(torch.empty(0), torch.empty(0, dtype=torch.int64))
        inputs = torch.stack([self.inputs[task, index] for task, index in refs])
        return Points(inputs, torch.tensor([2 * task + index % 2 for task, index in refs]))

    def task(self, task):
        return self.fetch([(task, index) for index in range(PER_TASK)], 0)


class Small:
    """``head(dropout(relu(layer(x))))`` and how it learns one task after another."""

    def __init__(self, dropout=0.0, seed=1):
        self.items = PointItems()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.layer = nn.Linear(6, 5).double()
        self.dropout = nn.Dropout(dropout)
        self.head = Head("linear", 5).double()
        self.module = nn.ModuleList([self.layer, self.dropout, self.head])

    def logits(self, batch):
        return self.head(self.dropout(torch.relu(self.layer(batch.inputs))))

    def loss_of(self, logits, batch, before, every):
        if every:
            return cross_entropy(logits, batch.labels)
        return cross_entropy(logits[:, before:], batch.labels - before)

    def session(self, task, *, rule="fo", head_rule="fo", q=4, on="gradient", **budget):
        before = self.head.classes
        self.head.grow(2, torch.Generator().manual_seed(task))
        self.head.double()
        budget = TrainingBudget(**{"epochs": 1, "weight_decay": 0.0, "lr": 0.1, **budget})
        groups = (
            ParameterGroup(
                "body", dict(self.layer.named_parameters()), budget, Rule(rule, q=q, on=on)
            ),
            ParameterGroup(
                "head", dict(self.head.named_parameters()), budget, Rule(head_rule, q=q)
            ),
        )
        return Session(
            task=task,
            examples=PER_TASK,
            groups=groups,
            module=self.module,
            items=self.items,
            loss=lambda batch, every: self.loss_of(self.logits(batch), batch, before, every),
            logits=self.logits,
            loss_of_logits=lambda logits, batch, every: self.loss_of(logits, batch, before, every),
            predictions=lambda batch: self.logits(batch)[:, before:],
            features=lambda batch: torch.relu(self.layer(batch.inputs)),
            seen_before=before,
            linears={"body.weight": self.layer},
        )

    def training(self, session, *additions, batch=4, devices=None, parts=1):
        loop = Loop(batch=batch, accumulate=parts)
        return SessionTraining(session, loop, devices or Devices(), additions, seed=3)

    def learn(self, task, *additions, epochs=1, batch=4, devices=None, parts=1, **settings):
        """One task from beginning to end; gives the training, with its session."""
        session = self.session(task, epochs=epochs, **settings)
        training = self.training(session, *additions, batch=batch, devices=devices, parts=parts)
        for epoch in range(epochs):
            training.epoch(epoch, lambda news: None)
        self.module.eval()
        for addition in additions:
            addition.end(training)
        return training

    def values(self):
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}


@pytest.fixture
def small():
    return Small()


@pytest.fixture
def make_small():
    return Small


@pytest.fixture
def digits():
    """Settings of a run on four classes of digits in two sessions; takes a tenth of a second."""

    def settings(host, additions=(), rule="", **changes):
        stream = {"name": "digits", "image_size": 8, "classes": 4, "base": 2, "increment": 2}
        model = {"name": "vit_tiny_patch16_224", "pretrained": False, "width": 16, "depth": 1}
        budget = {"epochs": 3, "lr": 0.1, "weight_decay": 0.0}
        plain = {
            "domain": "vision",
            "stream": stream | {"train_per_class": 8, "test_per_class": 8},
            "model": model | {"heads": 2, "patch": 4, "adapter_width": 4},
            "head": budget,
            "adapter": budget,
            "host": {"name": host},
            "rule": {"name": rule},
            "loop": {"batch": 8, "checkpoint_seconds": 0.0},
            "additions": [{"name": a} if isinstance(a, str) else a for a in additions],
        }
        return plain | changes

    return settings
