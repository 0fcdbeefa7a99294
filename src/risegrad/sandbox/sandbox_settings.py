"""What one sandbox run is asked to do, checked before anything is computed."""

from dataclasses import dataclass

from risegrad.common.checks import check_number
from risegrad.sandbox.spectra import DEFAULT_SPECTRUM, Spectrum

# Dense d x d curvature and one batch of q directions must fit in memory with room to spare.
LARGEST = 4096
FEWEST_SAMPLES = 640  # the ladder of sample sizes has 7 rungs; the lowest then holds 10 samples


@dataclass(frozen=True)
class SandboxSettings:
    """The arguments of ``rise sandbox``; the defaults are the paper's where it gives them.

    >>> SandboxSettings(q=0)
    Traceback (most recent call last):
    ValueError: q must be an integer >= 1 and <= 4096, got 0
    """

    d: int = 64
    """dimension of panels A-C, exposure and the rotated repeat"""
    q: int = 4
    """random directions per shape"""
    samples: int = 24_000
    """Monte Carlo samples per measured point"""
    seed: int = 0
    spectrum: str = DEFAULT_SPECTRUM
    large_d: int = 256
    """dimension of panel D"""
    block: int = 16
    """block size of panel D; divides ``large_d``"""
    steps: int = 40
    """steps of the trajectory"""

    def __post_init__(self) -> None:
        for name, least, most in (
            ("d", 2, LARGEST),
            ("q", 1, LARGEST),
            ("large_d", 2, LARGEST),
            ("block", 1, LARGEST),
            ("samples", FEWEST_SAMPLES, 10**9),
            ("seed", 0, 2**63 - 1),
            ("steps", 1, 10_000),
        ):
            check_number(name, getattr(self, name), at_least=least, at_most=most, whole=True)
        if self.large_d % self.block:
            raise ValueError(
                f"block must divide large_d={self.large_d} without remainder, got {self.block}"
            )
        curvature = Spectrum.parse(self.spectrum)
        for d in (self.d, self.large_d):
            curvature.values(d)
