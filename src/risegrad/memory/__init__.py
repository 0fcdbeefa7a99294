"""The curvature of what must be kept, in a form that steps, penalties and retraction can use."""

from typing import TYPE_CHECKING

from risegrad.common.imports import lazy

if TYPE_CHECKING:
    from risegrad.memory.factor import Diagonal as Diagonal
    from risegrad.memory.factor import Factor as Factor
    from risegrad.memory.informed import Informed as Informed
    from risegrad.memory.layers import LayerMemory as LayerMemory
    from risegrad.memory.memory import Memory as Memory
    from risegrad.memory.penalty import Anchor as Anchor
    from risegrad.memory.penalty import interpolate as interpolate
    from risegrad.memory.penalty import retract as retract
    from risegrad.memory.remembering import remember as remember
    from risegrad.memory.sides import Bound as Bound
    from risegrad.memory.sides import ParameterSides as ParameterSides

__getattr__, __dir__, __all__ = lazy(__name__)
