"""Language models from transformers, with LoRA or whole: encoder-decoders, decoders, encoders."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from peft import LoraConfig, TaskType
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from riselab.common.inputs import Hub, Local, Reading
from riselab.common.settings import Checked, Limits, Positive, PositiveInt, Share
from riselab.continual.language.lora import StackedLora, add_lora, add_osf, free, own_linears


class LabelHead(nn.Module):
    """Linear on the mean of the last hidden states over the text."""

    def __init__(self, width: int, labels: tuple[str, ...], generator: torch.Generator) -> None:
        super().__init__()
        self.labels = labels
        bound = 1 / math.sqrt(width)
        drawn = torch.empty(len(labels), width).uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(drawn)
        self.bias = nn.Parameter(torch.zeros(len(labels)))

    def forward(self, net: Any, source: Tensor, mask: Tensor) -> Tensor:
        """Scores of all labels from the mean of the encoder's last states."""
        return nn.functional.linear(pooled(net, source, mask), self.weight, self.bias)


def pooled(net: Any, source: Tensor, mask: Tensor) -> Tensor:
    """The mean of an encoder's last states over the text of each row."""
    states: Tensor = net(input_ids=source, attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


OF_LORA = ("rank", "alpha", "dropout", "targets")


@dataclass(frozen=True)
class LanguageModelSettings(Checked):
    """Which model, what of it trains, and how much text it reads and writes."""

    name: str = "google-t5/t5-large"
    """A name on the hub."""
    weights: str = ""
    """A local folder in the form of transformers; given, it is used instead of the hub."""
    kind: Literal["auto", "seq2seq", "decoder", "encoder"] = "auto"
    """How answers are made: generated (``seq2seq``, ``decoder``) or chosen by a head (``encoder``);
    ``auto`` goes by the configuration of the model."""
    trains: Literal["lora", "all", "osf"] = "lora"
    """A LoRA on the frozen model; all weights of the model itself, which needs a smaller
    ``adapter.lr``, about a tenth; or peft's OSF on ``targets``: the smaller half of each weight's
    singular directions, across the others. Both are for hosts with one set of weights for all
    tasks."""
    rank: PositiveInt = 8
    """Of LoRA."""
    alpha: Positive = 32.0
    """Of LoRA, whose output is multiplied by alpha / rank."""
    dropout: Share = 0.1
    """Of LoRA's input. The model's own dropout is as its configuration says."""
    targets: tuple[str, ...] = ()
    """Last parts of the names of the layers that get LoRA; empty: q and v, by whatever name."""
    source_length: Annotated[int, Limits(at_least=8)] = 512
    """Most tokens of a prompt."""
    target_length: PositiveInt = 50
    """Most tokens of an answer, given or generated."""
    cut: Literal["end", "text"] = "end"
    """Where a longer prompt is cut: at its end, as the benchmark does, which loses "Answer:"; or
    in the text before it."""

    def unused(self) -> dict[str, str]:
        """Settings of LoRA away from their defaults where there is none, and why."""
        used = {"lora": OF_LORA, "osf": ("targets",), "all": ()}[self.trains]
        return {
            field.name: f"is of LoRA, and model.trains is {self.trains!r}; "
            f"got {getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name in set(OF_LORA) - set(used) and getattr(self, field.name) != field.default
        }


@dataclass
class LanguageModel:
    """A model and what of it trains. ``net`` and ``tokenizer`` are transformers' own."""

    kind: Literal["seq2seq", "decoder", "encoder"]
    net: Any
    tokenizer: Any
    layers: dict[str, StackedLora]
    """With LoRA; none where all weights train."""
    settings: LanguageModelSettings
    weights: tuple[str, ...] = ()
    """Names of those that train where there is no LoRA."""

    @property
    def module(self) -> nn.Module:
        """The network as torch sees it."""
        module: nn.Module = self.net
        return module

    @property
    def group(self) -> Literal["lora", "network"]:
        """What trains, as the names of parameters in a session begin."""
        return "lora" if self.layers else "network"

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """What trains, by name: the pair of each LoRA layer, or the weights of the network."""
        if not self.layers:
            return {name: self.module.get_parameter(name) for name in self.weights}
        pairs = {name: {"A": layer.A, "B": layer.B} for name, layer in self.layers.items()}
        return {f"{name}.{part}": p for name, pair in pairs.items() for part, p in pair.items()}

    @property
    def linears(self) -> dict[str, nn.Linear]:
        """Linear layers that train, by the name of their weight in ``trained``."""
        if not self.layers:
            return own_linears(self.module, self.weights)
        pairs = {name: {"A": layer.down, "B": layer.up} for name, layer in self.layers.items()}
        return {f"{name}.{part}": m for name, pair in pairs.items() for part, m in pair.items()}

    @property
    def model_type(self) -> str:
        """The architecture's name in its configuration, such as ``t5``."""
        return str(self.net.config.model_type)

    def accepts(self, argument: str) -> bool:
        """Whether the network's ``forward`` takes an argument of this name."""
        return argument in inspect.signature(self.net.forward).parameters


def load_model(settings: LanguageModelSettings) -> LanguageModel:
    """The model and its tokenizer; LoRA layers, if it has them, do nothing yet."""
    place, hint = settings.name, "; without a network give model.weights=FOLDER"
    if settings.weights:
        folder = Path(settings.weights).expanduser()
        check_folder(folder)
        place, hint = str(folder), ""
    net, tokenizer, kind = pretrained(place, settings.kind, hint)
    net.float()
    return wrap(net, tokenizer, settings, kind)


def model_of(settings: LanguageModelSettings) -> dict[str, Reading]:
    """What ``load_model`` reads, by the setting that names it; a name may be a folder, too."""
    if settings.weights:
        return {"model.weights": Local(settings.weights)}
    found = Local(settings.name) if Path(settings.name).is_dir() else Hub(settings.name, "model")
    return {"model.name": found}


def check_folder(folder: Path) -> None:
    """Whether a model's files are there; the tokenizer's have many names and are tried out."""
    if not folder.is_dir():
        raise FileNotFoundError(
            "model.weights must be a folder in the form of transformers, "
            f"got {str(folder.absolute())!r}"
        )
    patterns = {"config.json": ("config.json",), "model.safetensors": ("*.safetensors", "*.bin")}
    missing = [
        file
        for file, names in patterns.items()
        if not any(next(folder.glob(name), None) for name in names)
    ]
    if missing:
        raise FileNotFoundError(
            f"model.weights {str(folder.absolute())!r} could not be loaded: it must have "
            f"{' and '.join(missing)}, which are missing"
        )


def pretrained(
    place: str, kind: Literal["auto", "seq2seq", "decoder", "encoder"] = "auto", hint: str = ""
) -> tuple[Any, Any, Literal["seq2seq", "decoder", "encoder"]]:
    """A model of transformers, its tokenizer, which can pad, and what kind of model it is."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(place)
        found = _kind(config) if kind == "auto" else kind
        classes: dict[str, Any] = {
            "seq2seq": transformers.AutoModelForSeq2SeqLM,
            "decoder": transformers.AutoModelForCausalLM,
            "encoder": transformers.AutoModel,
        }
        net = classes[found].from_pretrained(place, config=config)
        tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise RuntimeError(f"model {place!r} could not be loaded{hint} ({error})") from error
    _check_tokenizer(tokenizer, place, writes=found != "encoder")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return net, tokenizer, found


def wrap(
    net: Any,
    tokenizer: Any,
    settings: LanguageModelSettings,
    kind: Literal["seq2seq", "decoder", "encoder"] = "seq2seq",
) -> LanguageModel:
    """A model of transformers with LoRA put in, or ready to train as it is."""
    layers: dict[str, StackedLora] = {}
    weights: tuple[str, ...] = ()
    if settings.trains == "all":
        weights = free(net)
    elif settings.trains == "osf":
        weights = add_osf(net, str(net.config.model_type), settings.targets)
    else:
        layers = add_lora(
            net,
            str(net.config.model_type),
            settings.targets,
            settings.rank,
            settings.alpha,
            settings.dropout,
        )
    net.eval()
    model = LanguageModel(kind, net, tokenizer, layers, settings, weights)
    if kind == "decoder" and not model.accepts("position_ids"):
        raise ValueError(
            f"constrained scoring of a decoder needs position_ids, which {model.model_type} "
            "does not take"
        )
    return model


def _check_tokenizer(tokenizer: Any, place: str, writes: bool) -> None:
    """Where its files are missing, transformers makes an empty one and says nothing."""
    ids = tokenizer("True Answer", add_special_tokens=False)["input_ids"]
    if not tokenizer.decode(ids, skip_special_tokens=True).strip():
        raise ValueError(
            f"the tokenizer of {place!r} must know words, got none: are its files there "
            "(tokenizer.json or a vocabulary)?"
        )
    needed = "eos_token" if writes else "pad_token"
    if tokenizer.eos_token_id is None and (writes or tokenizer.pad_token_id is None):
        raise ValueError(f"the tokenizer of {place!r} must have the {needed}, got none")


def _kind(config: Any) -> Literal["seq2seq", "decoder", "encoder"]:
    if config.is_encoder_decoder:
        return "seq2seq"
    names = getattr(config, "architectures", None) or []
    writes = any("CausalLM" in name or "LMHeadModel" in name for name in names)
    return "decoder" if writes else "encoder"


def kind_of_place(place: str) -> Literal["seq2seq", "decoder", "encoder"]:
    """What kind of model lies in a folder or on the hub, by its configuration alone."""
    import transformers

    try:
        return _kind(transformers.AutoConfig.from_pretrained(str(Path(place).expanduser())))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"model {place!r} is no folder in the form of transformers and not on the hub ({error})"
        ) from error


TASKS = {
    "seq2seq": TaskType.SEQ_2_SEQ_LM,
    "decoder": TaskType.CAUSAL_LM,
    "encoder": TaskType.FEATURE_EXTRACTION,
}


def save_adapter(model: LanguageModel, folder: Path) -> None:
    """All pairs of a layer as one of their summed rank, which adds the same to its weight."""
    pairs = {name: _stacked(layer) for name, layer in model.layers.items()}
    first = next(iter(model.layers.values()))
    rank = len(next(iter(pairs.values()))[0])
    config = LoraConfig(
        task_type=TASKS[model.kind],
        base_model_name_or_path=model.settings.weights or model.settings.name,
        r=rank,
        lora_alpha=first.scale * rank,  # type: ignore[arg-type, unused-ignore]
        lora_dropout=model.settings.dropout,
        target_modules=list(model.layers),
        fan_in_fan_out=first.fan_in_fan_out,
        inference_mode=True,
    )
    config.save_pretrained(str(folder))
    state: dict[str, Tensor] = {}
    for name, (a, b) in pairs.items():
        state[f"base_model.model.{name}.lora_A.weight"] = a
        state[f"base_model.model.{name}.lora_B.weight"] = b
    save_file(state, folder / "adapter_model.safetensors")


def _stacked(layer: StackedLora) -> tuple[Tensor, Tensor]:
    """The earlier pairs and the last one; one that does nothing (B is zero) is left out."""
    a, b = layer.A.detach(), layer.B.detach()
    if layer.past_A is not None and layer.past_B is not None:
        new = bool(b.count_nonzero())
        a = torch.cat([layer.past_A, a]) if new else layer.past_A
        b = torch.cat([layer.past_B, b], dim=1) if new else layer.past_B
    return a.cpu().clone().contiguous(), b.cpu().clone().contiguous()
