"""Gradients estimated from losses alone: two-point SPSA with q queries, and its relatives.

Everything happens in place and from seeds. Parameters, modules and the global random state are
left as they were found; only ``.grad`` is written, so that any torch optimizer can step.
"""

from risegrad.zeroth_order.line_walk import RESTORES, Restore
from risegrad.zeroth_order.spsa import VARIANTS, SpsaEstimate, SpsaSettings, Variant, spsa

__all__ = [
    "RESTORES",
    "VARIANTS",
    "Restore",
    "SpsaEstimate",
    "SpsaSettings",
    "Variant",
    "spsa",
]
