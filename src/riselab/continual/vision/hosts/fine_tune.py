"""Fine-tuning: all weights and one head, trained on one domain after another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from risegrad.common.imports import need
from risegrad.common.seeds import generator_for
from riselab.continual.host import ParameterGroup, Session, TrainingBudget, saved_parameters
from riselab.continual.rules import HeadRule, head_rule_of
from riselab.continual.vision.hosts.base import VisionHost, VisionHostSettings
from riselab.continual.vision.kit import AugmentedImages, Kit, VisionBatch
from riselab.continual.vision.models import Head


@dataclass(frozen=True)
class FineTuneSettings(VisionHostSettings):
    """Which rule the head follows; it is linear."""

    head_rule: HeadRule = "same"
    """``same`` as the network's rule, or always ``fo``."""


class FineTune(VisionHost):
    """Nothing is frozen: the classes stay and the inputs change, so what drifts is all there is.

    Where ``model.base_epochs`` has taught the first task before the stream, its session takes no
    step: all rules start from the same model, and additions still look at that task's data.
    """

    name = "fine-tune"
    summary = "all weights and one shared head, trained in every session (domains)"
    shares_classes = True
    masks_classes = False
    scores_ahead = True
    Settings = FineTuneSettings

    def __init__(self, kit: Kit, settings: FineTuneSettings) -> None:
        super().__init__(kit, settings)
        self.network = kit.vit
        self.head = kit.base_head or self._new_head()
        self.head.to(kit.devices.device)

    def begin(self, task: int) -> Session:
        rule = self.kit.named_rule(self.default_rule)
        head_rule = head_rule_of(rule, self.settings.head_rule)
        body, head = dict(self.network.named_parameters()), dict(self.head.named_parameters())
        known = 0 if task == 0 else self.head.classes
        return Session(
            task=task,
            examples=len(self.kit.stream[task].train),
            groups=(
                ParameterGroup("network", body, self._budget(self.kit.adapter, task), rule),
                ParameterGroup("head", head, self._budget(self.kit.head, task), head_rule),
            ),
            module=nn.ModuleList([self.network, self.head]),
            items=AugmentedImages(self.kit.stream, self.kit.seed),
            loss=lambda batch, every: cross_entropy(self.logits(batch), batch.labels),
            logits=self.logits,
            loss_of_logits=lambda logits, batch, every: cross_entropy(logits, batch.labels),
            predictions=self.logits,
            features=self.features,
            seen_before=known,
            linears=self._linears(),
        )

    def logits(self, batch: VisionBatch) -> Tensor:
        """Scores of all classes, with gradients."""
        scores: Tensor = self.head(self.features(batch))
        return scores

    def features(self, batch: VisionBatch) -> Tensor:
        """What the head is given."""
        return self.kit.extract(batch.inputs, None)

    def predict(self, task: int, split: str) -> tuple[Tensor, Tensor]:
        self.network.eval()
        found, labels = self.kit.features_of(task, split)
        return self.head(found), labels

    def state_dict(self) -> dict[str, Any]:
        return {"network": saved_parameters(self.network), "head": saved_parameters(self.head)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"], strict=False)  # buffers never change
        self.head.load(state["head"])

    def keep(self, folder: Path) -> None:
        """Also ``model.safetensors``: the network with its head, by timm's names."""
        super().keep(folder)
        head = {f"head.{name}": p for name, p in saved_parameters(self.head).items()}
        whole = {
            name: t.detach().cpu().contiguous() for name, t in self.network.state_dict().items()
        }
        files = need("safetensors.torch", "vision", "loop.keep_weights")
        files.save_file(whole | head, folder / "model.safetensors")

    def _new_head(self) -> Head:
        head = Head("linear", self.kit.width)
        head.grow(len(self.kit.stream[0].classes), generator_for(self.kit.seed, "head", 0))
        return head

    def _budget(self, budget: TrainingBudget, task: int) -> TrainingBudget:
        taught = task == 0 and self.kit.base_head is not None
        return replace(budget, epochs=0) if taught else budget

    def _linears(self) -> dict[str, nn.Linear]:
        """Those of the network, by the name of their weight."""
        parts = self.network.named_modules()
        return {f"network.{n}.weight": m for n, m in parts if isinstance(m, nn.Linear)}
