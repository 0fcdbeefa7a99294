"""What one sandbox run is asked to do, checked before anything is computed."""

from dataclasses import dataclass
from typing import Annotated

from risegrad.common.declared_fields import Checked, Limits
from risegrad.sandbox.spectra import DEFAULT_SPECTRUM, Spectrum

# Dense d x d curvature and one batch of q directions must fit in memory with room to spare.
LARGEST = 4096
FEWEST_SAMPLES = 640  # the ladder of sample sizes has 7 rungs; the lowest then holds 10 samples


Dimension = Annotated[int, Limits(at_least=2, at_most=LARGEST)]
SmallCount = Annotated[int, Limits(at_least=1, at_most=LARGEST)]


@dataclass(frozen=True)
class SandboxSettings(Checked):
    """The arguments of ``rise sandbox``; the defaults are the paper's where it gives them.

    >>> SandboxSettings(q=0)
    Traceback (most recent call last):
    ValueError: q must be an integer >= 1 and <= 4096, got 0
    """

    d: Dimension = 64
    """dimension of panels A-C, exposure and the rotated repeat"""
    q: SmallCount = 4
    """random directions per shape"""
    samples: Annotated[int, Limits(at_least=FEWEST_SAMPLES, at_most=10**9)] = 24_000
    """Monte Carlo samples per measured point"""
    seed: Annotated[int, Limits(at_least=0, at_most=2**63 - 1)] = 0
    spectrum: str = DEFAULT_SPECTRUM
    large_d: Dimension = 256
    """dimension of panel D"""
    block: SmallCount = 16
    """block size of panel D; divides ``large_d``"""
    steps: Annotated[int, Limits(at_least=1, at_most=10_000)] = 40
    """steps of the trajectory"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.large_d % self.block:
            raise ValueError(
                f"block must divide large_d={self.large_d} without remainder, got {self.block}"
            )
        curvature = Spectrum.parse(self.spectrum)
        for d in (self.d, self.large_d):
            curvature.values(d)
