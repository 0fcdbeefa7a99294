"""A row's settings by who gave them, because that decides what an unused one means.

What a file or the command line says to all rows is for those that use it; what a row says itself
must be of use to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from risegrad.common.settings import Unused, merge, without
from risegrad.lab.experiments.experiment_file import Table

ReadConfig = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Layers:
    """The file's own tables, the row's with what it varies, and the command line's."""

    shared: Table
    own: Table
    overrides: Table

    def merged(self) -> Table:
        """All layers as one table; the row's own beat the shared, and overrides beat both."""
        return merge(merge(self.shared, self.own), self.overrides)

    def relieved_of(self, places: Iterable[str]) -> "Layers":
        """Without what was said to all rows at these places; what the row itself says stays."""
        gone = set(places)
        shared, overrides = without(self.shared, gone), without(self.overrides, gone)
        return replace(self, shared=shared, overrides=overrides)


def unused_by(plain: Table, read_config: ReadConfig) -> Mapping[str, str]:
    """Places whose settings this row has no use for, and why."""
    try:
        read_config(plain)
    except Unused as error:
        return error.reasons
    except ValueError:  # it comes again when the run is described, with the row's name
        pass
    return {}


def check_use(experiment: str, unused: Sequence[Mapping[str, str]]) -> None:
    """What is said to all rows must be of use to one; ``unused`` has an entry for each row."""
    for place, reason in unused[0].items():
        if all(place in reasons for reasons in unused):
            raise ValueError(f"{experiment}: no row uses {place}, which {reason}")
