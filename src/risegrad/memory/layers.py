"""The layers of a model that a memory can hold, and what of the trained is left over.

A layer with a LoRA on it is one layer: its input and the gradient at its output belong to the whole
map, base and adapter together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn

from risegrad.core.blocks import listing, matches
from risegrad.core.coverage import WRAPPERS, plain_name
from risegrad.memory.factor import Side

PAIR = ("lora_A", "lora_B")
"""How peft calls the two matrices of a LoRA."""


class Role(NamedTuple):
    """What a parameter is to its layer: ``weight``, ``bias``, ``lora_A`` or ``lora_B``."""

    layer: str
    part: str
    adapter: str = ""


def layer_name(name: str) -> str:
    """The name of a module without what wrappers and peft added.

    >>> layer_name("base_model.model.encoder.q.base_layer")
    'encoder.q'
    >>> layer_name("base_model.model.score.modules_to_save.default")
    'score'
    """
    # Not ``plain_name``, which leaves "module" as it is: of "module.weight" only "weight" is left.
    parts = [part for part in name.split(".") if part and part not in WRAPPERS]
    if parts[:2] == ["base_model", "model"]:
        parts = parts[2:]
    if "modules_to_save" in parts:
        at = parts.index("modules_to_save")
        parts = parts[:at] + parts[at + 2 :]
    return ".".join(part for part in parts if part != "base_layer")


def role_of(name: str) -> Role:
    """The layer that a parameter belongs to and what it does there.

    >>> role_of("base_model.model.encoder.q.lora_A.default.weight")
    Role(layer='encoder.q', part='lora_A', adapter='default')
    >>> role_of("encoder.q.bias")
    Role(layer='encoder.q', part='bias', adapter='')
    """
    parts = name.split(".")
    for pair in PAIR:
        if pair in parts:
            at = parts.index(pair)
            part = pair if parts[-1] == "weight" else f"{pair}.{parts[-1]}"
            return Role(layer_name(".".join(parts[:at])), part, ".".join(parts[at + 1 : -1]))
    return Role(layer_name(".".join(parts[:-1])), parts[-1])


def named_parameters(model: nn.Module) -> dict[str, Tensor]:
    """All parameters by the names that an attachment has for them."""
    named = dict(model.named_parameters())
    plain: dict[str, Tensor] = {plain_name(name): p for name, p in named.items()}
    return plain if len(plain) == len(named) else {**named}


MAPS = ("linear", "conv1d", "conv2d", "embedding")
"""Kinds whose curvature is an input factor times an output factor; the other kind is ``norm``."""


@dataclass(frozen=True)
class Layer:
    """A module to watch: ``module`` is called, ``base`` holds the weight (LoRA: two)."""

    name: str
    kind: str
    module: nn.Module
    base: nn.Module

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight as the layer stores it."""
        base: Any = self.base
        if isinstance(base, nn.Linear):  # a quantized weight is packed into another shape
            return (int(base.out_features), int(base.in_features))
        return tuple(base.weight.shape)

    @property
    def sizes(self) -> tuple[int, int]:
        """Inputs and outputs of the map."""
        return sizes_of(self.kind, self.shape)

    @property
    def trained(self) -> bool:
        """Whether any parameter of the layer is trained."""
        return any(p.requires_grad for p in self.module.parameters())

    @property
    def adapted(self) -> bool:
        """Whether something beside the layer's own weight and bias is trained: a LoRA."""
        own = {id(p) for p in self.base._parameters.values()}
        return any(p.requires_grad and id(p) not in own for p in self.module.parameters())


def sizes_of(kind: str, shape: Sequence[int]) -> tuple[int, int]:
    """Inputs and outputs of a map whose weight is stored in this shape.

    >>> sizes_of("conv2d", (8, 3, 2, 2))
    (12, 8)
    """
    if kind == "norm":
        return shape[0], shape[0]
    if kind in ("conv1d", "embedding"):
        return shape[0], shape[1]
    inner = 1
    for size in shape[1:]:
        inner *= size
    return inner, shape[0]


def kind_of(module: nn.Module) -> str | None:
    """How a module's curvature is held; None for one that is not known."""
    weight = getattr(module, "weight", None)
    own: str | None = getattr(module, "acts_as", None)  # what a module of one's own says of itself
    if own is not None:
        return own if own in MAPS else None
    if isinstance(module, nn.Linear):
        return "linear"
    if isinstance(module, nn.Conv2d):
        return "conv2d" if module.groups == 1 else None
    if isinstance(module, nn.Embedding):
        return "embedding"
    if not isinstance(weight, Tensor):
        return None
    if type(module).__name__ == "Conv1D" and weight.ndim == 2:  # transformers' linear layer
        return "conv1d"
    held = dict(module.named_parameters(recurse=True))
    plain = set(held) <= {"weight", "bias"} and all(p.ndim == 1 for p in held.values())
    return "norm" if plain and "norm" in type(module).__name__.lower() else None


def all_layers(model: nn.Module) -> dict[str, Layer]:
    """Every layer of a known kind, by its canonical name."""
    found: dict[str, Layer] = {}
    for layer in _candidates(model):
        if layer.name in found:
            raise ValueError(f"two layers of the model are called {layer.name!r}")
        found[layer.name] = layer
    return found


def _candidates(model: nn.Module) -> Iterator[Layer]:
    inside: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in inside:
            continue
        base = _lora_base(module)
        kind = kind_of(module if base is None else base)
        if base is not None:
            inside.update(id(child) for child in module.modules())
        inside.update(id(child) for child in _spare_copies(module))
        if kind is not None:
            yield Layer(layer_name(name), kind, module, module if base is None else base)


def _spare_copies(module: nn.Module) -> Iterator[nn.Module]:
    """What peft keeps beside a layer that is trained as a whole: the layer as it was, and the
    copies of adapters that are switched off."""
    wrapper: Any = module
    if not (hasattr(module, "modules_to_save") and hasattr(module, "original_module")):
        return
    yield from wrapper.original_module.modules()
    used = getattr(wrapper, "active_adapters", [*wrapper.modules_to_save])
    for adapter, copy in wrapper.modules_to_save.items():
        if adapter not in used:
            yield from copy.modules()


def _lora_base(module: nn.Module) -> nn.Module | None:
    """The layer under peft's LoRA."""
    base = getattr(module, "base_layer", None)
    return base if isinstance(base, nn.Module) and hasattr(module, "lora_A") else None


def chosen_layers(
    model: nn.Module, patterns: Sequence[str] | None, exempt: Sequence[str]
) -> tuple[dict[str, Layer], dict[str, str]]:
    """The layers to remember, and the trained parameters outside of them with the reason.

    Without patterns: those that hold something trained; all, if nothing is trained yet.
    """
    layers = all_layers(model)
    if patterns is not None:
        wanted = {name: layers[name] for name in _matching("layers", layers, patterns)}
    else:
        wanted = {name: layer for name, layer in layers.items() if layer.trained}
        if is_frozen(model):
            wanted = layers
    left = set(_matching("exempt", wanted, exempt))
    wanted = {name: layer for name, layer in wanted.items() if name not in left}
    tied = _tied(model, wanted, set(layers))
    kept = {name: layer for name, layer in wanted.items() if name not in tied}
    if not kept:
        raise ValueError(
            "nothing of the model is covered: a memory needs linear layers, convolutions, "
            f"embeddings or norms, trained ones if anything is; got {type(model).__name__}"
            + (f" with {listing([*tied.values()])}" if tied else "")
        )
    return kept, _uncovered(model, kept, tied, left)


def is_frozen(model: nn.Module) -> bool:
    """Whether nothing of a model is trained."""
    return not any(p.requires_grad for p in model.parameters())


def _matching(argument: str, layers: dict[str, Layer], patterns: Sequence[str]) -> list[str]:
    for pattern in patterns:
        if not any(matches(name, [pattern]) for name in layers):
            raise ValueError(
                f"{argument}: no layer matches {pattern!r}; the layers are {listing([*layers])}"
            )
    return [name for name in layers if matches(name, patterns)]


def _tied(model: nn.Module, layers: dict[str, Layer], known: set[str]) -> dict[str, str]:
    """Layers that share a weight or a bias: its curvature is not a single product.

    Frozen ones too: once thawed, the tensor has one name, which stands for all its places. Only
    what is trained on top of it (a LoRA) is the layer's own.
    """
    homes: dict[int, dict[str, None]] = {}
    for name, module in model.named_modules():
        for held in module._parameters.values():
            if held is not None:
                homes.setdefault(id(held), {})[layer_name(name)] = None
    found: dict[str, str] = {}
    for name, layer in layers.items():
        for part in ("bias", "weight"):
            tensor: Any = getattr(layer.base, part, None)
            shared = [*homes.get(id(tensor), ())]
            if part == "bias":  # some heads hold the bias of their last layer a second time
                shared = [home for home in shared if home in known]
            on_top = layer.trained if part == "bias" else layer.adapted
            if len(shared) > 1 and (tensor.requires_grad or not on_top):
                found[name] = f"{' and '.join(shared)} share one {part}"
    return found


def _uncovered(
    model: nn.Module, layers: dict[str, Layer], tied: dict[str, str], left: set[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    frozen = is_frozen(model)
    for name, tensor in named_parameters(model).items():
        role = role_of(name)
        if not (tensor.requires_grad or (frozen and role.layer in tied)):
            continue
        if role.layer in layers:
            reason = unknown_part(layers[role.layer], role.part, role.adapter)
        elif role.layer in tied:
            reason = tied[role.layer]
        else:
            reason = "exempt" if role.layer in left else "not in a layer of the memory"
        if reason:
            found[name] = reason
    return found


def unknown_part(layer: Layer, part: str, adapter: str) -> str:
    """Why a parameter of a remembered layer is not covered; empty if it is."""
    if part.startswith("lora_") and adapter in variants_of(layer.module):
        return "a variant of LoRA whose weight is not the sum of W and BA"
    if part in ("weight", "bias", "lora_A", "lora_B", "lora_B.bias"):
        return ""
    return f"a {part} of a layer is not known"


def variants_of(module: nn.Module) -> set[str]:
    """The adapters of a layer whose weight is not the sum of W and BA, such as DoRA's."""
    variants: Any = getattr(module, "lora_variant", {})
    weighted: Any = getattr(module, "use_dora", {})  # how peft before 0.16 marks DoRA
    return {*variants, *(adapter for adapter, is_so in weighted.items() if is_so)}


PARTS = {"norm": ("weight", "bias")} | dict.fromkeys(MAPS, ("inputs", "outputs"))
"""A map has the second moments S of its inputs and D of the gradients at its outputs, and its
curvature is ``S (x) D``; a norm has the squares of its weight's and of its bias's gradients."""


@dataclass(frozen=True)
class LayerMemory:
    """The curvature of one layer per prediction, times the ``weight`` of what was remembered.

    ``S`` is a mean over rows, ``D`` a sum over rows per prediction. Of several memories ``S`` is
    the mean and ``D`` the sum: their product is a product of sums, and the same memory twice is
    the memory with twice the weight.
    """

    kind: str
    shape: tuple[int, ...]
    """Of the weight, as the layer stores it."""
    parts: Mapping[str, Side]
    examples: int
    predictions: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in PARTS:
            raise ValueError(f"kind must be one of {', '.join(PARTS)}; got {self.kind!r}")
        wanted = dict(zip(PARTS[self.kind], sizes_of(self.kind, self.shape), strict=True))
        came = {name: side.dim for name, side in self.parts.items()}
        if came != wanted:
            raise ValueError(
                f"a {self.kind} layer of shape {self.shape} needs factors of size {wanted}, "
                f"got {came}"
            )

    @property
    def inputs(self) -> Side:
        """``S``: of a norm, the squares of its weight's gradients."""
        return self.parts[PARTS[self.kind][0]]

    @property
    def outputs(self) -> Side:
        """``D``: of a norm, the squares of its bias's gradients."""
        return self.parts[PARTS[self.kind][1]]

    @property
    def bytes(self) -> int:
        """The memory that all sides take."""
        return sum(side.bytes for side in self.parts.values())

    def effective_dimension(self, damping: float) -> float:
        """Of the filter as it acts, side by side: the product of both sides' dimensions."""
        found = [side.effective_dimension(damping) for side in self.parts.values()]
        return found[0] if self.kind == "norm" else found[0] * found[1]

    def plus(self, other: LayerMemory) -> LayerMemory:
        """The memory of both together; inputs are averaged by weight, the rest adds up."""
        if (self.kind, self.shape) != (other.kind, other.shape):
            raise ValueError(
                f"{self.kind} of shape {self.shape} and {other.kind} of shape {other.shape}"
            )
        total = self.weight + other.weight
        parts = {name: side.plus(other.parts[name]) for name, side in self.parts.items()}
        if self.kind != "norm":
            mean = self.inputs.scaled(self.weight / total)
            parts["inputs"] = mean.plus(other.inputs, other.weight / total)
        return replace(
            self,
            parts=parts,
            examples=self.examples + other.examples,
            predictions=self.predictions + other.predictions,
            weight=total,
        )

    def scaled(self, by: float) -> LayerMemory:
        """The same memory counted ``by`` times."""
        parts = dict(self.parts)
        for name in parts:
            if name != "inputs":
                parts[name] = parts[name].scaled(by)
        return replace(self, parts=parts, weight=self.weight * by)

    def grown(self, shape: tuple[int, ...]) -> LayerMemory:
        """The same for a linear layer that has new outputs behind its old ones."""
        if self.kind != "linear" or shape == self.shape:
            return self
        outputs = self.outputs.grown(sizes_of(self.kind, shape)[1])
        return replace(self, shape=shape, parts={**self.parts, "outputs": outputs})

    def changed(self, change: Callable[[str, Side], Side]) -> LayerMemory:
        """A copy with each side replaced by ``change(name, side)``."""
        return replace(self, parts={name: change(name, side) for name, side in self.parts.items()})

    def matrix(self, weight: Tensor) -> Tensor:
        """A weight of this layer (or a change of it) as the matrix (outputs, inputs)."""
        if self.kind in ("conv1d", "embedding"):
            return weight.T
        return weight.flatten(1)

    def damage(self, change: Tensor) -> Tensor:
        """``tr(D dW S dW')/2`` for a change of the weight in its own shape; differentiable."""
        if self.kind == "norm":
            return half_quadratic(self.inputs, change[:, None])
        moved = self.matrix(change)
        turned = self.inputs.product(moved.T).T
        return (self.outputs.product(moved) * turned).sum() / 2

    def bias_damage(self, change: Tensor) -> Tensor:
        """``db' D db / 2``."""
        return half_quadratic(self.outputs, change[:, None])

    def pair_damage(self, up: Tensor, down: Tensor) -> Tensor:
        """The damage of ``dW = up @ down`` (in the layout of ``matrix``), without forming it."""
        left = up.T.to(self.outputs.like) @ self.outputs.product(up)
        right = self.inputs.product(down.T).T @ down.T.to(self.inputs.like)
        return (left * right).sum() / 2


def half_quadratic(side: Side, columns: Tensor) -> Tensor:
    """``1/2 sum_i c_i^T S c_i`` over the columns ``c_i``."""
    return (columns.to(side.like) * side.product(columns)).sum() / 2
