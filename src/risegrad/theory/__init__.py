"""The paper's theory as pure functions: float64 tensors in and out, batched where natural.

Every function names the equation or theorem it states; ``docs/theory.md`` maps all of them.
"""

from risegrad.theory import (
    block_scores,
    blockwise,
    certificate,
    deviation,
    exposure,
    identities,
    informed,
    keep,
    progress,
    shapes,
)
from risegrad.theory.block_scores import *
from risegrad.theory.blockwise import *
from risegrad.theory.certificate import *
from risegrad.theory.deviation import *
from risegrad.theory.exposure import *
from risegrad.theory.identities import *
from risegrad.theory.informed import *
from risegrad.theory.keep import *
from risegrad.theory.progress import *
from risegrad.theory.shapes import *

__all__ = [
    *block_scores.__all__,
    *blockwise.__all__,
    *certificate.__all__,
    *deviation.__all__,
    *exposure.__all__,
    *identities.__all__,
    *informed.__all__,
    *keep.__all__,
    *progress.__all__,
    *shapes.__all__,
]
