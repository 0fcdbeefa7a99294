"""python -m benchmarks.memory_ranks MODEL TEXTS [BLOCKS]: what a memory of few eigenpairs is worth.

One step of Adam on new texts, filtered by memories of several ranks and lengthened to the plain
step's progress; its damage is foretold by full factors of texts that no memory saw. Gain: the part
of what full factors save that a memory of this rank saves. ``MODEL`` is a folder of a model of
transformers (one that writes, or an encoder), ``TEXTS`` a file with a text in each line.
"""

import random
import sys
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

from risegrad import Memory, remember
from risegrad.memory.factor import Factor, Side
from risegrad.memory.memory import DAMPING, size

RANKS = (8, 12, 16, 32, 64)
KEPT, NEW, BATCH = 32, 32, 8
Step = dict[str, Tensor]


def adapted(folder: str) -> tuple[Any, Any, bool]:
    """The model with a LoRA that has moved a little, its tokenizer, and whether it writes."""
    writes = "CausalLM" in str(AutoConfig.from_pretrained(folder).architectures)
    kind: Any = AutoModelForCausalLM if writes else AutoModel
    base = kind.from_pretrained(folder, dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.01)
    return model, AutoTokenizer.from_pretrained(folder), writes


def batches(tokenizer: Any, texts: list[str], writes: bool) -> list[dict[str, Tensor]]:
    found = []
    for start in range(0, len(texts), BATCH):
        options = {"padding": True, "truncation": True, "max_length": 64, "return_tensors": "pt"}
        batch = dict(tokenizer(texts[start : start + BATCH], **options))
        if writes:
            batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        found.append(batch)
    return found


def gradients(model: Any, given: list[dict[str, Tensor]], writes: bool) -> tuple[Step, Step]:
    """The mean gradient on new texts, and the step that Adam makes of the batches."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    mean = {n: torch.zeros_like(p) for n, p in named.items()}
    square = {n: torch.zeros_like(p) for n, p in named.items()}
    generator = torch.Generator().manual_seed(0)
    for batch in given:
        out = model(**batch)
        if writes:
            loss = out.loss
        else:  # an encoder learns to tell texts apart that it sees as alike: random directions
            pooled = out.last_hidden_state.mean(1)
            loss = (pooled * torch.randn(pooled.shape, generator=generator)).sum() / len(pooled)
        found = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
        for name, g in zip(named, found, strict=True):
            if g is not None:
                mean[name] += g / len(given)
                square[name] += g.square() / len(given)
    return mean, {n: -mean[n] / (square[n].sqrt() + 1e-12) for n in named}


def damage(model: Any, memory: Memory | None, judge: Memory, g: Step, plain: Step) -> float:
    """Foretold by ``judge``, of a step that is filtered by ``memory`` at the plain progress."""
    judged = judge.bind(model).now()
    step = {name: plain[name] for name in judged}
    if memory is not None:
        for name, side in memory.bind(model).now().items():
            turned = side.filtered(step[name], DAMPING)
            step[name] = turned * (step[name].norm() / turned.norm().clamp(min=1e-30))
    reached, wanted = (sum(float((g[n] * s[n]).sum()) for n in judged) for s in (step, plain))
    factor = wanted / reached
    return sum(factor**2 * float(judged[n].quadratic(step[n])) for n in judged) / 2


def halved(_layer: str, _part: str, side: Side) -> Side:
    """Eigenvectors as numbers of two bytes would hold them."""
    if not isinstance(side, Factor) or side.rank is None:
        return side
    return Factor.of_eigenpairs(side.eigen.vectors.half().float(), *side.eigen[1:])


def with_diagonal(full: Memory, rank: int) -> Memory:
    """The rest of each factor by its diagonal instead of one number: two numbers per direction."""

    def changed(_layer: str, _part: str, side: Side) -> Side:
        low = side.truncated(rank)
        if not isinstance(side, Factor) or not isinstance(low, Factor) or low.rank is None:
            return low
        top = (low.eigen.vectors * low.eigen.values) @ low.eigen.vectors.T
        rest = (side.dense().diagonal() - top.diagonal()).clamp(min=0)
        return Factor(top + torch.diag(rest), checked=True)

    return full.changed(changed)


def main(folder: str, texts: str, blocks: int | None = None) -> None:
    model, tokenizer, writes = adapted(folder)
    lines = [line for line in Path(texts).read_text(encoding="utf-8").splitlines() if line.strip()]
    random.Random(0).shuffle(lines)
    known, unseen, new = lines[:KEPT], lines[KEPT : 2 * KEPT], lines[2 * KEPT : 2 * KEPT + NEW]
    layers = None if blocks is None else [f"*layers.{n}.*" for n in range(blocks)]
    of = "predictions" if writes else "features"
    # Full factors, of which every other memory is a part.
    asked: Any = {"of": of, "examples": KEPT, "layers": layers, "budget": 1 << 34}
    full, judge = (
        remember(model, batches(tokenizer, part, writes), **asked) for part in (known, unseen)
    )
    g, plain = gradients(model, batches(tokenizer, new, writes), writes)
    nothing = damage(model, None, judge, g, plain)
    best = damage(model, full, judge, g, plain)
    print(f"{len(full)} layers; full factors: damage {best / nothing:.3f} of a plain step's")
    for rank in RANKS:
        low = full.truncated(rank)
        for label, memory in (
            ("one number for the rest", low),
            ("half precision", low.changed(halved)),
            ("the rest by its diagonal", with_diagonal(full, rank)),
        ):
            share = damage(model, memory, judge, g, plain) / nothing
            print(
                f"rank {rank:3d}, {label:25s} damage {share:.3f}, gain "
                f"{(1 - share) / (1 - best / nothing):.3f}, {size(low.bytes)} in float32",
                flush=True,
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
