"""Where each task of a text stream comes from: the pool's folders, the hub, or one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from risegrad.common.run_inputs import Hub, Local, Reading
from risegrad.continual.language.streams.benchmark_files import read_folder
from risegrad.continual.language.streams.own_text_files import read_own
from risegrad.continual.language.streams.text_examples import TextSource
from risegrad.continual.language.streams.text_stream_settings import LanguageStreamSettings

if TYPE_CHECKING:
    from risegrad.continual.language.streams.text_hub import Choose, HubTask


def dataset_of(settings: LanguageStreamSettings, name: str) -> HubTask | None:
    """The dataset on the hub that a task comes from; None if it comes from files."""
    from risegrad.continual.language.streams.text_hub import HUB, own_dataset

    own = settings.own.get(name)
    if own is not None:
        return own_dataset(own) if own.hub else None
    return HUB[name] if settings.source == "hub" else None


def read_source(settings: LanguageStreamSettings, name: str, choose: Choose) -> TextSource | None:
    """A task's examples; None where no folder of its name has any."""
    task, dataset = settings.task(name), dataset_of(settings, name)
    if dataset is not None:
        from risegrad.continual.language.streams.text_hub import read_hub

        return read_hub(task, dataset, choose)
    own = settings.own.get(name)
    return read_folder(settings.data, task) if own is None else read_own(name, own)


def texts_of(settings: LanguageStreamSettings) -> dict[str, Reading]:
    """What a stream reads, by the setting that names it: its tasks, no others."""
    found: dict[str, Reading] = {}
    folders: list[str] = []
    for name in settings.order:
        own, dataset = settings.own.get(name), dataset_of(settings, name)
        if dataset is not None:
            place = f"stream.data.{name}" if own is None else f"stream.own.{name}.hub"
            found[place] = Hub(dataset.path, "dataset")
        elif own is not None:
            files = {"path": own.path, "test": own.test}
            found |= {f"stream.own.{name}.{at}": Local(file) for at, file in files.items() if file}
        else:
            folders += settings.task(name).folders
    if folders and settings.data:
        found["stream.data"] = Local(settings.data, tuple(folders))
    return found
