"""Models of images: ViTs from timm, by the hub, a file or made new; or a small network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn.functional import linear, normalize, relu

from risegrad.common.imports import need
from riselab import plugins
from riselab.common.inputs import Hub, Local, Reading
from riselab.common.settings import Checked, Count, Positive, PositiveInt, Share

MLP = "mlp"
"""The name of the model in settings."""
WIDTH, DEPTH = 128, 2


class FeatureModel(nn.Module):
    """A model that is not a ViT: ``forward`` takes images ``[B, 3, S, S]`` and gives features."""

    num_features: int
    """How many numbers a feature has."""


class SmallNetwork(FeatureModel):
    """``depth`` linear layers with a ReLU behind each, over the gray values of an image."""

    def __init__(self, image_size: int, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        sizes = [image_size**2, *[width] * depth]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.num_features = width

    def forward(self, images: Tensor) -> Tensor:
        """The features of a batch of images."""
        found = images.mean(1).flatten(1)
        for layer in self.layers:
            found = relu(layer(found))
        return found


@dataclass(frozen=True)
class ViTSettings(Checked):
    """Which ViT, where its weights come from, and the adapters that hosts put beside its blocks."""

    name: str = "vit_base_patch16_224.augreg_in21k"
    """Any ViT that timm knows; or "mlp", linear layers over the gray values of small images, of
    ``width`` 128 and ``depth`` 2 unless given, always new."""
    weights: str = ""
    """A local state dict (.safetensors, or .pt/.pth read with weights_only); empty: timm's hub."""
    pretrained: bool = True
    """Whether to load weights at all. Without, see ``base_epochs``."""
    width: Count = 0
    """Of a small new model: embedding width; 0 keeps the named model's own, as with the next."""
    depth: Count = 0
    """Number of blocks."""
    heads: Count = 0
    """Attention heads per block."""
    patch: Count = 0
    """Height and width of a patch in pixels."""
    adapter_width: PositiveInt = 64
    """Hidden units of each adapter."""
    adapter_scale: Positive = 0.1
    """Factor on each adapter's output."""
    adapter_dropout: Share = 0.1
    """Share of hidden units of an adapter that are dropped in training."""
    base_epochs: Count = 0
    """Train the whole backbone on the first task before the stream, in place of pretraining; of a
    stream of domains, on all tasks that are known from the start."""
    base_lr: Positive = 1e-3
    """Learning rate of that training."""

    @property
    def own(self) -> bool:
        """Whether it is made by a function of the register and not by timm."""
        return self.name in plugins.MODELS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights and not self.pretrained:
            raise ValueError("pretrained must be true where weights are given, got false")
        if self.name == MLP and (self.pretrained or self.heads or self.patch):
            raise ValueError(
                'pretrained must be false and heads and patch 0 with name "mlp", got '
                f"pretrained={self.pretrained}, heads={self.heads}, patch={self.patch}"
            )


def weights_of(settings: ViTSettings) -> dict[str, Reading]:
    """What ``load_backbone`` reads, by the setting that names it."""
    if settings.weights:
        return {"model.weights": Local(settings.weights)}
    from_hub = settings.pretrained and not settings.own
    return {"model.name": Hub(f"timm/{settings.name}", "model")} if from_hub else {}


SHAPE_OPTIONS = {
    "width": "embed_dim",
    "depth": "depth",
    "heads": "num_heads",
    "patch": "patch_size",
}


def load_backbone(settings: ViTSettings, image_size: int, seed: int = 0) -> nn.Module:
    """The ViT without its head, frozen, in evaluation mode, for square images of ``image_size``."""
    if settings.own:
        return _own(settings, image_size, seed).eval().requires_grad_(False)
    options: dict[str, Any] = {
        option: getattr(settings, field)
        for field, option in SHAPE_OPTIONS.items()
        if getattr(settings, field)
    }
    model = _create(settings, image_size, seed, options)
    if settings.weights:
        _load_file(model, Path(settings.weights).expanduser())
    return model.eval().requires_grad_(False)


def _mlp(settings: ViTSettings, image_size: int, seed: int) -> FeatureModel:
    return SmallNetwork(image_size, settings.width or WIDTH, settings.depth or DEPTH)


plugins.MODELS.bring({MLP: _mlp}, {MLP: "linear layers over the gray values of small images"})


def _own(settings: ViTSettings, image_size: int, seed: int) -> FeatureModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = plugins.MODELS[settings.name](settings, image_size, seed)
    if not isinstance(model, FeatureModel):
        raise TypeError(
            f"model {settings.name!r} must be a FeatureModel, got {type(model).__name__} from "
            f"{plugins.MODELS.origin(settings.name)}"
        )
    return model


def _create(
    settings: ViTSettings, image_size: int, seed: int, options: dict[str, Any]
) -> nn.Module:
    timm = need("timm", "vision", "ViTs")
    from timm.models.vision_transformer import VisionTransformer

    from_hub = settings.pretrained and not settings.weights
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = timm.create_model(
                settings.name, pretrained=from_hub, num_classes=0, img_size=image_size, **options
            )
        except Exception as error:
            wanted = f"; {weights_wanted(settings.name)}" if from_hub else ""
            raise RuntimeError(
                f"model.name {settings.name!r} could not be made by timm{wanted} ({error})"
            ) from error
    if not isinstance(model, VisionTransformer):
        raise ValueError(
            f"model.name must be a timm VisionTransformer, got {settings.name!r} "
            f"({type(model).__name__})"
        )
    return model


def hub_repository(name: str) -> str:
    """Where timm has a model's weights on the Hugging Face hub; "" if it has none or no model."""
    timm = need("timm", "vision", "ViTs")
    known = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    return str(getattr(known, "hf_hub_id", None) or "")


def weights_wanted(name: str) -> str:
    """Which weights a model from the hub needs, and what to do without a network."""
    place = hub_repository(name)
    file = f"model.safetensors of {place} on the Hugging Face hub" if place else "not on the hub"
    return f"its weights are {file}: where there is no network give that file as model.weights=PATH"


def no_weights(path: Path) -> str:
    """The error text for a file of weights that does not exist."""
    return f"model.weights must be a file, got {str(path.absolute())!r}"


def _load_file(model: Any, path: Path) -> None:
    from timm.models.vision_transformer import checkpoint_filter_fn

    if not path.is_file():
        raise FileNotFoundError(no_weights(path))
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RuntimeError(f"model.weights {str(path)!r} cannot be read ({error})") from error
    state = checkpoint_filter_fn(state, model)  # resamples position embeddings to the image size
    missing, unexpected = model.load_state_dict(state, strict=False)
    unexpected = [name for name in unexpected if not name.startswith("head")]
    if missing or unexpected:
        raise ValueError(
            f"model.weights {str(path)!r} must fit the model; missing {missing[:5]}, "
            f"unexpected {unexpected[:5]}"
        )


def feature_width(vit: nn.Module) -> int:
    """How many numbers the model's feature of an image has."""
    width: int = vit.num_features  # type: ignore[assignment]
    return width


def features(vit: Any, images: Tensor, adapters: nn.ModuleList | None = None) -> Tensor:
    """The ViT's pooled features after its last norm, with an adapter beside every block if given.

    Beside a pre-norm block, with ``h`` the sum after attention: ``h + MLP(LN h) + adapter(h)``, so
    the adapter sees ``h`` without normalization. The ViT itself does not change.
    """
    if isinstance(vit, FeatureModel):
        found: Tensor = vit(images)
        return found
    x = vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(images))))
    if adapters is None:
        x = vit.blocks(x)
    else:
        for block, adapter in zip(vit.blocks, adapters, strict=True):
            h = x + block.drop_path1(block.ls1(block.attn(block.norm1(x))))
            x = h + block.drop_path2(block.ls2(block.mlp(block.norm2(h)))) + adapter(h)
    pooled: Tensor = vit.forward_head(vit.norm(x), pre_logits=True)
    return pooled


class Adapter(nn.Module):
    """``scale * up(dropout(relu(down(x))))``; the identity beside it makes it a no-op at start."""

    def __init__(
        self, width: int, bottleneck: int, scale: float, dropout: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.down = nn.Linear(width, bottleneck)
        self.up = nn.Linear(bottleneck, width)
        self.scale, self.dropout = scale, nn.Dropout(dropout)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5), generator=generator)
        for start_at_zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(start_at_zero)

    def forward(self, x: Tensor) -> Tensor:
        """``scale * up(dropout(relu(down(x))))``."""
        up: Tensor = self.up(self.dropout(torch.relu(self.down(x))))
        return up * self.scale


def make_adapters(
    settings: ViTSettings, width: int, depth: int, generator: torch.Generator
) -> nn.ModuleList:
    """One adapter per block."""
    chosen = settings.adapter_width, settings.adapter_scale, settings.adapter_dropout
    with torch.random.fork_rng(devices=[]):  # nn.Linear draws before we set its weights
        return nn.ModuleList(Adapter(width, *chosen, generator) for _ in range(depth))


def adapter_linears(adapters: nn.ModuleList) -> dict[str, nn.Linear]:
    """The linear layers by the names of their weights among the adapters' parameters."""
    return {
        f"{name}.weight": module
        for name, module in adapters.named_modules()
        if isinstance(module, nn.Linear)
    }


HeadKind = Literal["linear", "cosine"]


class Head(nn.Module):
    """One row per class. ``grow`` keeps the rows of old classes and adds fresh ones.

    ``linear``: ``W f + b``, with W uniform of variance 1/width and b zero at start.
    ``cosine``: ``sigma cos(f, w)``, with W uniform within 1/sqrt(width) and one learned sigma.
    """

    def __init__(self, kind: HeadKind, width: int, sigma: float = 1.0) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        self.weight = Parameter(torch.empty(0, width))
        if kind == "linear":
            self.bias = Parameter(torch.empty(0))
        else:
            self.sigma = Parameter(torch.tensor(float(sigma)))

    @property
    def acts_as(self) -> str:
        """For a memory: a linear head is a linear layer, a cosine head is none."""
        return self.kind

    @property
    def classes(self) -> int:
        """How many classes there are so far."""
        return len(self.weight)

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Add ``count`` new classes; the rows of the old ones stay as they are."""
        bound = math.sqrt((3 if self.kind == "linear" else 1) / self.width)
        fresh = torch.empty(count, self.width).uniform_(-bound, bound, generator=generator)
        self.weight = Parameter(torch.cat([self.weight.detach(), fresh.to(self.weight)]))
        if self.kind == "linear":
            self.bias = Parameter(torch.cat([self.bias.detach(), self.bias.new_zeros(count)]))

    def forward(self, features: Tensor) -> Tensor:
        """The scores of all classes: linear, or ``sigma`` times the cosine."""
        if self.kind == "linear":
            return linear(features, self.weight, self.bias)
        return self.sigma * cosine(features, self.weight)

    def rows(self, count: int) -> dict[str, int]:
        """By name of a parameter that has a row per class: its rows of the first classes."""
        return {name: count for name, p in self.named_parameters() if p.ndim}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take a saved state of any number of classes."""
        for name, value in state.items():
            setattr(self, name, Parameter(value.to(self.weight.device)))


def cosine(features: Tensor, rows: Tensor) -> Tensor:
    """Cosines between all features and all rows; of a zero row they are zero."""
    return linear(normalize(features, dim=-1), normalize(rows, dim=-1))


def class_means(features: Tensor, labels: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Sums of features and numbers of examples of the classes ``first .. first + count - 1``.

    Sums, because several processes add up theirs before dividing.
    """
    sums = features.new_zeros(count, features.shape[1])
    sums.index_add_(0, labels - first, features)
    return sums, torch.bincount(labels - first, minlength=count).to(features)
