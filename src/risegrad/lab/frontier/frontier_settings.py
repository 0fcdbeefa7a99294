"""What a search for the frontier may spend and which methods it tries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from risegrad.common.declared_fields import Checked, Count, Limits, Positive

OUT = "out/frontier"


@dataclass(frozen=True)
class FrontierSettings(Checked):
    """Time, methods and sizes of the grid; what takes too long is cut, and that is said."""

    minutes: Positive = 20.0
    """The time for all runs, those of an earlier and interrupted command included."""
    methods: tuple[str, ...] = ()
    """Names of ``METHODS``; empty: the usual ones."""
    full: bool = False
    """Texts: train all weights of the model instead of a LoRA."""
    out: str = OUT
    """The folder of runs, page and figure. The same folder goes on where it stopped."""
    seeds: Annotated[int, Limits(at_least=1, at_most=20)] = 3
    """At most so many; an interval needs two."""
    rates: Annotated[int, Limits(at_least=2, at_most=5)] = 5
    """At most so many learning rates of each method."""
    epochs: Count = 0
    """Passes over the new data; 0: one for texts, five for images and own problems."""
    teach: Count = 20
    """Images: in how many epochs the network learns what is to be kept, before anything is
    compared; 0: it knows it already."""
    examples: Count = 0
    """Training examples of each set; 0: as many as the time allows."""
    changes: tuple[str, ...] = ()
    """``section.key=value`` of any setting of the runs, such as ``model.rank=16``."""
