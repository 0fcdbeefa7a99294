"""What every vision host works with: the stream, the frozen ViT, budgets, rule, devices, seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from risegrad.common.seeds import generator_for
from risegrad.continual.batch_plan import Loader
from risegrad.continual.devices import Devices
from risegrad.continual.session_training import Loop
from risegrad.continual.stream import Stream
from risegrad.continual.training_budget import TrainingBudget
from risegrad.continual.update_rules import Rule
from risegrad.continual.vision.adapters import make_adapters
from risegrad.continual.vision.backbone import ViTSettings, feature_width, features
from risegrad.continual.vision.classifier_heads import Head
from risegrad.continual.vision.image_batches import PlainImages, VisionBatch
from risegrad.continual.vision.streams import ImageSplit


@dataclass
class Kit:
    """The parts that hosts share. ``extract(images, adapters)`` gives features."""

    stream: Stream[ImageSplit]
    vit: nn.Module
    vit_settings: ViTSettings
    rule: Rule
    head: TrainingBudget
    adapter: TrainingBudget
    loop: Loop
    devices: Devices
    seed: int
    base_head: Head | None = None
    """The head with which the first task was taught before the stream, where it was."""
    extract: Callable[[Tensor, nn.ModuleList | None], Tensor] = field(init=False)
    _kept: dict[tuple[str, int, str], tuple[Tensor, Tensor]] = field(
        default_factory=dict, init=False
    )

    _loaders: dict[str, Loader[VisionBatch]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.vit.to(self.devices.device)
        compute = torch.compile(features) if self.loop.compile else features
        self.extract = lambda images, adapters: compute(self.vit, images, adapters)

    @property
    def width(self) -> int:
        """How many numbers a feature has."""
        return feature_width(self.vit)

    def first_class(self, task: int) -> int:
        """The label of a task's first class: labels are positions in the order of the stream."""
        return sum(len(earlier.classes) for earlier in self.stream.tasks[:task])

    def named_rule(self, default: str) -> Rule:
        """The rule of the settings, or the host's own where they name none."""
        return self.rule if self.rule.name else replace(self.rule, name=default)

    def new_adapters(self, task: int) -> nn.ModuleList:
        """New adapters for every block of the ViT; each task has its own random start."""
        depth = len(self.vit.blocks)  # type: ignore[arg-type]
        generator = generator_for(self.seed, "adapters", task)
        adapters = make_adapters(self.vit_settings, self.width, depth, generator)
        return adapters.to(self.devices.device)

    def features_of(
        self, task: int, split: str, adapters: nn.ModuleList | None = None, *, share: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Features and labels of a split in the test view, computed now.

        With ``share``, several processes compute a part each, and get only that.
        """
        indices = range(len(getattr(self.stream[task], split)))
        mine = self.devices.share(indices) if share else indices
        size = max(self.loop.batch, 64)
        refs = [
            [(task, i) for i in mine[start : start + size]] for start in range(0, len(mine), size)
        ]
        if adapters is not None:
            adapters.eval()
        found, labels = [torch.empty(0, self.width)], [torch.empty(0, dtype=torch.int64)]
        with torch.no_grad():
            for batch in self._loader(split).batches(refs, 0):
                batch = batch.to(self.devices.device)
                with self.devices.autocast():
                    found.append(self.extract(batch.inputs, adapters).float().cpu())
                labels.append(batch.labels.cpu())
        device = self.devices.device
        return torch.cat(found).to(device), torch.cat(labels).to(device)

    def _loader(self, split: str) -> Loader[VisionBatch]:
        """One for the whole run: its processes are there at the next scoring."""
        if split not in self._loaders:
            items = PlainImages(self.stream, split)
            self._loaders[split] = Loader(items, self.loop.workers)
        return self._loaders[split]

    def kept_features(
        self,
        key: str,
        task: int,
        split: str,
        adapters: nn.ModuleList | None = None,
        *,
        share: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """As ``features_of``, but computed once: ``key`` names a part that no longer trains."""
        if self.loop.cache == "never":
            return self.features_of(task, split, adapters, share=share)
        place = (key, task, split)
        if place not in self._kept:
            self._kept[place] = self.features_of(task, split, adapters, share=share)
        return self._kept[place]
