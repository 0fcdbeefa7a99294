"""The curvature of what must be kept, in a form that steps, penalties and retraction can use."""

from typing import TYPE_CHECKING

from risegrad.common.lazy_names import lookup

if TYPE_CHECKING:
    from risegrad.curvature.memory.anchor import Anchor
    from risegrad.curvature.memory.factor import Factor
    from risegrad.curvature.memory.informed import Informed
    from risegrad.curvature.memory.layer_memory import LayerMemory
    from risegrad.curvature.memory.memory import Memory
    from risegrad.curvature.memory.memory_side import Diagonal
    from risegrad.curvature.memory.parameter_sides import Bound, ParameterSides
    from risegrad.curvature.memory.remembering import remember
    from risegrad.curvature.memory.retraction import retract

__all__ = [
    "Anchor",
    "Bound",
    "Diagonal",
    "Factor",
    "Informed",
    "LayerMemory",
    "Memory",
    "ParameterSides",
    "remember",
    "retract",
]

_HOMES = {
    "Anchor": "anchor",
    "Bound": "parameter_sides",
    "Diagonal": "memory_side",
    "Factor": "factor",
    "Informed": "informed",
    "LayerMemory": "layer_memory",
    "Memory": "memory",
    "ParameterSides": "parameter_sides",
    "remember": "remembering",
    "retract": "retraction",
}

__getattr__ = lookup(__name__, _HOMES)
