"""risegrad: keep what a model knows while it learns, in one line for any torch optimizer."""

from typing import TYPE_CHECKING

from risegrad.common.imports import lazy
from risegrad.moved import find_moved_modules

if TYPE_CHECKING:
    from risegrad.core.attachment import Attachment as Attachment
    from risegrad.core.attachment import attach as attach
    from risegrad.core.blocks import Blocks as Blocks
    from risegrad.core.shapers import CovarianceNoise as CovarianceNoise
    from risegrad.core.shapers import IsotropicNoise as IsotropicNoise
    from risegrad.core.shapers import Rise as Rise
    from risegrad.core.shapers import ScaledFO as ScaledFO
    from risegrad.core.shapers import shape as shape
    from risegrad.curvature.diagnosis.diagnose import diagnose as diagnose
    from risegrad.keeping.dreams import dreamed as dreamed
    from risegrad.keeping.keep import keep as keep
    from risegrad.keeping.keeper import Keeper as Keeper
    from risegrad.memory.informed import Informed as Informed
    from risegrad.memory.memory import Memory as Memory
    from risegrad.memory.penalty import retract as retract
    from risegrad.memory.remembering import remember as remember
    from riselab.frontier.search import frontier as frontier

find_moved_modules()

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy(__name__)
