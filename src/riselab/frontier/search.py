"""``risegrad.frontier``: what your model forgets at each amount of learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from risegrad.common.imports import need
from riselab.frontier.problem import FrontierSettings

if TYPE_CHECKING:
    from riselab.frontier.found import FoundFrontier

Places = str | Path | Sequence[str | Path]


def frontier(
    model: str | Path | Callable[[int], Any],
    *,
    keep: Places = (),
    new: Places = (),
    minutes: float | None = None,
    methods: Sequence[str] = (),
    out: str | Path = "",
    full: bool = False,
    settings: FrontierSettings | None = None,
    show: bool = True,
) -> FoundFrontier:
    """Train ``model`` on ``new`` by several methods, and measure what it forgets of ``keep``.

    ``model`` is a transformers folder or hub name with chats or texts, ``"mlp"`` or a timm name
    with images, or a function (or its name, ``"module:function"``) that takes a seed and returns an
    ``OwnProblem``, without ``keep`` and ``new``. Data are files of chats (``keep="dreams"`` means
    everyday questions), folders of texts, ``.npz`` files or folders of images. With
    ``full=True`` all weights of a language model train instead of a LoRA. Runs are stored in
    ``out``: the same call continues where it stopped. ``show`` prints a line for each run.
    Everything else is in ``settings``.
    """
    check_extras()
    from riselab.frontier.found import FoundFrontier, write
    from riselab.frontier.grid import FrontierGrid
    from riselab.frontier.problem import problem_of

    given = {"minutes": minutes, "methods": tuple(methods), "out": str(out), "full": full}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value}
    wanted = replace(settings or FrontierSettings(), **changes)
    place = model if callable(model) else str(model)
    problem = problem_of(place, _places(keep), _places(new), wanted)
    grid = FrontierGrid(problem, wanted, say=print if show else lambda line: None)
    grid.run()
    found = FoundFrontier(problem.title, grid.methods, grid.records(), grid.cut, grid.failed())
    return write(found, grid.out)


def check_extras() -> None:
    """What the page at the end needs must be there before the first run."""
    for module in ("altair", "jinja2", "vl_convert"):
        need(module, "lab", "rise frontier")


def _places(given: Places) -> tuple[str, ...]:
    several = (given,) if isinstance(given, str | Path) else given
    return tuple(str(place) for place in several)
