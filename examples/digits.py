"""Learn new digits without losing the old ones: RISE, plain SGD and the controls side by side.

A small network learns the digits 0-4 of scikit-learn's images. Then it learns 5-9 with plain SGD
(FO), with RISE's mean alone (scaled FO), with RISE, and with Gaussian noise of RISE's covariance,
each over a sweep of learning rates. The table shows what was learned against what was lost: a rule
is better only where it forgets less at the same accuracy on the new digits.

    python examples/digits.py [--seeds 3] [--steps 150]
"""

import argparse
import copy
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import risegrad
from risegrad.core.shapers import Shaper

RULES: dict[str, type[Shaper] | None] = {
    "FO (plain SGD)": None,
    "scaled FO": risegrad.ScaledFO,
    "covariance noise": risegrad.CovarianceNoise,
    "RISE": risegrad.Rise,
}
# Norm matching leaves 3 % of the mean in the largest tensor here, so the rules need other rates.
LEARNING_RATES: dict[str, tuple[float, ...]] = {
    "FO (plain SGD)": (0.01, 0.03, 0.1, 0.3),
    "scaled FO": (0.3, 1.0, 3.0, 10.0),
    "covariance noise": (0.03, 0.1, 0.3, 1.0),
    "RISE": (0.03, 0.1, 0.3, 1.0),
}
Q = 4


@dataclass(frozen=True)
class Split:
    images: Tensor
    labels: Tensor

    def of(self, classes: range) -> "Split":
        chosen = torch.isin(self.labels, torch.tensor(classes))
        return Split(self.images[chosen], self.labels[chosen])

    def batches(self, steps: int, seed: int, size: int = 48) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            rows = torch.randint(len(self.labels), (size,), generator=generator)
            yield self.images[rows], self.labels[rows]


@dataclass(frozen=True)
class Outcome:
    rule: str
    learning_rate: float
    seed: int
    forgotten: float
    """Points of accuracy lost on the digits 0-4."""
    learned: float
    """Accuracy on the digits 5-9, in percent."""


def load() -> tuple[Split, Split]:
    digits = load_digits()
    parts = train_test_split(
        digits.data / 16, digits.target, test_size=0.3, random_state=0, stratify=digits.target
    )
    train_x, test_x, train_y, test_y = (torch.as_tensor(part) for part in parts)
    return Split(train_x.float(), train_y), Split(test_x.float(), test_y)


def train(
    model: nn.Module, data: Split, optimizer: torch.optim.Optimizer, steps: int, seed: int
) -> None:
    for images, labels in data.batches(steps, seed):
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: Split) -> float:
    hits: Tensor = model(data.images).argmax(1) == data.labels
    return 100 * hits.double().mean().item()


def base_model(train_data: Split, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, train_data.of(range(5)), optimizer, steps=200, seed=seed)
    return model


def adapt(
    base: nn.Module, rule: str, rate: float, seed: int, steps: int, data: tuple[Split, Split]
) -> Outcome:
    train_data, test_data = data
    model = copy.deepcopy(base)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    shaper = RULES[rule]
    if shaper is not None:
        risegrad.attach(optimizer, shaper(q=Q, seed=seed), params=model.named_parameters())
    train(model, train_data.of(range(5, 10)), optimizer, steps, seed)
    old, new = test_data.of(range(5)), test_data.of(range(5, 10))
    lost = accuracy(base, old) - accuracy(model, old)
    return Outcome(rule, rate, seed, forgotten=lost, learned=accuracy(model, new))


def print_table(outcomes: list[Outcome]) -> None:
    print(f"{'rule':<18} {'rate':>6}   {'forgotten (points)':>19}   {'learned (%)':>15}")
    for rule in RULES:
        for rate in LEARNING_RATES[rule]:
            runs = [o for o in outcomes if (o.rule, o.learning_rate) == (rule, rate)]
            lost, learned = [o.forgotten for o in runs], [o.learned for o in runs]
            print(f"{rule:<18} {rate:>6g}   {spread(lost):>19}   {spread(learned):>15}")
        print()


def spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} ± {deviation:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=3, help="repetitions (default 3)")
    parser.add_argument("--steps", type=int, default=150, help="steps on the new digits")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the network is tiny: threads would only wait for each other
    data = load()
    outcomes: list[Outcome] = []
    for seed in range(options.seeds):
        base = base_model(data[0], seed)
        assert accuracy(base, data[1].of(range(5))) > 90, "the base session must be learned"
        for rule, rates in LEARNING_RATES.items():
            outcomes += [adapt(base, rule, rate, seed, options.steps, data) for rate in rates]
    print_table(outcomes)
    assert max(o.learned for o in outcomes if o.rule == "RISE") > 50, "RISE must learn something"


if __name__ == "__main__":
    main()
