"""The paper's theory as pure functions: float64 tensors in and out, batched where natural.

Every function names the equation or theorem it states; ``docs/theory.md`` maps all of them.
"""

import types

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
    name
    for name, value in vars().items()
    if not name.startswith("_") and not isinstance(value, types.ModuleType)
]
