"""The methods that a search for the frontier tries: their settings and rates.

A new method is one entry of ``METHODS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from risegrad.common.checks import check_choice

SHARES = (0.25, 0.5, 0.75)
"""How far from the start to the trained weights interpolation looks."""

BLOCK = 64
CLIP = 1.0
ADAMW_RATES = (1e-3, 3e-4, 3e-3, 1e-4, 1e-2)
"""The most useful first: with little time only the first three are run."""
SHAPED_RATES = (3e-3, 1e-3, 1e-2, 3e-4, 3e-2)
"""Of rules that keep a part of each step."""
SGD_RATES, SGD_LORA_RATES = (1e-2, 3e-3, 3e-2, 1e-3, 1e-1), (0.1, 0.03, 0.3, 0.01, 0.9)
"""With momentum for whole networks, and without for LoRA, as the lab's language experiments."""


@dataclass(frozen=True)
class FrontierMethod:
    """One curve: what its runs set, and at which rates."""

    label: str
    rates: tuple[float, ...]
    rule: dict[str, Any] = field(default_factory=lambda: {"name": "fo"})
    optimizer: str = "adamw"
    additions: tuple[dict[str, Any], ...] = ()
    lora_rates: tuple[float, ...] = ()
    """where LoRA needs others"""
    reference: bool = False
    of: str = ""
    """the method from whose runs it is read, where it has none of its own"""

    @property
    def remembers(self) -> bool:
        """Whether its runs have a memory."""
        return str(self.rule["name"]).startswith("informed")

    def rates_for(self, lora: bool, scale: float) -> tuple[float, ...]:
        """The rates for LoRA or a whole network, in round numbers."""
        given = (self.lora_rates if lora else ()) or self.rates
        return tuple(float(f"{scale * rate:.1g}") for rate in given)

    def row(self, lora: bool) -> dict[str, Any]:
        """What the method's runs set."""
        budget: dict[str, Any] = {"optimizer": self.optimizer}
        if self.optimizer == "sgd" and lora:
            budget["momentum"] = 0.0
        found = {"rule": self.rule, "adapter": budget, "head": budget}
        return found | ({"additions": list(self.additions)} if self.additions else {})


METHODS: dict[str, FrontierMethod] = {
    "adamw": FrontierMethod("FO (AdamW)", ADAMW_RATES, reference=True),
    "sgd": FrontierMethod(
        "FO (SGD)", SGD_RATES, optimizer="sgd", lora_rates=SGD_LORA_RATES, reference=True
    ),
    "rise": FrontierMethod("RISE", SHAPED_RATES, {"name": "rise", "chunk": BLOCK}),
    "informed": FrontierMethod("informed", SHAPED_RATES, {"name": "informed"}),
    "interpolation": FrontierMethod("interpolation", ADAMW_RATES, of="adamw"),
    "rise-update": FrontierMethod(
        "RISE on the update", SHAPED_RATES, {"name": "rise", "chunk": BLOCK, "on": "update"}
    ),
    "covariance-noise": FrontierMethod(
        "covariance noise", SHAPED_RATES, {"name": "covariance-noise", "chunk": BLOCK}
    ),
    "ewc": FrontierMethod(
        "EWC", SHAPED_RATES, additions=({"name": "ewc", "weight": 100.0, "samples": 200},)
    ),
}
USUAL = ("adamw", "sgd", "rise", "informed", "interpolation")


def chosen(names: Sequence[str]) -> dict[str, FrontierMethod]:
    """The methods of these names, the usual ones without any; a reference is always there."""
    for name in names:
        check_choice("methods", name, METHODS)
    wanted = list(names) or list(USUAL)
    wanted += [METHODS[name].of for name in wanted if METHODS[name].of]
    if not any(METHODS[name].reference for name in wanted):
        wanted.insert(0, "adamw")
    return {name: METHODS[name] for name in METHODS if name in wanted}
