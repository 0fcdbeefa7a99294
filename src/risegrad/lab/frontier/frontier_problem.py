"""From a person's model and data to the settings that all runs of a search share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from risegrad.lab.frontier.frontier_methods import CLIP
from risegrad.lab.frontier.frontier_settings import FrontierSettings

TEXT_FILES = tuple(f"{stem}.json{end}" for stem in ("train", "test") for end in ("", ".gz"))
TEXT_HOSTS = {
    "seq2seq": ("seq-lora",),
    "decoder": ("seq-lora",),
    "encoder": ("label-encoder", "seq-lora"),
}
"""By kind of language model: its host, the first that there is."""
CUT_TEXTS, CUT_IMAGES = ("train_size", "test_size"), ("train_per_class", "test_per_class")
"""Settings of the streams that limit how many examples there are."""
FULL_SCALES = {"adamw": 0.1}
"""For all weights of a text model: AdamW moves each of them by about its rate in every step."""
FULL_MEMORY = {"rank": 64}
"""What ``remember`` keeps of such models, too: all eigenpairs take minutes and slow every step."""
SMALL = 32
"""Height and width of image files for the small network."""


@dataclass(frozen=True)
class FrontierProblem:
    """What is kept and learned, and by which model; ``sections`` are those of an experiment."""

    title: str
    domain: str
    sections: dict[str, Any]
    lora: bool = False
    scales: dict[str, float] = field(default_factory=dict)
    """by optimizer, of its learning rates: those of large pretrained networks are smaller"""
    cuts: tuple[str, ...] = ()
    """settings of the stream that limit training and test examples; none: they cannot be cut"""
    given: dict[str, Path] = field(default_factory=dict)
    """by the names that the stream knows them by: where the data are"""
    memory: dict[str, Any] = field(default_factory=dict)
    """settings of the memory, for runs that have one"""

    def link(self, out: Path) -> Path:
        """A folder in which the given data lie side by side, as one stream wants them."""
        folder = out / "data"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.is_symlink():
                old.unlink()
        for name, path in self.given.items():
            (folder / name).symlink_to(path.absolute(), target_is_directory=path.is_dir())
        return folder


def problem_of(
    model: str | Callable[[int], Any],
    keep: Sequence[str],
    new: Sequence[str],
    settings: FrontierSettings,
) -> FrontierProblem:
    """Texts, images, or a function that makes everything."""
    if callable(model) or (":" in model and not Path(model).exists()):
        return _own(model, keep, new, settings)
    if not keep or not new:
        missing = "keep" if not keep else "new"
        raise ValueError(f"{missing} must name at least one set of data, got none")
    kinds = {place: _kind(Path(place).expanduser()) for place in (*keep, *new)}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{place} ({kind})" for place, kind in kinds.items())
        raise ValueError(f"keep and new must be of one kind, got {told}")
    if len(kinds) < len(keep) + len(new):
        raise ValueError("keep and new must be different sets of data, got one twice")
    make = _texts if "texts" in kinds.values() else _images
    return make(model, keep, new, settings)


def _kind(path: Path) -> str:
    if not path.exists():
        raise ValueError(f"there are no data at {str(path)!r}")
    if path.suffix == ".npz":
        return "images"
    if path.is_dir() and any((path / name).is_file() for name in TEXT_FILES):
        return "texts"
    if path.is_dir() and any(entry.is_dir() for entry in path.iterdir()):
        return "images"
    raise ValueError(
        f"data must be a folder of texts (train.json and test.json), an .npz of images or a folder "
        f"of images (CLASS/* or train/CLASS/*), got {str(path)!r}"
    )


def _title(learner: str, new: Sequence[str], keep: Sequence[str]) -> str:
    names = [", ".join(Path(place).stem for place in places) for places in (new, keep)]
    return f"{learner} learns {names[0]}: what is left of {names[1]}?"


def _texts(
    model: str, keep: Sequence[str], new: Sequence[str], settings: FrontierSettings
) -> FrontierProblem:
    given = {Path(place).name: Path(place).expanduser() for place in (*keep, *new)}
    if any(change.startswith("model.trains") for change in settings.changes):
        raise ValueError("model.trains cannot be set: it is full (--full) that chooses all weights")
    if len(given) < len(keep) + len(new):
        raise ValueError("folders of texts must have different names, which are those of the tasks")
    folder = Path(model).expanduser()
    place = {"weights": str(folder)} if folder.is_dir() else {"name": model}
    trains = {"trains": "all"} if settings.full else {}
    sections = {
        "stream": {"name": "frontier", "tasks": list(given), "known": len(keep)},
        "model": place | {"source_length": 256, "cut": "text"} | trains,
        "host": {"name": _text_host(model)},
        "adapter": {"epochs": settings.epochs or 1, "clip": CLIP},
        "loop": {"batch": 8},
    }
    learner = f"{folder.name} (all weights)" if settings.full else folder.name
    problem = FrontierProblem(
        _title(learner, new, keep), "language", sections, not settings.full, {}, CUT_TEXTS, given
    )
    return replace(problem, scales=FULL_SCALES, memory=FULL_MEMORY) if settings.full else problem


def _text_host(model: str) -> str:
    from risegrad.continual.language.hosts.host_names import SUMMARIES
    from risegrad.continual.language.language_models import kind_of_place

    return next(host for host in TEXT_HOSTS[kind_of_place(model)] if host in SUMMARIES)


def _images(
    model: str, keep: Sequence[str], new: Sequence[str], settings: FrontierSettings
) -> FrontierProblem:
    from risegrad.continual.vision.small_network import MLP

    _check_not_full(model, settings)
    paths = [Path(place).expanduser() for place in (*keep, *new)]
    given = {f"{number:02d}-{path.name}": path for number, path in enumerate(paths)}
    small = model == MLP
    budget = {
        "epochs": settings.epochs or 5, "schedule": "constant", "weight_decay": 0.0, "clip": CLIP,
    }  # fmt: skip
    sections = {
        "stream": {
            "name": "frontier", "source": "sessions", "kind": "domains", "known": len(keep),
            "augment": "none", "test_view": "direct",
            "image_size": _side(paths[0]) if small else 224,
        },
        "model": {"name": model, "pretrained": not small, "base_epochs": settings.teach,
                  "base_lr": 3e-3 if small else 1e-4},
        "host": {"name": "fine-tune"},
        "head": budget,
        "adapter": budget,
    }  # fmt: skip
    scales = {} if small else {"adamw": 0.1, "sgd": 0.1}
    title = _title(Path(model).name, new, keep)
    return FrontierProblem(title, "vision", sections, False, scales, CUT_IMAGES, given)


def _check_not_full(model: object, settings: FrontierSettings) -> None:
    """What changes nothing is a mistake or a wrong hope."""
    if settings.full:
        raise ValueError(
            "full must be left out but for a transformers model with texts: all weights of other "
            f"models train anyway, got it with {model!r}"
        )


def _side(path: Path) -> int:
    """Of the images of an ``.npz``; files of images have all sizes and get a small one."""
    from risegrad.continual.vision.streams.array_sources import npz

    return int(npz(path).train.load(0).shape[-1]) if path.suffix == ".npz" else SMALL


def _own(
    model: str | Callable[[int], Any],
    keep: Sequence[str],
    new: Sequence[str],
    settings: FrontierSettings,
) -> FrontierProblem:
    from risegrad.continual.own_problem import maker, name_of

    _check_not_full(model, settings)
    if keep or new:
        raise ValueError("a function makes its own data: keep and new must be left out")
    name = name_of(model) if callable(model) else model
    maker(name)
    sections = {
        "stream": {"problem": name},
        "host": {"name": "own-model"},
        "adapter": {
            "epochs": settings.epochs or 5, "schedule": "constant", "weight_decay": 0.0,
            "clip": CLIP,
        },
    }  # fmt: skip
    shown = getattr(model, "__name__", model)
    return FrontierProblem(f"{shown}: what is left of what must be kept?", "own", sections)
