"""What the lab runs: a module with a few functions, ``riselab.continual.runs`` but in tests."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

DEFAULT = ""
"""The name of a module that does the runs in place of ``riselab.continual.runs``, as tests do."""

Report = Callable[[dict[str, Any]], None]


class Workload(Protocol):
    """A module may also have two functions that are used where they are there.

    ``needs(settings, known)``: a mapping of ``missing`` (a sentence for everything that a run needs
    and is not there, with the way to get it), ``bytes`` (room for its checkpoints) and ``device``
    (torch's name of its kind, and in words). ``known`` is a dictionary in which it may keep what
    runs of one grid share.
    ``fetch(settings)``: download what runs would else download at once.
    ``seconds(settings)``: how long a run would take here, from a few timed steps.
    """

    def read_config(self, plain: Mapping[str, Any]) -> Any:
        """The settings as a frozen dataclass; a ``ValueError`` names the place of a mistake.

        Their method ``reads`` says what a run reads, by the dotted place of the setting that names
        it; ``riselab.common.inputs`` has the kinds of things to read. Without one, a run reads
        nothing.
        """

    def estimate(self, settings: Any) -> dict[str, Any]:
        """How much work a run is, in counts that add up over runs."""

    def perform(self, settings: Any, folder: Path, report: Report) -> dict[str, Any]:
        """One run; resumes from what it left in ``folder`` before. Returns the record's result."""


def load(name: str = "") -> Workload:
    """The module that does the runs; imported now, since it brings torch and all hosts."""
    if not (name or DEFAULT):
        from riselab.continual import runs

        return runs
    try:
        return cast(Workload, importlib.import_module(name or DEFAULT))
    except ImportError as error:
        raise RuntimeError(
            f"the workload {name or DEFAULT!r} cannot be imported: {error}"
        ) from error
