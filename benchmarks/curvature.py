"""Curvature products against bare curvlinops, and what a whole diagnosis costs in gradients."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import curvlinops  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.models import t5
from benchmarks.timing import Ratio, at_most, measured_ratio, seconds
from risegrad.core.shapers import Rise
from risegrad.curvature import Measurement
from risegrad.curvature.diagnosis.candidates import Candidates, MemoryFold
from risegrad.curvature.diagnosis.diagnose import diagnose_operator
from risegrad.curvature.objective import Objective
from risegrad.curvature.products import Kind, NetworkOperator
from risegrad.curvature.space import Space, make_space, trained_parameters
from risegrad.memory.remembering import remember

TOKENS, TARGET, BATCH = 16, 4, 8
PRECISION = 0.1


@dataclass(frozen=True)
class Subject:
    """A LoRA T5 whose second factors are not zero, as after some training."""

    rise: Rise
    objective: Objective
    space: Space
    parameters: dict[str, Tensor]

    def gradient(self) -> Tensor:
        return self.objective.gradient(self.space, self.parameters)

    def operator(self, kind: Kind, columns: int) -> NetworkOperator:
        return NetworkOperator(self.objective, self.space, self.parameters, kind, columns)


def batches(count: int) -> list[dict[str, Tensor]]:
    return [
        {
            "input_ids": torch.randint(1, 32128, (BATCH, TOKENS)),
            "labels": torch.randint(1, 32128, (BATCH, TARGET)),
        }
        for _ in range(count)
    ]


def lora_t5(rise: Rise) -> Subject:
    torch.manual_seed(0)
    model = t5(full=False).model.eval()
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.02)
    parameters = trained_parameters(model)
    space = make_space(parameters, rise)
    return Subject(rise, Objective(model, batches(1)), space, parameters)


def bare(subject: Subject, kind: Kind) -> Any:
    """The same matrix as curvlinops makes it; fused attention has no forward derivative."""
    made = {"hessian": curvlinops.HessianLinearOperator, "ggn": curvlinops.GGNLinearOperator}[kind]
    return made(
        subject.objective.predictor,
        subject.objective.loss,
        [subject.parameters[name] for name in subject.space.names],
        subject.objective.data(),
        check_deterministic=False,
        num_data=BATCH,
        batch_size_fn=lambda item: item["size"],
    )


def product_ratio(subject: Subject, kind: Kind) -> float:
    ours, theirs = subject.operator(kind, 1), bare(subject, kind)
    v = torch.randn(subject.space.d, 1)

    def plain() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            theirs @ v

    return measured_ratio(lambda: ours @ v, plain, rounds=5)


def run() -> Iterator[Ratio]:
    subject = lora_t5(Rise(q=4))
    size = f"LoRA T5 of flan-T5-small's size, {TOKENS}+{TARGET} tokens, batch {BATCH}"
    kinds: tuple[Kind, ...] = ("ggn", "hessian")
    for kind in kinds:
        name = f"a {kind} product over bare curvlinops, {size}"
        yield at_most(name, product_ratio(subject, kind), 1.2)
    yield from diagnosis_cost(subject, "every tensor", size)


def all_rules(subject: Subject) -> Candidates:
    """Informed steps at four dampings, by a memory of other examples, beside RISE's controls."""
    model = subject.objective.model
    memory = remember(model, batches(2), examples=None)
    return Candidates(subject.rise, memory, (MemoryFold(memory),), Measurement().dampings, model)


def diagnosis_cost(subject: Subject, what: str, size: str) -> tuple[Ratio, Ratio]:
    """Time of a diagnosis of all blocks and rules over that of one gradient; products per rule."""
    new = Objective(subject.objective.model, batches(1), what="incoming")
    g = new.gradient(subject.space, subject.parameters)
    h = subject.gradient()
    around = [seconds(subject.gradient) for _ in range(5)]
    operator, how = subject.operator("ggn", 4), Measurement()
    found: list[Any] = []

    def diagnosed() -> None:
        chosen = all_rules(subject)
        found.append(diagnose_operator(operator, g, h, measurement=how, candidates=chosen))

    spent = seconds(diagnosed)
    around += [seconds(subject.gradient) for _ in range(5)]
    one = statistics.median(around)  # before and after: the machine may be busier then
    totals = found[0].totals
    error = max(totals.rise.relative_error, totals.rise_std.relative_error)
    detail = f"{found[0].products} products, {len(found[0].blocks)} blocks, error {error:.3f}"
    name = f"gradients that a diagnosis of {what} costs, {size}, errors {PRECISION:.0%}"
    extra = max(rule.products for rule in found[0].rules)
    ratio = at_most(name, spent / one, 300, detail)
    # A cheap diagnosis that missed its precision would not be one.
    met = error <= PRECISION
    cost = ratio if met else Ratio(name, ratio.value, ratio.target, False, detail)
    return cost, at_most(f"products for each extra rule of a diagnosis, {size}", extra, 4)
