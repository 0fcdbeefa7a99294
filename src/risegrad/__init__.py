"""risegrad: randomized shaping of exact gradients, attached to any torch optimizer in one line."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from risegrad.attachment import Attachment, attach
    from risegrad.blocks import Blocks
    from risegrad.curvature.diagnosis import diagnose
    from risegrad.rule import shape
    from risegrad.shapers import CovarianceNoise, IsotropicNoise, Rise, ScaledFO

__version__ = "0.1.0"

__all__ = [
    "Attachment",
    "Blocks",
    "CovarianceNoise",
    "IsotropicNoise",
    "Rise",
    "ScaledFO",
    "attach",
    "diagnose",
    "shape",
]

# Looked up when first used: `rise --help` must not wait for torch. (A module must not have the name
# of a function here, or importing the module would hide the function.)
_HOMES = {
    "Attachment": "attachment",
    "Blocks": "blocks",
    "CovarianceNoise": "shapers",
    "IsotropicNoise": "shapers",
    "Rise": "shapers",
    "ScaledFO": "shapers",
    "attach": "attachment",
    "diagnose": "curvature.diagnosis",
    "shape": "rule",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
