"""From a person's model and data to the settings that all runs of a search share."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from risegrad.common.checks import check_choice
from risegrad.common.files import write_bytes
from riselab.common.settings import Checked, Count, Limits, Positive
from riselab.tune.settings import DREAMS, EVERYDAY, TASKS, model_place

SHARES = (0.25, 0.5, 0.75)
"""How far from the start to the trained weights interpolation looks."""

BLOCK = 64
CLIP = 1.0
ADAMW_RATES = (1e-3, 3e-4, 3e-3, 1e-4, 1e-2)
"""The most useful first: with little time only the first three are run."""
SHAPED_RATES = (3e-3, 1e-3, 1e-2, 3e-4, 3e-2)
"""Of rules that keep a part of each step and make up for nothing."""
CHAT_RATES = (1e-3, 3e-4, 2e-3, 6e-4, 4e-3)
DAMPING = 0.1
"""Of informed rows, as the library has it."""
SGD_RATES, SGD_LORA_RATES = (1e-2, 3e-3, 3e-2, 1e-3, 1e-1), (0.1, 0.03, 0.3, 0.01, 0.9)
"""With momentum for whole networks, and without for LoRA, as the lab's language experiments."""


@dataclass(frozen=True)
class FrontierMethod:
    """One curve: what its runs set, and at which rates."""

    label: str
    rates: tuple[float, ...] = ADAMW_RATES
    rule: dict[str, Any] = field(default_factory=lambda: {"name": "fo"})
    optimizer: str = "adamw"
    additions: tuple[dict[str, Any], ...] = ()
    lora_rates: tuple[float, ...] = ()
    """where LoRA needs others"""
    reference: bool = False
    of: str = ""
    """the method whose runs it uses, if it has none itself"""

    @property
    def remembers(self) -> bool:
        """Whether its runs have a memory."""
        return str(self.rule["name"]).startswith("informed")

    def rates_for(self, lora: bool, scale: float) -> tuple[float, ...]:
        """The rates for LoRA or a whole network, in round numbers."""
        given = (self.lora_rates if lora else ()) or self.rates
        return tuple(float(f"{scale * rate:.1g}") for rate in given)

    def row(self, problem: FrontierProblem) -> dict[str, Any]:
        """What the method's runs set."""
        if problem.domain == "chat":
            return {"rule": self.rule}
        budget: dict[str, Any] = {"optimizer": self.optimizer}
        if self.optimizer == "sgd" and problem.lora:
            budget["momentum"] = 0.0
        found = {"rule": self.rule, "adapter": budget, "head": budget}
        if self.remembers and problem.memory:
            found["memory"] = dict(problem.memory)
        return found | ({"additions": list(self.additions)} if self.additions else {})


METHODS: dict[str, FrontierMethod] = {
    "adamw": FrontierMethod("FO (AdamW)", reference=True),
    "sgd": FrontierMethod(
        "FO (SGD)", SGD_RATES, optimizer="sgd", lora_rates=SGD_LORA_RATES, reference=True
    ),
    "rise": FrontierMethod("RISE", SHAPED_RATES, {"name": "rise", "chunk": BLOCK}),
    "keep": FrontierMethod("keep", rule={"name": "keep"}),
    "informed": FrontierMethod(
        "informed", rule={"name": "informed", "match": "progress", "damping": DAMPING}
    ),
    "interpolation": FrontierMethod("interpolation", of="adamw"),
    "rise-update": FrontierMethod(
        "RISE on the update", SHAPED_RATES, {"name": "rise", "chunk": BLOCK, "on": "update"}
    ),
    "covariance-noise": FrontierMethod(
        "covariance noise", SHAPED_RATES, {"name": "covariance-noise", "chunk": BLOCK}
    ),
    "ewc": FrontierMethod(
        "EWC", SHAPED_RATES, additions=({"name": "ewc", "weight": 100.0, "samples": 200},)
    ),
}
USUAL = ("adamw", "sgd", "rise", "keep", "informed", "interpolation")
CHAT_METHODS: dict[str, FrontierMethod] = {
    name: FrontierMethod(label, CHAT_RATES, {"name": name}, reference=name == "plain")
    for name, label in {
        "plain": "plain", "kl": "KL", "replay": "replay", "keep": "keep", "informed": "informed",
        "distill": "pull alone", "dark-replay": "DER++", "rise": "RISE",
    }.items()
}  # fmt: skip
CHAT_USUAL = ("plain", "kl", "replay", "keep")


def chosen(names: Sequence[str], chat: bool = False) -> dict[str, FrontierMethod]:
    """The methods of these names, the usual ones without any; a reference is always there."""
    known, usual = (CHAT_METHODS, CHAT_USUAL) if chat else (METHODS, USUAL)
    for name in names:
        check_choice("methods", name, known)
    wanted = list(names) or list(usual)
    wanted += [known[name].of for name in wanted if known[name].of]
    if not any(known[name].reference for name in wanted):
        wanted.insert(0, next(iter(known)))
    return {name: known[name] for name in known if name in wanted}


@dataclass(frozen=True)
class FrontierSettings(Checked):
    """Time, methods and sizes of the grid; the search says what it left out for lack of time."""

    minutes: Positive = 20.0
    """Time for all runs, those of an earlier, interrupted command included."""
    methods: tuple[str, ...] = ()
    """Names of ``METHODS``, for chats of ``CHAT_METHODS``; empty: the usual ones."""
    full: bool = False
    """Texts and chats: train all weights, not a LoRA, at about a tenth of the rates."""
    out: str = "out/frontier"
    """Folder of runs, page and figure. The same command continues there where it stopped."""
    seeds: Annotated[int, Limits(at_least=1, at_most=20)] = 3
    """At most so many seeds; an interval needs two."""
    rates: Annotated[int, Limits(at_least=2, at_most=5)] = 5
    """At most so many learning rates of each method, 2 to 5."""
    epochs: Count = 0
    """Passes over the new data; 0: one for texts, five for images and own problems. Chats are
    learned in a number of steps, ``adapter.steps``."""
    teach: Count = 20
    """Images: epochs in which the network first learns what to keep; 0: it knows it already."""
    examples: Count = 0
    """Training examples of each set; 0: as many as the time allows."""
    changes: tuple[str, ...] = ()
    """``section.key=value`` of any setting of the runs, such as ``model.rank=16``."""


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
KEPT = "kept"
"""The folder of questions on whose answers the drift is measured."""
SMALL = 32
"""Height and width of image files for the small network."""


@dataclass(frozen=True)
class FrontierProblem:
    """The data to keep and to learn, and the model; ``sections`` are those of an experiment."""

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
    files: dict[str, bytes] = field(default_factory=dict)
    """data that are written for the runs, by their places"""

    def link(self, out: Path) -> Path:
        """A folder in which the given data lie side by side, as one stream wants them."""
        folder = out / "data"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if old.is_symlink():
                old.unlink()
        for name, path in self.given.items():
            (folder / name).symlink_to(path.absolute(), target_is_directory=path.is_dir())
        for name, content in self.files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_bytes(folder / name, content)
        return folder


def problem_of(
    model: str | Callable[[int], Any],
    keep: Sequence[str],
    new: Sequence[str],
    settings: FrontierSettings,
) -> FrontierProblem:
    """Chats, texts, images, or a function that makes everything."""
    if callable(model) or (":" in model and not Path(model).exists()):
        return _own(model, keep, new, settings)
    if not keep or not new:
        missing = "keep" if not keep else "new"
        raise ValueError(f"{missing} must name at least one set of data, got none")
    kinds = {place: _kind(place) for place in (*keep, *new)}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"{place} ({kind})" for place, kind in kinds.items())
        raise ValueError(f"keep and new must be of one kind, got {told}")
    if len(kinds) < len(keep) + len(new):
        raise ValueError("keep and new must be different sets of data, got one twice")
    makers = {"chats": _chats, "texts": _texts, "images": _images}
    return makers[kinds[new[0]]](model, keep, new, settings)


def _kind(place: str) -> str:
    path = Path(place).expanduser()
    if place in (DREAMS, *TASKS) or path.name.endswith((".jsonl", ".jsonl.gz")):
        return "chats"
    if not path.exists():
        raise ValueError(f"there are no data at {place!r}")
    if path.suffix == ".npz":
        return "images"
    if path.is_dir() and any((path / name).is_file() for name in TEXT_FILES):
        return "texts"
    if path.is_dir() and any(entry.is_dir() for entry in path.iterdir()):
        return "images"
    raise ValueError(
        f"data must be a file of chats (.jsonl), a folder of texts (train.json and test.json), an "
        f".npz of images or a folder of images (CLASS/* or train/CLASS/*), got {place!r}"
    )


def _title(learner: str, new: Sequence[str], keep: Sequence[str]) -> str:
    names = [", ".join(Path(place).stem for place in places) for places in (new, keep)]
    return f"{learner} learns {names[0]}: what is left of {names[1]}?"


def _chats(
    model: str, keep: Sequence[str], new: Sequence[str], settings: FrontierSettings
) -> FrontierProblem:
    """What is kept are answers: to the questions of ``keep``, of which every second is for rules
    that use some and the others are measured on; or, with dreams, to questions of ours."""
    from riselab.tune.chats import plain, read_chats, split

    if DREAMS in keep and len(keep) > 1:
        raise ValueError(f"keep must be {DREAMS!r} alone or files of chats, got both")
    files, names = dict[str, bytes](), [Path(place).name.partition(".")[0] for place in new]
    if len({*names}) < len(names):
        raise ValueError("files of new chats must have different names, which are the tasks'")
    for name, place in zip(names, new, strict=True):
        for part, examples in zip(("train", "test"), split(read_chats("new", place)), strict=True):
            files[f"{name}/{part}.jsonl"] = _lines(map(plain, examples))
    rule: dict[str, Any] = {"tokens": 32}
    prompts: list[Any] = [question for question in EVERYDAY for _ in range(2)]
    if keep[0] != DREAMS:
        prompts = [e.prompt for place in keep for e in read_chats("keep", place)]
        rule |= {"old": "prompts", "tokens": 64, "examples": min(60, len(prompts) // 2)}
    zipped = gzip.compress(_lines({"prompt": prompt} for prompt in prompts), mtime=0)
    files[f"{KEPT}/instructions.jsonl.gz"] = zipped
    sections = {
        "stream": {"name": "frontier", "tasks": names, "train_size": settings.examples},
        "model": _model(model, settings),
        "rule": rule,
        # Of questions as long as a person likes, and of nothing else that the domain could measure.
        "abilities": {"new": 0, "longest": 10**6},
    }
    title = f"{Path(model).name} learns {', '.join(names)}: what is left of its other answers?"
    scales = FULL_SCALES if settings.full else {}
    return FrontierProblem(title, "chat", sections, not settings.full, scales, files=files)


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _texts(
    model: str, keep: Sequence[str], new: Sequence[str], settings: FrontierSettings
) -> FrontierProblem:
    given = {Path(place).name: Path(place).expanduser() for place in (*keep, *new)}
    if len(given) < len(keep) + len(new):
        raise ValueError("folders of texts must have different names, which are those of the tasks")
    sections = {
        "stream": {"name": "frontier", "tasks": list(given), "known": len(keep)},
        "model": {"source_length": 256, "cut": "text"} | _model(model, settings),
        "host": {"name": _text_host(model)},
        "adapter": {"epochs": settings.epochs or 1, "clip": CLIP},
        "loop": {"batch": 8},
    }
    title = _title(f"{Path(model).name}{' (all weights)' * settings.full}", new, keep)
    scales, memory = (FULL_SCALES, FULL_MEMORY) if settings.full else ({}, {})
    return FrontierProblem(
        title, "language", sections, not settings.full, scales, CUT_TEXTS, given, memory
    )


def _model(model: str, settings: FrontierSettings) -> dict[str, Any]:
    if any(change.startswith("model.trains") for change in settings.changes):
        raise ValueError("model.trains cannot be set: use full (--full) to train all weights")
    return model_place(model) | ({"trains": "all"} if settings.full else {})


def _text_host(model: str) -> str:
    from riselab.continual.language import SUMMARIES
    from riselab.continual.language.models import kind_of_place

    return next(host for host in TEXT_HOSTS[kind_of_place(model)] if host in SUMMARIES)


def _images(
    model: str, keep: Sequence[str], new: Sequence[str], settings: FrontierSettings
) -> FrontierProblem:
    from riselab.continual.vision.models import MLP

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
            "full is only for transformers models with texts or chats: other models always train "
            f"all weights, got it with {model!r}"
        )


def _side(path: Path) -> int:
    """Of the images of an ``.npz``; files of images have all sizes and get a small one."""
    from riselab.continual.vision.streams.sources import npz

    return int(npz(path).train.load(0).shape[-1]) if path.suffix == ".npz" else SMALL


def _own(
    model: str | Callable[[int], Any],
    keep: Sequence[str],
    new: Sequence[str],
    settings: FrontierSettings,
) -> FrontierProblem:
    from riselab.continual.custom import problem_maker, problem_name

    _check_not_full(model, settings)
    if keep or new:
        raise ValueError("a function makes its own data: keep and new must be left out")
    name = problem_name(model) if callable(model) else model
    problem_maker(name)
    sections = {
        "stream": {"problem": name},
        "host": {"name": "own-model"},
        "adapter": {
            "epochs": settings.epochs or 5, "schedule": "constant", "weight_decay": 0.0,
            "clip": CLIP,
        },
    }  # fmt: skip
    shown = getattr(model, "__name__", model)
    return FrontierProblem(f"{shown}: how much does it forget?", "own", sections)
