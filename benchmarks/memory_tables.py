"""Tables about memories: how they grow with the model, and what the studies found."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from risegrad.memory.memory import size
from riselab.foresight.calibration import LayerShape, MemoryEstimate, full_estimate, lora_estimate

STUDIES = Path(__file__).with_name("studies")
DEVICES = (1, 8, 64)
FULL, FROZEN = 16, 2
"""Bytes per parameter on the devices: bfloat16 weights and gradients with float32 weights and
AdamW's two moments; frozen bfloat16 weights."""


@dataclass(frozen=True)
class Family:
    """A decoder: blocks of attention (with fewer keys than queries, if so) and a gated MLP."""

    name: str
    blocks: int
    width: int
    keys: int
    inner: int
    vocabulary: int
    gated: bool = True
    tied: bool = False

    def layers(self) -> Iterator[LayerShape]:
        """Every map that a memory of full fine-tuning holds; a tied embedding is not covered."""
        for n in range(self.blocks):
            for name, (out, into) in self._maps().items():
                yield LayerShape(f"layers.{n}.{name}", "linear", (out, into))
            for name in ("norm1", "norm2"):
                yield LayerShape(f"layers.{n}.{name}", "norm", (self.width,))
        yield LayerShape("norm", "norm", (self.width,))
        if not self.tied:
            yield LayerShape("embed", "embedding", (self.vocabulary, self.width))
            yield LayerShape("head", "linear", (self.vocabulary, self.width))

    def _maps(self) -> dict[str, tuple[int, int]]:
        w = self.width
        maps = {"q": (w, w), "k": (self.keys, w), "v": (self.keys, w), "o": (w, w)}
        gate = {"gate": (self.inner, w)} if self.gated else {}
        return maps | gate | {"up": (self.inner, w), "down": (w, self.inner)}

    def parameters(self) -> int:
        """Of all weights; biases and positions, under one percent, are left out."""
        inside = sum(out * into for out, into in self._maps().values()) + 2 * self.width
        return self.blocks * inside + (1 if self.tied else 2) * self.vocabulary * self.width


FAMILIES = (
    Family("GPT-2", 12, 768, 768, 3072, 50257, gated=False, tied=True),
    Family("Llama 3.2 1B", 16, 2048, 512, 8192, 128256, tied=True),
    Family("Llama 2 7B", 32, 4096, 4096, 11008, 32000),
    Family("Llama 2 70B", 80, 8192, 1024, 28672, 32000),
)


def scale_table() -> str:
    """A line per model and way of training; each device holds the whole memory."""
    shares = " | ".join(f"{count} device{'s' * (count > 1)}" for count in DEVICES)
    rows = [
        f"| model | trained | rank 8 | rank 16 | rank 64 | time | {shares} |",
        "|---|---|" + "---:|" * (4 + len(DEVICES)),
    ]
    for family in FAMILIES:
        name = f"{family.name}, {family.parameters() / 1e9:.2g} billion"
        layers = list(family.layers())
        rows.append(_scale_line(name, "all", full_estimate(layers), FULL * family.parameters()))
        lora = lora_estimate(layers, 8, ("q", "v"))
        rows.append(_scale_line(name, "LoRA r=8 on q, v", lora, FROZEN * family.parameters()))
    return "\n".join(rows)


FUSED = 28
"""Bytes per parameter in float32 that a fused AdamW moves: it reads the parameter, its gradient and
two moments, and writes all but the gradient."""
SPEED = 2e12
"""Bytes that a device moves in a second."""


def moved_table() -> str:
    """Bytes that a step moves beside those of AdamW, counted from the operations of a small one."""
    from benchmarks.memory import moved_per_parameter

    rows = [
        "| model | trained | parameters | fused AdamW | informed step | at 2 TB/s |",
        "|---|---|---:|---:|---:|---:|",
    ]
    each = {way: moved_per_parameter(whole=way == "all") for way in ("all", "LoRA r=8 on q, v")}
    for family in FAMILIES:
        pairs = [layer.sizes for layer in family.layers() if layer.name.endswith((".q", ".v"))]
        counts = (family.parameters(), sum(8 * (into + out) for into, out in pairs))
        for (way, bytes_each), count in zip(each.items(), counts, strict=True):
            adamw, ours = FUSED * count, bytes_each * count
            cells = [
                f"{family.name}, {family.parameters() / 1e9:.2g} billion",
                way,
                f"{count / 1e6:,.1f} million",
                f"{adamw / 1e9:,.3g} GB",
                f"{ours / 1e9:,.3g} GB",
                f"{1e3 * adamw / SPEED:,.2f} ms, {1e3 * ours / SPEED:,.2f} ms more",
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _scale_line(name: str, way: str, found: MemoryEstimate, model_bytes: int) -> str:
    place = found.ranks.index(16)
    taken = found.total.bytes
    shares = [f"{taken[place] / (model_bytes / count):.2%}" for count in DEVICES]
    cells = [name, way, *map(size, taken), f"{found.total.time[place]:.2%}", *shares]
    return f"| {' | '.join(cells)} |"


def memory_of_table() -> str:
    """Forgetting at equal New, by what was remembered."""
    rows = ["| stream | New | remembered | Fgt |", "|---|---:|---|---:|"]
    for part in _study("memory_of").values():
        found = part["equal learning"]
        for row in found["methods"]:
            name = row["method"].split(",")[0].replace("plain", "nothing (FO)")
            fgt = _spread(row["forgotten"], row["deviation"], 1)
            rows.append(f"| {part['problem']} | {found['new']:.1f} | {name} | {fgt} |")
    return "\n".join(rows)


def dreams_table() -> str:
    """How much the loss of kept answers rose at equal learning, by what was remembered."""
    part = _study("dreams")["t5"]
    found, seeds = part["equal learning"], len({point["seed"] for point in part["points"]})
    rows = ["| memory of | kept loss rose by (nats per answer) | seeds |", "|---|---:|---:|"]
    for row in found["methods"]:
        name = row["method"].replace("plain", "nothing (FO)")
        risen = _spread(row["kept loss risen by"], row["deviation"], 3)
        rows.append(f"| {name} | {risen} | {seeds} |")
    return "\n".join(rows)


def _spread(mean: float, deviation: float | None, digits: int) -> str:
    ends = "" if deviation is None else f" ± {deviation:.{digits}f}"
    return f"{mean:.{digits}f}{ends}"


def _study(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((STUDIES / f"{name}.json").read_text())
    return found
