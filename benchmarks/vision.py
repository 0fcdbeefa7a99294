"""The learning loop in vision: against a minimal loop, against Avalanche, and with its cache."""

import copy
import functools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.timing import Ratio, at_least, measured_ratio
from riselab.continual.devices import Devices
from riselab.continual.host import silent
from riselab.continual.runs import make_host, perform, read_config
from riselab.continual.training import SessionTraining
from riselab.continual.vision.hosts.classifiers import AdapterClassifier
from riselab.continual.vision.models import features

Epoch = Callable[[], object]
BATCH, RATE = 48, 1e-3


@functools.cache
def digits_at_64_pixels() -> str:
    """A file of images in the size of the model: no loop has to resize any."""
    digits = load_digits()
    small = torch.as_tensor(digits.images * (255 / 16)).to(torch.uint8)
    large = small.repeat_interleave(8, 1).repeat_interleave(8, 2)
    colored = large.unsqueeze(-1).expand(-1, -1, -1, 3)
    path = Path(tempfile.mkdtemp()) / "digits.npz"
    parts = {"train": slice(0, 1437), "test": slice(1437, None)}
    arrays: dict[str, Any] = {}
    for name, part in parts.items():
        arrays |= {f"{name}_images": colored[part].numpy(), f"{name}_labels": digits.target[part]}
    np.savez(path, **arrays)
    return str(path)


def settings(host: str, **changes: Any) -> Any:
    """Digits at 64 pixels through a ViT-Ti: most of the time is the model's, as in real use."""
    plain = {
        "domain": "vision",
        "stream": {
            "source": "npz",
            "data": digits_at_64_pixels(),
            "image_size": 64,
            "increment": 10,
            "augment": "none",
            "test_view": "direct",
        },
        "model": {"name": "vit_tiny_patch16_224", "pretrained": False},
        "host": {"name": host},
        "rule": {"name": "fo"},
        "adapter": {"lr": RATE, "epochs": 1},
        "head": {"lr": RATE, "epochs": 1},
        "loop": {"batch": BATCH, "device": "cpu"},
    }
    for section, values in changes.items():
        plain[section] |= values
    return read_config(plain)


def adapter_host() -> AdapterClassifier:
    """A third of the digits, so that a round is short."""
    chosen = settings("adapter-classifier", stream={"train_per_class": 48})
    host = make_host(chosen, Devices(device="cpu"))
    assert isinstance(host, AdapterClassifier)
    return host


def our_epoch() -> Epoch:
    host = adapter_host()
    session = host.begin(0)
    training = SessionTraining(session, host.kit.loop, host.kit.devices, (), seed=0)
    return lambda: training.epoch(0, silent)


class Plain(nn.Module):
    """The same model as one module, for loops that know nothing of hosts."""

    def __init__(self, host: AdapterClassifier) -> None:
        super().__init__()
        host.begin(0)
        self.vit, self.adapters, self.head = host.kit.vit, host.adapters, host.head

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(features(self.vit, images, self.adapters))
        return scores

    def trained(self) -> list[nn.Parameter]:
        return [*self.adapters.parameters(), *self.head.parameters()]


def data(host: AdapterClassifier) -> TensorDataset:
    """All images as the model takes them: the peers need not even convert them."""
    split = host.kit.stream[0].train
    return TensorDataset(split.images(range(len(split)), train=True), split.labels)


def sgd(model: Plain) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.trained(), RATE, momentum=0.9, weight_decay=5e-4)


def minimal_epoch() -> Epoch:
    """What one would write by hand."""
    host = adapter_host()
    model = Plain(host)
    optimizer = sgd(model)
    loader = DataLoader(data(host), batch_size=BATCH, shuffle=True)

    def epoch() -> None:
        model.adapters.train()
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return epoch


def avalanche_epoch() -> Epoch:
    """One epoch of the Naive strategy without evaluation or logging."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from avalanche.benchmarks import benchmark_from_datasets
        from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
        from avalanche.training import Naive
        from avalanche.training.plugins import EvaluationPlugin

    host = adapter_host()
    model = Plain(host)
    images = data(host)
    labels = images.tensors[1].tolist()
    dataset = AvalancheDataset(
        images,
        data_attributes=[
            DataAttribute(labels, "targets"),
            DataAttribute([0] * len(labels), "targets_task_labels", use_in_getitem=True),
        ],
    )
    experience = benchmark_from_datasets(train=[dataset]).train_stream[0]
    strategy = Naive(
        model=model,
        optimizer=sgd(model),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=1,
        device="cpu",
        evaluator=EvaluationPlugin(),
    )
    return lambda: strategy.train(experience)


def whole_run(cache: str) -> Epoch:
    """Learnable Cls. over ten epochs, features included."""
    chosen = settings("learnable-classifier", head={"epochs": 10}, loop={"cache": cache})

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            perform(copy.deepcopy(chosen), Path(folder), silent)

    return run


def run() -> Iterator[Ratio]:
    ours = our_epoch()
    yield at_least(
        "images per second of the loop over a minimal loop",
        measured_ratio(minimal_epoch(), ours, rounds=5),
        0.95,
        "Adapter + Cls., ViT-Ti at 64 pixels, batch 48; no loop resizes images",
    )
    yield at_least(
        "images per second of the loop over Avalanche's Naive",
        measured_ratio(avalanche_epoch(), ours, rounds=5),
        1.0,
        "the same model and data; Avalanche without evaluation and logging",
    )
    yield at_least(
        "Learnable Cls. over ten epochs: uncached time over cached",
        measured_ratio(whole_run("never"), whole_run("auto"), rounds=2),
        5.0,
        "whole runs on digits, scoring included",
    )
