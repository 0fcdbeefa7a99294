"""Shapes of a model's trained parameters, without weights and without data.

A model is a timm name, a transformers folder or name, or a file of weights (safetensors, or a torch
state dict). Models are made on the ``meta`` device, which holds shapes and no numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.common.checks import check_positive_int, check_probability
from risegrad.common.imports import need
from risegrad.common.text_columns import text_columns
from risegrad.core.blocks import exempted, listing, make_layout, matches, resolve_blocks
from risegrad.core.shapers import Shaper, q_of_blocks
from risegrad.memory.layers import chosen_layers, sizes_of
from risegrad.memory.memory import size
from risegrad.memory.remembering import NUMBER, factor_bytes
from risegrad.theory.calibration import block_size_for, q_for


@dataclass(frozen=True)
class ChoiceRow:
    """A block; the pieces of a chunked parameter share a row."""

    name: str
    d: int
    q: int
    count: int
    tau: float
    mean_factor: float


@dataclass(frozen=True)
class CalibrationTable:
    """All blocks of a model, and what a wanted mean factor would take."""

    model: str
    parameters: int
    rows: tuple[ChoiceRow, ...]
    wanted: float
    advice: str

    def __str__(self) -> str:
        head = ("block", "dimension", "q", "tau", "mean factor", "rate")
        cells = [
            (_label(name, row, times), f"{row.d:,}", str(row.q), f"{row.tau:.4f}",
             f"{row.mean_factor:.4f}", f"x {1 / row.mean_factor:.3g}")
            for (name, row), times in identical(self.rows).items()
        ]  # fmt: skip
        blocks = sum(row.count for row in self.rows)
        title = f"{self.model}: {blocks:,} blocks, {self.parameters:,} parameters"
        return "\n".join([title, *text_columns([head, *cells]), self.advice])


def identical(rows: tuple[ChoiceRow, ...]) -> dict[tuple[str, ChoiceRow], int]:
    """Rows that differ in the numbers within their names only, such as those of a model's layers:
    one of each kind with the name that all share, and how many there are.

    >>> row = ChoiceRow("layers.0.q", 64, 4, 1, 0.93, 0.24)
    >>> list(identical((row, replace(row, name="layers.1.q"))).values())
    [2]
    """
    found: dict[tuple[str, ChoiceRow], list[ChoiceRow]] = {}
    for row in rows:
        name = re.sub(r"(?<![^.])\d+(?![^.])", "*", row.name)
        found.setdefault((name, replace(row, name="")), []).append(row)
    return {
        (name if len(alike) > 1 else alike[0].name, alike[0]): len(alike)
        for (name, _), alike in found.items()
    }


def _label(name: str, row: ChoiceRow, times: int) -> str:
    notes = [f"{times:,} of them"] if times > 1 else []
    if row.count > 1:
        notes.append(f"{row.count:,} chunks{' each' if times > 1 else ''}")
    return f"{name} ({', '.join(notes)})" if notes else name


def calibration_table(
    model: str, lora: Lora | None, shaper: Shaper, wanted: float
) -> CalibrationTable:
    """The table for a model of which only the shapes are read."""
    check_probability("mean_factor", wanted)
    if shaper.blocks == "group":
        raise ValueError("blocks 'group' needs an optimizer's groups; choose another kind here")
    shapes = model_shapes(model)
    if lora is not None:
        shapes = lora_shapes(shapes, lora, "" if lora.targets else model_kind(model))
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    for name in exempted(sizes, shaper.exempt):
        del sizes[name]
    blocks = resolve_blocks(shaper.blocks, dict.fromkeys(sizes, 0))
    layout = make_layout(blocks, q_of_blocks(shaper, blocks, sizes), sizes)
    rows = tuple(ChoiceRow(r.name, r.d, r.q, r.count, r.tau, r.mean_factor) for r in layout.rows)
    return CalibrationTable(model, sum(sizes.values()), rows, wanted, _advice(rows, wanted))


def _advice(rows: tuple[ChoiceRow, ...], wanted: float) -> str:
    typical, q = int(median(row.d for row in rows)), rows[0].q
    factors = [row.mean_factor for row in rows]
    return (
        f"mean factor {min(factors):.4f} to {max(factors):.4f} (median {median(factors):.4f}); "
        f"{wanted:g} would need q={q_for(wanted, typical):,} in a block of {typical:,} (the "
        f"median), or blocks of at most {block_size_for(wanted, q):,} with q={q}; "
        f"Rise(keep={wanted:g}) chooses both. rate: what to multiply plain training's rate by for "
        "the same progress of first order (of SGD, or on the update; in front of Adam about that)"
    )


RANKS = (8, 16, 64)
TOKENS = 2048
"""Tokens (of images: patches) in a step, if nothing else is said: 8 texts of 256."""


@dataclass(frozen=True)
class LayerShape:
    """A layer as a memory sees it: its kind, and its weight's shape as it is stored."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs of the map."""
        return sizes_of(self.kind, self.shape)

    def bytes(self, rank: int) -> int:
        """What its two factors take; tokens of an embedding and norms are held as diagonals."""
        inputs, outputs = self.sizes
        if self.kind == "norm":
            return NUMBER * 2 * inputs
        first = NUMBER * inputs if self.kind == "embedding" else factor_bytes(inputs, rank)
        return first + factor_bytes(outputs, rank)

    def own(self, tokens: int, trained: bool) -> int:
        """Multiplications forward and backward; a frozen weight has no gradient of its own."""
        inputs, outputs = self.sizes
        if self.kind in ("embedding", "norm"):
            return tokens * outputs
        return (3 if trained else 2) * tokens * inputs * outputs

    def filter(self, rank: int) -> int:
        """Multiplications that filter the step of the whole weight, from both sides."""
        inputs, outputs = self.sizes
        if self.kind == "norm":
            return inputs
        right = 1 if self.kind == "embedding" else _across(inputs, rank)
        return inputs * outputs * (right + _across(outputs, rank))

    def lora_filter(self, rank: int, r: int) -> int:
        """The same for LoRA's ``A`` and ``B``, with the ``r x r`` sides that each step makes."""
        inputs, outputs = self.sizes
        wide = r * (inputs * _across(inputs, rank) + outputs * _across(outputs, rank))
        # Once to filter and once for A S A' and B'DB, which are then applied: 2 r^2 (in + out).
        return 2 * wide + 2 * r * r * (inputs + outputs)


def _across(dim: int, rank: int) -> int:
    """Multiplications per number to apply a factor: into its eigenvectors and back, or in full."""
    return dim if rank >= dim else 2 * rank


@dataclass(frozen=True)
class EstimatedGroup:
    """Layers that differ in their number alone; by rank, as ``ranks`` of the estimate has them."""

    name: str
    layers: int
    bytes: tuple[int, ...]
    time: tuple[float, ...]
    """Multiplications that are added to each step, over the layers' own."""


@dataclass(frozen=True)
class MemoryEstimate:
    """A memory of a model in one way of training."""

    way: str
    tokens: int
    ranks: tuple[int, ...]
    groups: tuple[EstimatedGroup, ...]
    total: EstimatedGroup

    def __str__(self) -> str:
        head = [f"memory of {self.way}", "layers"]
        head += [f"rank {rank}" for rank in self.ranks] + [f"time {rank}" for rank in self.ranks]
        rows = [[g.name, str(g.layers), *map(size, g.bytes), *(f"{share:.2%}" for share in g.time)]
                for g in (*self.groups, self.total)]  # fmt: skip
        note = f"time: multiplications added to a step of {self.tokens:,} tokens over the layers'"
        return "\n".join([*text_columns([head, *rows]), f"{note} own"])


def full_estimate(
    layers: Iterable[LayerShape], tokens: int = TOKENS, ranks: Sequence[int] = RANKS
) -> MemoryEstimate:
    """For a training of all weights."""
    return _estimate("full fine-tuning", list(layers), None, tokens, ranks)


def lora_estimate(
    layers: Iterable[LayerShape], r: int, targets: Sequence[str], tokens: int = TOKENS,
    ranks: Sequence[int] = RANKS,
) -> MemoryEstimate:  # fmt: skip
    """For a LoRA of rank ``r`` on the layers whose names end with one of ``targets``."""
    patterns = [pattern for target in targets for pattern in (target, f"*.{target}")]
    linear = (layer for layer in layers if layer.kind in ("linear", "conv1d"))
    adapted = [layer for layer in linear if matches(layer.name, patterns)]
    if not adapted:
        raise ValueError(f"targets: no layer is called {' or '.join(targets)}")
    return _estimate(f"LoRA r={r} on {', '.join(targets)}", adapted, r, tokens, ranks)


def _estimate(
    way: str, layers: list[LayerShape], r: int | None, tokens: int, ranks: Sequence[int]
) -> MemoryEstimate:
    check_positive_int("tokens", tokens)
    grouped: dict[str, list[LayerShape]] = {}
    for layer in layers:
        grouped.setdefault(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", layer.name), []).append(layer)
    groups = [_group(name, own, r, tokens, ranks) for name, own in grouped.items()]
    total = _group("in all", layers, r, tokens, ranks)
    return MemoryEstimate(way, tokens, tuple(ranks), tuple(groups), total)


def _group(
    name: str, layers: list[LayerShape], r: int | None, tokens: int, ranks: Sequence[int]
) -> EstimatedGroup:
    own = sum(layer.own(tokens, r is None) for layer in layers)
    added = [
        sum(layer.filter(rank) if r is None else layer.lora_filter(rank, r) for layer in layers)
        for rank in ranks
    ]
    taken = (sum(layer.bytes(rank) for layer in layers) for rank in ranks)
    return EstimatedGroup(name, len(layers), tuple(taken), tuple(count / own for count in added))


Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Lora:
    """``r=8,targets=q+v``: rank, and the ends of the names of the adapted modules."""

    r: int
    targets: tuple[str, ...] = ()

    @staticmethod
    def parse(text: str) -> Lora:
        """Read the argument of ``--lora``.

        >>> Lora.parse("r=8,targets=q+v")
        Lora(r=8, targets=('q', 'v'))
        """
        parts = (part.partition("=") for part in text.split(","))
        settings = {name.strip(): value.strip() for name, _, value in parts}
        unknown = sorted(set(settings) - {"r", "targets"})
        if unknown or "r" not in settings or not settings["r"].isdigit() or settings["r"] == "0":
            raise ValueError(f"lora must be r=RANK or r=RANK,targets=NAME+NAME, got {text!r}")
        targets = settings.get("targets", "")
        return Lora(int(settings["r"]), tuple(targets.split("+")) if targets else ())


def model_shapes(model: str) -> Shapes:
    """Names and shapes of all parameters (of a file: of all floating-point tensors)."""
    path = Path(model)
    if path.is_file():
        return _file_shapes(path)
    made = _without_weights(model)
    return {name: tuple(p.shape) for name, p in made.named_parameters() if p.requires_grad}


def memory_layers(model: str) -> list[LayerShape]:
    """The layers that a memory of the whole model would hold.

    A file has no modules: kinds are then read off names and shapes.
    """
    path = Path(model)
    if path.is_file():
        named = _file_shapes(path).items()
        found = [_guessed(name, shape) for name, shape in named if name.endswith("weight")]
        return [layer for layer in found if layer is not None]
    kept, _ = chosen_layers(_without_weights(model), None, ())
    return [LayerShape(name, layer.kind, layer.shape) for name, layer in kept.items()]


def memory_estimates(model: str, lora: Lora | None, tokens: int) -> list[MemoryEstimate]:
    """What a memory takes in full fine-tuning and with LoRA: the given one, or peft's with r=8.

    A model for which peft has no targets has the first alone, unless a LoRA was asked for.
    """
    layers = memory_layers(model)
    chosen, found = lora or Lora(8), [full_estimate(layers, tokens)]
    try:
        targets = chosen.targets or default_targets(model_kind(model))
        found.append(lora_estimate(layers, chosen.r, targets, tokens))
    except ValueError:
        if lora is not None:
            raise
    return found


def _guessed(name: str, shape: tuple[int, ...]) -> LayerShape | None:
    layer = name.removesuffix(".weight")
    words = layer.lower()
    if len(shape) == 1:
        return LayerShape(layer, "norm", shape) if "norm" in words or "ln" in words else None
    if len(shape) == 2:
        tokens = re.search(r"embed|wte|wpe|shared", words) and "proj" not in words
        return LayerShape(layer, "embedding" if tokens else "linear", shape)
    return LayerShape(layer, "conv2d", shape) if len(shape) == 4 else None


def lora_shapes(shapes: Mapping[str, tuple[int, ...]], lora: Lora, kind: str = "") -> Shapes:
    """What LoRA trains instead: ``A`` (r, in) and ``B`` (out, r) of every adapted matrix.

    Named as peft names them. Without targets, those that peft would choose for the model ``kind``.
    """
    targets = lora.targets or default_targets(kind)
    patterns = [pattern for t in targets for pattern in (f"{t}.weight", f"*.{t}.weight")]
    found: Shapes = {}
    for name, shape in shapes.items():
        if len(shape) == 2 and matches(name, patterns):
            module = f"base_model.model.{name.removesuffix('.weight')}"
            found[f"{module}.lora_A.default.weight"] = (lora.r, shape[1])
            found[f"{module}.lora_B.default.weight"] = (shape[0], lora.r)
    if not found:
        names = listing([name for name, shape in shapes.items() if len(shape) == 2])
        raise ValueError(f"lora: no matrix is called {' or '.join(targets)}; there are {names}")
    return found


def default_targets(kind: str) -> Sequence[str]:
    """peft's choice for a transformers model type; timm's vision transformers have ``qkv``."""
    if kind in ("", "timm"):
        return ("qkv",)
    constants = need("peft.utils.constants", "language")
    known = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    if kind not in known:
        raise ValueError(f"lora: name the targets (r=8,targets=q+v); peft has none for {kind!r}")
    found: Sequence[str] = tuple(known[kind])
    return found


def model_kind(model: str) -> str:
    """transformers' model type, or ``timm``."""
    if Path(model).is_file():
        return ""
    if Path(model).is_dir() or "/" in model:
        config = need("transformers", "language").AutoConfig.from_pretrained(model)
        return str(config.model_type)
    return "timm"


def _without_weights(model: str) -> nn.Module:
    transformers = Path(model).is_dir() or "/" in model
    return _transformers_model(model) if transformers else _timm_model(model)


def _timm_model(name: str) -> nn.Module:
    timm = need("timm", "vision")
    if not timm.is_model(name):
        close = timm.list_models(f"*{name.split('_')[0]}*")[:4]
        raise ValueError(
            "model must be a timm name, a transformers folder or name, or a file of weights; "
            f"got {name!r} (timm has {', '.join(close) or 'none like it'})"
        )
    with torch.device("meta"):
        model: nn.Module = timm.create_model(name, pretrained=False)
    return model


def _transformers_model(name: str) -> nn.Module:
    transformers = need("transformers", "language")
    try:
        config = transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise ValueError(f"model {name!r} is not a transformers model: {error}") from error
    wanted = (config.architectures or [None])[0]
    kind: Any = getattr(transformers, wanted or "", None) or transformers.AutoModel
    with torch.device("meta"):
        make = getattr(kind, "_from_config", None) or kind.from_config
        model: nn.Module = make(config)
    return model


def _file_shapes(path: Path) -> Shapes:
    if path.suffix == ".safetensors":
        opened = need("safetensors", "vision").safe_open(str(path), framework="pt")
        with opened as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {
                name: tuple(part.get_shape())
                for name, part in slices.items()
                if part.get_dtype().startswith(("F", "BF"))
            }
    try:
        content = torch.load(path, map_location="meta", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path.name} is neither safetensors nor a torch state dict: {error}"
        ) from error
    tensors = {name: value for name, value in content.items() if isinstance(value, Tensor)}
    return {name: tuple(t.shape) for name, t in tensors.items() if t.is_floating_point()}
