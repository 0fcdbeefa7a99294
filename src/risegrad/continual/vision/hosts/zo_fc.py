"""ZO-FC: the head by exact gradients, the adapters by SPSA; and with RISE in SPSA's place."""

from __future__ import annotations

from dataclasses import dataclass

from risegrad.continual.update_rules import HeadRule
from risegrad.continual.vision.hosts.adapter_classifier import (
    AdapterClassifier,
    AdapterClassifierSettings,
)


@dataclass(frozen=True)
class ZoFcSettings(AdapterClassifierSettings):
    """As Adapter + Cls., with a head that is always first-order."""

    head_rule: HeadRule = "fo"


class ZoFc(AdapterClassifier):
    """The paper's host: adapters by SPSA (q = 4, epsilon = 1e-3, clipped), head by SGD."""

    name = "zo-fc"
    summary = "adapters zeroth-order, head first-order"
    default_rule = "zo"
    Settings = ZoFcSettings


class ZoFcRise(ZoFc):
    """ZO-FC with the exact gradient of the adapters, shaped by RISE, instead of an estimate."""

    name = "zo-fc-rise"
    summary = "ZO-FC with RISE on the adapters' exact gradient"
    default_rule = "rise"
