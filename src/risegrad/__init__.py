"""risegrad: randomized shaping of exact gradients, attached to any torch optimizer in one line."""

from typing import TYPE_CHECKING

from risegrad.lazy import lookup

if TYPE_CHECKING:
    from risegrad.attachment import Attachment, attach
    from risegrad.blocks import Blocks
    from risegrad.curvature.diagnosis import diagnose
    from risegrad.curvature.memory.dreams import dreamed
    from risegrad.curvature.memory.memory import Memory
    from risegrad.curvature.memory.remembering import remember
    from risegrad.curvature.memory.retraction import retract
    from risegrad.rule import shape
    from risegrad.shapers import CovarianceNoise, IsotropicNoise, Rise, ScaledFO

__version__ = "0.1.0"

__all__ = [
    "Attachment",
    "Blocks",
    "CovarianceNoise",
    "IsotropicNoise",
    "Memory",
    "Rise",
    "ScaledFO",
    "attach",
    "diagnose",
    "dreamed",
    "remember",
    "retract",
    "shape",
]

# A module must not have the name of a function here, or importing it would hide the function.
_HOMES = {
    "Attachment": "attachment",
    "Blocks": "blocks",
    "CovarianceNoise": "shapers",
    "IsotropicNoise": "shapers",
    "Memory": "curvature.memory.memory",
    "Rise": "shapers",
    "ScaledFO": "shapers",
    "attach": "attachment",
    "diagnose": "curvature.diagnosis",
    "dreamed": "curvature.memory.dreams",
    "remember": "curvature.memory.remembering",
    "retract": "curvature.memory.retraction",
    "shape": "rule",
}

__getattr__ = lookup(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
