"""Spectra of the retention curvature, written as short texts such as ``powerlaw:1``.

Every spectrum is sorted from large to small and scaled to average one, so that all damages are in
units of the average curvature. The paper does not give its spectrum; the choice of the default is
ours: ``lambda_i ~ 1/i``, a few sensitive directions over a long tail.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DEFAULT_SPECTRUM = "powerlaw:1"
KINDS = (
    "powerlaw:P (i**-P, P > 0)",
    "logspace:DECADES (DECADES > 0)",
    "spiked:K,RATIO (K values RATIO times the rest)",
    "file:PATH (numbers >= 0)",
)


@dataclass(frozen=True)
class Spectrum:
    """A named family of eigenvalues: ``values(d)`` gives ``d`` of them, average one.

    >>> Spectrum.parse("powerlaw:1").values(3)
    tensor([1.6364, 0.8182, 0.5455], dtype=torch.float64)
    """

    text: str
    shape: Callable[[int], Tensor]

    @classmethod
    def parse(cls, text: str) -> "Spectrum":
        """Read ``kind:parameters``; an unknown kind or a bad parameter is an error that says so."""
        kind, _, parameters = text.partition(":")
        if kind not in _READERS:
            raise ValueError(f"spectrum must be one of {'; '.join(KINDS)}; got {text!r}")
        return cls(text, _READERS[kind](text, parameters))

    def fits(self, d: int) -> bool:
        """Whether there are eigenvalues for this dimension: K spikes need more than K."""
        try:
            self.values(d)
        except ValueError:
            return False
        return True

    def values(self, d: int) -> Tensor:
        """``d`` eigenvalues, large to small, average one, float64."""
        raw = self.shape(d).to(torch.float64).sort(descending=True).values
        if not raw[0] > raw[-1]:
            raise ValueError(
                f"spectrum must have at least two different values, got {self.text!r} at d={d}: "
                "a flat curvature has no anisotropy to contract"
            )
        return raw / raw.mean()


def _number(text: str, parameters: str, what: str) -> float:
    try:
        value = float(parameters)
    except ValueError:
        value = float("nan")
    if not 0 < value < 100:
        raise ValueError(f"spectrum {what} must be a number in (0, 100), got {text!r}")
    return value


def _powerlaw(text: str, parameters: str) -> Callable[[int], Tensor]:
    power = _number(text, parameters, "powerlaw:P: P")
    return lambda d: torch.arange(1, d + 1, dtype=torch.float64) ** -power


def _logspace(text: str, parameters: str) -> Callable[[int], Tensor]:
    decades = _number(text, parameters, "logspace:DECADES: DECADES")
    return lambda d: torch.logspace(0, -decades, d, dtype=torch.float64)


def _spiked(text: str, parameters: str) -> Callable[[int], Tensor]:
    head, _, tail = parameters.partition(",")
    try:
        count, ratio = int(head), float(tail)
    except ValueError:
        count, ratio = 0, 0.0
    if count < 1 or not 1 < ratio < float("inf"):
        raise ValueError(
            f"spectrum spiked:K,RATIO: K must be an integer >= 1, RATIO > 1, got {text!r}"
        )

    def shape(d: int) -> Tensor:
        if count >= d:
            raise ValueError(f"spectrum spiked:K,RATIO: K must be below d={d}, got {text!r}")
        return torch.where(torch.arange(d) < count, ratio, 1.0)

    return shape


def _file(text: str, parameters: str) -> Callable[[int], Tensor]:
    """Numbers separated by blanks, commas or newlines, read as quantiles of the spectrum.

    A panel that needs another dimension than the file has gets the sorted values interpolated.
    """
    try:
        words = Path(parameters).read_text(encoding="utf-8").replace(",", " ").split()
        values = torch.tensor([float(word) for word in words], dtype=torch.float64)
    except (OSError, ValueError) as error:
        raise ValueError(f"spectrum file:PATH: cannot read {parameters!r} ({error})") from error
    if len(values) < 2 or not bool(torch.isfinite(values).all() and (values >= 0).all()):
        raise ValueError(
            f"spectrum file:PATH must hold at least two finite numbers >= 0, got {text!r} "
            f"with {len(values)} numbers"
        )
    ordered = values.sort(descending=True).values[None, None]

    def shape(d: int) -> Tensor:
        resized = torch.nn.functional.interpolate(ordered, d, mode="linear", align_corners=True)
        return resized[0, 0]

    return shape


_READERS: dict[str, Callable[[str, str], Callable[[int], Tensor]]] = {
    "powerlaw": _powerlaw,
    "logspace": _logspace,
    "spiked": _spiked,
    "file": _file,
}
