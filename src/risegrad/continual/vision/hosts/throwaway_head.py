"""A session that trains one set of adapters with a head that is thrown away afterwards."""

from __future__ import annotations

from torch import nn

from risegrad.common.seeds import generator_for
from risegrad.continual.session import ParameterGroup, Session
from risegrad.continual.update_rules import Rule
from risegrad.continual.vision.adapters import adapter_linears
from risegrad.continual.vision.classifier_heads import Head
from risegrad.continual.vision.hosts.adapter_classifier import AdapterSettings
from risegrad.continual.vision.hosts.vision_host import session_loss
from risegrad.continual.vision.image_batches import AugmentedImages
from risegrad.continual.vision.vision_kit import Kit


def adapters_with_temporary_head(
    kit: Kit,
    task: int,
    adapters: nn.ModuleList,
    rules: tuple[Rule, Rule],
    settings: AdapterSettings,
) -> Session:
    """Labels count from the session's first class, and the head knows these classes only.

    ``rules`` are those of the adapters and of the head, which trains with the adapters' budget.
    """
    head = Head(settings.head, kit.width, settings.sigma).to(kit.devices.device)
    head.grow(len(kit.stream[task].classes), generator_for(kit.seed, "head", task))
    first = kit.first_class(task)
    return Session(
        task=task,
        examples=len(kit.stream[task].train),
        groups=(
            ParameterGroup("adapter", dict(adapters.named_parameters()), kit.adapter, rules[0]),
            ParameterGroup("head", dict(head.named_parameters()), kit.head, rules[1]),
        ),
        module=nn.ModuleList([adapters, head]),
        items=AugmentedImages(kit.stream, kit.seed),
        loss=lambda batch, every: session_loss(
            head(kit.extract(batch.inputs, adapters)), batch.labels - first, 0, every
        ),
        linears={f"adapter.{n}": m for n, m in adapter_linears(adapters).items()},
    )
