"""Gradients estimated from losses alone: two-point SPSA with q queries, and its relatives.

Everything happens in place and from seeds. Parameters, modules and the global random state are
left as they were found; only ``.grad`` is written, so that any torch optimizer can step.
"""

from risegrad.zeroth_order.conserve import Conserved, conserve
from risegrad.zeroth_order.spsa import VARIANTS, Estimate, Variant, spsa
from risegrad.zeroth_order.walk import RESTORES, Restore

__all__ = [
    "RESTORES",
    "VARIANTS",
    "Conserved",
    "Estimate",
    "Restore",
    "Variant",
    "conserve",
    "spsa",
]
