"""SeqLoRA, which can train all weights as well, IncLoRA and O-LoRA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from risegrad.common.seeds import generator_for
from riselab.common.settings import Checked, Limits
from riselab.continual.host import (
    ParameterGroup,
    Ref,
    Score,
    Session,
    Stream,
    saved_parameters,
)
from riselab.continual.language import SUMMARIES
from riselab.continual.language.batches import TextBatch
from riselab.continual.language.kit import LanguageKit
from riselab.continual.language.lora import StackedLora, folded, save_network
from riselab.continual.language.models import save_adapter
from riselab.continual.language.scoring import hits
from riselab.continual.language.streams.build import TextSplit
from riselab.continual.language.streams.settings import PromptForm
from riselab.continual.learning import KitHost


@dataclass(frozen=True)
class LanguageHostSettings(Checked):
    """What every host's settings have."""

    name: str = ""
    """Which host."""
    zero_shot: bool = True
    """Score every task before the stream, and each once more right before its turn: gives forward
    transfer, and costs as much as it says."""


class LanguageHost(KitHost):
    """A model with LoRA, or all of whose weights train. ``Settings`` are the host's own."""

    summary: ClassVar[str]
    main_score = "exact_match"
    side_score = "constrained"
    """The second score; the record has its average, last and forgetting, too."""
    masks_classes = False
    trains_head: ClassVar[bool] = True
    """Whether an encoder gets a classifier that is trained beside it."""
    prompt: ClassVar[PromptForm] = "instruction"
    """What it reads of a task where the stream's settings leave that open."""
    Settings: ClassVar[type[LanguageHostSettings]] = LanguageHostSettings
    kit: LanguageKit

    def __init__(self, kit: LanguageKit, settings: Any) -> None:
        super().__init__(kit, settings)
        self.scores_ahead = settings.zero_shot
        self._start(0)

    def loss(self, task: int, batch: TextBatch) -> Tensor:
        """The loss of one batch while the host learns ``task``."""
        return self.kit.loss(batch)

    def score(self, tasks: Sequence[int]) -> dict[str, list[Score]]:
        self.kit.model.module.eval()
        with folded(self.kit.model.layers):
            return super().score(tasks)

    def data_bytes(self, refs: Sequence[Ref]) -> int:
        """Of the prompts, which are all that a memory looks at."""
        return sum(len(self.kit.stream[t].train.prompts[n].encode()) for t, n in refs)

    def hits(self, task: int, split: str) -> tuple[Iterable[str], Tensor]:
        return (self.main_score, self.side_score), hits(self.kit, task, split)

    def session(self, task: int, prefix: str = "") -> Session:
        """The session in which what the model trains, and the label head if there is one, learn."""
        kit = self.kit
        rule, items = kit.named_rule(self.default_rule), kit.items(task)
        parameters = {f"{prefix}{name}": p for name, p in kit.model.trained.items()}
        groups = [ParameterGroup(kit.model.group, parameters, kit.adapter, rule)]
        module = kit.model.module
        if kit.classifier is not None:
            groups.append(
                ParameterGroup("head", dict(kit.classifier.named_parameters()), kit.head, rule)
            )
            module = nn.ModuleList([module, kit.classifier])
        return Session(
            task=task,
            examples=len(kit.stream[task].train),
            groups=tuple(groups),
            module=module,
            items=items,
            loss=lambda batch, every_class: self.loss(task, batch),
            predictions=kit.predictions,
            features=kit.features,
            weight=kit.weight,
            lengths=items.tasks[task].prompts.lengths() if kit.bucket else None,
        )

    def keep(self, folder: Path) -> None:
        """Also the adapter as ``PeftModel.from_pretrained`` loads it, or the whole model as
        ``from_pretrained`` does, and an encoder's head."""
        super().keep(folder)
        model = self.kit.model
        if model.layers:
            save_adapter(model, folder)
        else:
            save_network(model.net, model.tokenizer, folder)
        if self.kit.classifier is not None:
            save_file(saved_parameters(self.kit.classifier), folder / "head.safetensors")

    def _start(self, task: int) -> None:
        """New adapters, drawn for this task."""
        generator = generator_for(self.kit.seed, "lora", task)
        for layer in self.kit.model.layers.values():
            layer.start(generator)

    def _head(self) -> dict[str, Any]:
        head = self.kit.classifier
        return {} if head is None else {"head": saved_parameters(head)}

    def _load_head(self, state: dict[str, Any]) -> None:
        if self.kit.classifier is not None:
            self.kit.classifier.load_state_dict(state["head"])


class SeqLora(LanguageHost):
    """The plainest: what was learned last writes over what was learned first.

    With ``model.trains = "all"`` there is no LoRA: the network's own weights go on from task to
    task in the same way.
    """

    name = "seq-lora"
    summary = SUMMARIES[name]

    def begin(self, task: int) -> Session:
        session, model = self.session(task), self.kit.model
        linears = {f"{model.group}.{name}": layer for name, layer in model.linears.items()}
        return replace(session, linears=linears)

    def state_dict(self) -> dict[str, Any]:
        model = self.kit.model
        trained = {name: p.detach().cpu().clone() for name, p in model.trained.items()}
        if not model.layers:
            return {"network": trained} | self._head()
        pairs = {name: [trained[f"{name}.A"], trained[f"{name}.B"]] for name in model.layers}
        return {"pairs": pairs} | self._head()

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        model = self.kit.model
        for name, layer in model.layers.items():
            a, b = state["pairs"][name]
            layer.A.copy_(a)
            layer.B.copy_(b)
        if not model.layers:
            for name, weight in model.trained.items():
                weight.copy_(state["network"][name])
        self._load_head(state)


class IncLora(LanguageHost):
    """A new LoRA for every task beside the frozen ones of all earlier tasks."""

    name = "inc-lora"
    summary = SUMMARIES[name]
    keeps_parameters = False
    adds_to_layers = True

    def begin(self, task: int) -> Session:
        self._start(task)
        return self.session(task, prefix=f"task{task}.")

    def finish(self, task: int) -> None:
        for layer in self.kit.model.layers.values():
            layer.freeze()

    def state_dict(self) -> dict[str, Any]:
        return {"stacks": stacks_of(self.kit.model.layers)} | self._head()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        restack(self.kit.model.layers, state["stacks"], self.kit.devices.device)
        self._load_head(state)


def stacks_of(layers: Mapping[str, StackedLora]) -> dict[str, list[Tensor]]:
    """The frozen pairs of each layer, for a state that later training must not change."""
    return {
        name: [layer.past_A.cpu().clone(), layer.past_B.cpu().clone()]
        for name, layer in layers.items()
        if layer.past_A is not None and layer.past_B is not None
    }


@torch.no_grad()
def restack(
    layers: Mapping[str, StackedLora], stacks: Mapping[str, Sequence[Tensor]], device: torch.device
) -> None:
    """Put them back, beside a pair that does nothing."""
    for name, layer in layers.items():
        a, b = stacks.get(name, (None, None))
        layer.past_A = None if a is None else a.to(device)
        layer.past_B = None if b is None else b.to(device)
        layer.B.zero_()


PenaltyWeight = Annotated[float | tuple[float, ...], Limits(at_least=0)]


@dataclass(frozen=True)
class OLoraSettings(LanguageHostSettings):
    """The weights of the two penalties: one number, or one per task (also those left out)."""

    lambda1: PenaltyWeight = 0.5
    """Of the overlap of the new A with each earlier one."""
    lambda2: PenaltyWeight = 0.0
    """Of the size of the new pair."""


class OLora(IncLora):
    """IncLoRA whose new A is kept nearly orthogonal to the earlier ones.

    The loss grows by ``lambda1 sum |A_past A^T|``, the sum of absolute entries over all layers, and
    by ``lambda2 sum (|A|_2 + |B|_2)``, Frobenius norms that are not squared.
    """

    name = "o-lora"
    summary = SUMMARIES[name]
    Settings = OLoraSettings

    def __init__(self, kit: LanguageKit, settings: OLoraSettings) -> None:
        self.lambda1 = per_task("lambda1", settings.lambda1, kit.stream)
        self.lambda2 = per_task("lambda2", settings.lambda2, kit.stream)
        super().__init__(kit, settings)

    def loss(self, task: int, batch: TextBatch) -> Tensor:
        return self.kit.loss(batch) + self.penalty(task)

    def penalty(self, task: int) -> Tensor | float:
        """``lambda1 sum |A_past A^T| + lambda2 (||A|| + ||B||)``, summed over the layers."""
        return overlap(self.kit.model.layers.values(), self.lambda1[task], self.lambda2[task])


def overlap(layers: Iterable[StackedLora], first: float, second: float) -> Tensor | float:
    """O-LoRA's penalty: of the new A on the earlier ones, and of the size of the new pair."""
    total: Tensor | float = 0.0
    for layer in layers:
        if first and layer.past_A is not None:
            total = total + first * (layer.past_A @ layer.A.T).abs().sum()
        if second:
            total = total + second * (layer.A.norm() + layer.B.norm())
    return total


def per_task(
    field: str, value: float | tuple[float, ...], stream: Stream[TextSplit]
) -> tuple[float, ...]:
    """One weight per task that comes; of a list for the whole order, those left out go."""
    if not isinstance(value, tuple):
        return (value,) * len(stream)
    if len(value) == len(stream):
        return value
    if len(value) == len(stream.planned):
        come = {task.name for task in stream}
        return tuple(
            weight for name, weight in zip(stream.planned, value, strict=True) if name in come
        )
    raise ValueError(
        f"host.{field} must be one number or one per task, {len(stream)} here, got {len(value)}"
    )
