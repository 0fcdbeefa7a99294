"""The register of everything that an experiment file can name, built-in or from plugins.

A plugin is a module that calls the functions below, mostly as decorators: ``host``, ``rule``,
``stream``, ``addition``, ``model`` and ``tracker``. It comes in by an entry point of the group
``risegrad.plugins``, or by name: ``rise run --plugin my.module`` or ``--plugin my_file.py``. What
the package brings along stands in the same registers.

>>> rules = Register("rule")
>>> rules.bring({"fo": object}, {"fo": "the exact gradient"})
>>> rules.summary("fo"), str(rules.origin("fo"))
('the exact gradient', 'risegrad')
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from risegrad.common.imports import explained

GROUP = "risegrad.plugins"
"""The group of entry points that name plugins."""

T = TypeVar("T")


@dataclass(frozen=True)
class PluginOrigin:
    """Who brought an entry: the package itself, or a plugin."""

    name: str
    version: str = ""
    module: str = ""
    """what worker processes import; empty for the package itself"""
    folder: str = ""
    """where that module was found, for processes that search other folders"""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()


OURS = PluginOrigin("risegrad")


@dataclass(frozen=True)
class _Entry(Generic[T]):
    thing: T
    summary: str
    origin: PluginOrigin


class Register(Mapping[str, T]):
    """Things of one kind by name, each with a line about it and where it comes from."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.check: Callable[[Any], None] = lambda thing: None
        """Raises a ``ValueError`` where a plugin's entry would fail in every run."""
        self._entries: dict[str, _Entry[T]] = {}

    def __getitem__(self, name: str) -> T:
        return self._entries[name].thing

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def summary(self, name: str) -> str:
        """One line about an entry."""
        return self._entries[name].summary

    def origin(self, name: str) -> PluginOrigin:
        """Where an entry comes from."""
        return self._entries[name].origin

    def lines(self) -> dict[str, str]:
        """The summaries by name; those from a plugin also name it."""
        return {
            name: f"{one.summary} [{one.origin}]" if one.origin != OURS else one.summary
            for name, one in self._entries.items()
        }

    def bring(self, things: Mapping[str, T], summaries: Mapping[str, str]) -> None:
        """The package's own entries, by name."""
        for name, thing in things.items():
            self._put(name, thing, summaries[name], OURS)

    def add(self, name: str, thing: T, summary: str) -> None:
        """An entry of the plugin that is being loaded, or of the module that calls."""
        if not name or not summary:
            missing = "summary" if name else "name"
            raise ValueError(
                f"a {self.kind} needs a name and a summary, got no {missing}: {thing!r}"
            )
        if not isinstance(name, str) or not name.isprintable() or name != name.strip():
            raise ValueError(f"a {self.kind} must have a name of printable text, got {name!r}")
        self.check(thing)
        self._put(name, thing, summary, _origin_of(thing))

    def _put(self, name: str, thing: T, summary: str, origin: PluginOrigin) -> None:
        there = self._entries.get(name)
        if there is not None and there.origin.name != origin.name:
            raise ValueError(
                f"{self.kind} {name!r} comes from two places, {there.origin} and {origin}: "
                "one of them needs another name"
            )
        self._entries[name] = _Entry(thing, summary, origin)


class RegisterPart(Mapping[str, T]):
    """Those entries of a register that one domain can use; always up to date."""

    def __init__(self, whole: Register[Any], fits: Callable[[Any], bool]) -> None:
        self._whole, self._fits = whole, fits

    def __getitem__(self, name: str) -> T:
        thing: T = self._whole[name]
        if not self._fits(thing):
            raise KeyError(name)
        return thing

    def __iter__(self) -> Iterator[str]:
        return (name for name, thing in self._whole.items() if self._fits(thing))

    def __len__(self) -> int:
        return sum(1 for _ in self)


HOSTS: Register[Any] = Register("host")
RULES: Register[Any] = Register("rule")
STREAMS: Register[Any] = Register("stream")
ADDITIONS: Register[Any] = Register("addition")
MODELS: Register[Any] = Register("model")
TRACKERS: Register[Any] = Register("tracker")

C = TypeVar("C", bound=type[Any])
F = TypeVar("F", bound=Callable[..., Any])


def host(cls: C) -> C:
    """Register a host: a subclass of ``VisionHost`` or ``LanguageHost`` with name and summary."""
    return _named(HOSTS, cls)


def rule(cls: C) -> C:
    """Register a rule: a subclass of ``Rule``, whose own settings are its fields."""
    return _named(RULES, cls)


def stream(cls: C) -> C:
    """Register a stream: a subclass of ``OwnImageStream``, whose own settings are its fields."""
    return _named(STREAMS, cls)


def addition(cls: C) -> C:
    """Register an addition by its settings, a subclass of ``AdditionSettings``."""
    return _named(ADDITIONS, cls)


def tracker(cls: C) -> C:
    """Register a tracker: a subclass of ``Tracker`` with name and summary."""
    return _named(TRACKERS, cls)


def model(name: str, summary: str) -> Callable[[F], F]:
    """Register a function that makes a model of images: ``(settings, image_size, seed)``."""

    def keep(make: F) -> F:
        MODELS.add(name, make, summary)
        return make

    return keep


def _named(register: Register[Any], cls: C) -> C:
    register.add(getattr(cls, "name", ""), cls, getattr(cls, "summary", ""))
    return cls


@dataclass
class _Loaded:
    """Which plugins this process has, by module, and the one that is being imported."""

    origins: dict[str, PluginOrigin] = field(default_factory=dict)
    current: PluginOrigin | None = None


_LOADED = _Loaded()


def loaded() -> tuple[PluginOrigin, ...]:
    """The plugins of this process, in the order in which they came."""
    return tuple(_LOADED.origins.values())


def load(names: Iterable[str] = ()) -> None:
    """Load the installed plugins, then these: dotted names of modules, or ``.py`` files."""
    for point in entry_points(group=GROUP):
        _load_installed(point)
    for name in names:
        origin = _place(name)
        _check_file(name, origin)
        if origin.module not in _LOADED.origins:
            _import(origin)


def ordered() -> list[dict[str, str]]:
    """The plugins of this process as plain data, with which another can ``load_again``."""
    for origin in loaded():
        if origin.module == "__main__":
            raise ValueError(
                f"{origin.name} was registered in __main__, which worker processes cannot import: "
                "put it into a file and name that as a plugin"
            )
    return [asdict(origin) for origin in loaded()]


def load_again(wanted: Iterable[Mapping[str, str]]) -> None:
    """In a worker: the same plugins, in the same versions, as the process that planned the run."""
    load()
    for one in wanted:
        origin = PluginOrigin(**one)
        found = _LOADED.origins.get(origin.module)
        if found is None and not origin.folder:
            raise RuntimeError(f"plugin {origin} is not installed here, where the run happens")
        if found is None:
            found = _import(_described(origin.module, origin.folder))
        if found.version != origin.version:
            raise RuntimeError(
                f"plugin {origin.name} is {found.version} here and was {origin.version} where the "
                "run was planned; the same command plans it again"
            )


def _load_installed(point: EntryPoint) -> None:
    if point.module not in _LOADED.origins:
        name, version = (point.dist.name, point.dist.version) if point.dist else (point.name, "")
        _import(PluginOrigin(name, version, point.module))


def _place(name: str) -> PluginOrigin:
    """What ``--plugin`` names; a file is known by its content, having no version."""
    if name.endswith(".py"):
        path = Path(name).expanduser().absolute()
        if not path.is_file():
            raise ValueError(f"plugin must be a module or a .py file, there is no {name!r}")
        return _described(path.stem, str(path.parent))
    return _described(name, os.getcwd())


def _check_file(name: str, origin: PluginOrigin) -> None:
    """A file is imported by its name alone, so that processes can send each other its classes."""
    there = Path(origin.folder, f"{origin.module}.py")
    if name.endswith(".py") and Path(name).expanduser().resolve() != there.resolve():
        raise ValueError(
            f"plugin {name!r} has the name of another module, {origin.module!r} in "
            f"{origin.folder}: rename the file"
        )


def _described(module: str, folder: str) -> PluginOrigin:
    if module in _LOADED.origins:
        return _LOADED.origins[module]
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise ValueError(f"plugin must be a module or a .py file, there is no {module!r}")
    file = Path(spec.origin)
    inside = module.count(".") + (file.name == "__init__.py")
    return PluginOrigin(module, _content(file), module, str(file.absolute().parents[inside]))


def _content(file: Path) -> str:
    return f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def _import(origin: PluginOrigin) -> PluginOrigin:
    """Import a plugin's module; what it registers meanwhile is its own."""
    before, _LOADED.current = _LOADED.current, origin
    try:
        importlib.import_module(origin.module)
    except ImportError as error:
        raise ImportError(f"plugin {origin} cannot be loaded: {explained(error)}") from error
    except ValueError as error:
        raise ValueError(f"plugin {origin}: {error}") from error
    except (Exception, SystemExit) as error:  # a script that ends, or anything else in its code
        reason = f"{type(error).__name__}: {error}"
        raise RuntimeError(f"plugin {origin} cannot be loaded: {reason}") from error
    finally:
        _LOADED.current = before
    _LOADED.origins[origin.module] = origin
    return origin


def _origin_of(thing: object) -> PluginOrigin:
    """Of the plugin that is being loaded, or else of the module in which the thing is written."""
    if _LOADED.current is not None:
        return _LOADED.current
    module = str(getattr(thing, "__module__", "__main__"))
    if module not in _LOADED.origins:
        file = getattr(sys.modules.get(module), "__file__", None)
        known = file is not None and module != "__main__"
        _LOADED.origins[module] = (
            _described(module, os.getcwd()) if known else PluginOrigin(module, "", module)
        )
    return _LOADED.origins[module]
