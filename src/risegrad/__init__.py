"""risegrad: randomized shaping of exact gradients, attached to any torch optimizer in one line."""

from typing import TYPE_CHECKING

from risegrad.common.lazy_names import lookup

if TYPE_CHECKING:
    from risegrad.core.attachment import Attachment, attach
    from risegrad.core.blocks import Blocks
    from risegrad.core.rise_rule import shape
    from risegrad.core.shapers import CovarianceNoise, IsotropicNoise, Rise, ScaledFO
    from risegrad.curvature.diagnosis.diagnose import diagnose
    from risegrad.curvature.memory.informed import Informed
    from risegrad.curvature.memory.memory import Memory
    from risegrad.curvature.memory.remembering import remember
    from risegrad.curvature.memory.retraction import retract
    from risegrad.keeping.dreams import dreamed
    from risegrad.keeping.keep import keep
    from risegrad.keeping.keeper import Keeper
    from risegrad.lab.frontier.frontier_search import frontier

__version__ = "0.1.0"

__all__ = [
    "Attachment",
    "Blocks",
    "CovarianceNoise",
    "Informed",
    "IsotropicNoise",
    "Keeper",
    "Memory",
    "Rise",
    "ScaledFO",
    "attach",
    "diagnose",
    "dreamed",
    "frontier",
    "keep",
    "remember",
    "retract",
    "shape",
]

# A module must not have the name of a function here, or importing it would hide the function.
_HOMES = {
    "Attachment": "core.attachment",
    "Blocks": "core.blocks",
    "CovarianceNoise": "core.shapers",
    "Informed": "curvature.memory.informed",
    "IsotropicNoise": "core.shapers",
    "Keeper": "keeping.keeper",
    "Memory": "curvature.memory.memory",
    "Rise": "core.shapers",
    "ScaledFO": "core.shapers",
    "attach": "core.attachment",
    "diagnose": "curvature.diagnosis.diagnose",
    "dreamed": "keeping.dreams",
    "frontier": "lab.frontier.frontier_search",
    "keep": "keeping.keep",
    "remember": "curvature.memory.remembering",
    "retract": "curvature.memory.retraction",
    "shape": "core.rise_rule",
}

__getattr__ = lookup(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
