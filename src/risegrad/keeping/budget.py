"""How strongly kept examples pull: as much as a budget of drift asks for."""

from __future__ import annotations

import math

EVERY = 4
"""Steps between two measurements of the drift. One costs a forward pass over the examples that are
held out: with the default of 128 examples about a fifth of what pulling at every step costs."""
WEAKEST, STRONGEST = 0.1, 30.0


def strength_after(strength: float, drift: float, budget: float) -> float:
    """Stronger where more was lost than the budget allows, weaker where less was.

    ``strength exp((drift / budget - 1) / 2)``, between 0.1 and 30.

    >>> strength_after(1.0, drift=0.05, budget=0.05)
    1.0
    >>> round(strength_after(1.0, drift=0.15, budget=0.05), 3)
    2.718
    >>> strength_after(1.0, drift=9.0, budget=0.05)
    30.0
    """
    if math.isnan(drift):
        return STRONGEST
    change = math.exp(min((drift / budget - 1) / 2, math.log(STRONGEST / WEAKEST)))
    return min(max(strength * change, WEAKEST), STRONGEST)
