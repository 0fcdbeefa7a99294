"""Shapes of a model's trained parameters, without weights and without data.

A model is a timm name, a transformers folder or name, or a file of weights (safetensors, or a torch
state dict). Models are made on the ``meta`` device, which holds shapes and no numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from risegrad.common.optional_imports import need
from risegrad.core.blocks import listing, matches
from risegrad.curvature.memory.covered_layers import chosen_layers
from risegrad.foresight.calibration import (
    LayerShape,
    MemoryEstimate,
    full_estimate,
    lora_estimate,
)

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
        settings = dict(_setting(part) for part in text.split(","))
        unknown = sorted(set(settings) - {"r", "targets"})
        if unknown or "r" not in settings or not settings["r"].isdigit() or settings["r"] == "0":
            raise ValueError(f"lora must be r=RANK or r=RANK,targets=NAME+NAME, got {text!r}")
        targets = settings.get("targets", "")
        return Lora(int(settings["r"]), tuple(targets.split("+")) if targets else ())


def _setting(part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    return name.strip(), value.strip()


def model_shapes(model: str) -> Shapes:
    """Names and shapes of all parameters (of a file: of all floating-point tensors)."""
    path = Path(model)
    return _file_shapes(path) if path.is_file() else _of(_without_weights(model))


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


def _of(model: nn.Module) -> Shapes:
    return {name: tuple(p.shape) for name, p in model.named_parameters() if p.requires_grad}


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
