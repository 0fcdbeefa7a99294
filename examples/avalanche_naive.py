"""RISE and ``keep`` in Avalanche: a plugin in its Naive strategy, on two experiences of digits."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import risegrad

try:
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
    from avalanche.training import Naive
    from avalanche.training.plugins import EvaluationPlugin

    from risegrad.integrations.avalanche import KeepPlugin, RisePlugin
except ImportError as error:
    sys.exit(f"not installed: {error}")

torch.set_num_threads(1)
digits = load_digits()
images = torch.as_tensor(digits.data / 16).float()
labels = torch.as_tensor(digits.target).long()


def experience(classes: range) -> object:
    mine = torch.isin(labels, torch.tensor(classes))
    targets = DataAttribute(labels[mine].tolist(), "targets")
    tasks = DataAttribute([0] * len(labels[mine]), "targets_task_labels", use_in_getitem=True)
    pairs = TensorDataset(images[mine], labels[mine])
    return AvalancheDataset(pairs, data_attributes=[targets, tasks])


def accuracy(model: nn.Module, classes: range) -> float:
    mine = torch.isin(labels, torch.tensor(classes))
    hits: Tensor = model(images[mine]).argmax(1) == labels[mine]
    return 100 * hits.double().mean().item()


old, new = range(5), range(5, 10)
benchmark = benchmark_from_datasets(train=[experience(old), experience(new)])
plugins = {
    "plain": None,
    "RISE": RisePlugin(risegrad.Rise(keep=0.5)),
    "keep": KeepPlugin(),
}
print(f"{'':<10} {'kept (0-4)':>12} {'learned (5-9)':>14}")
for name, plugin in plugins.items():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=48,
        train_epochs=5,
        plugins=[] if plugin is None else [plugin],
        evaluator=EvaluationPlugin(),
    )
    for part in benchmark.train_stream:
        strategy.train(part)
    print(f"{name:<10} {accuracy(model, old):>11.1f}% {accuracy(model, new):>13.1f}%")
    assert accuracy(model, new) > 60, "it must learn the new digits"
