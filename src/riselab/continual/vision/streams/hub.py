"""Images from Hugging Face ``datasets``: a name on the hub, or files of the same kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
from torch import Tensor

from risegrad.common.imports import need
from riselab.continual.vision.streams.images import Images, ImageSource, decode, hold_out

TEST_SPLITS = ("test", "validation", "valid", "val")


@final
class HubImages(Images):
    """The rows of one split, decoded when they are asked for."""

    def __init__(self, rows: Any, column: str, labels: Any, names: list[str], where: str) -> None:
        super().__init__(labels, names)
        self._rows, self._column, self._where = rows, column, where

    def load(self, index: int) -> Tensor:
        cell = self._rows[index][self._column] or {}
        return decode(cell.get("bytes") or Path(cell.get("path") or ""), self.where(index))

    def where(self, index: int) -> str:
        file = (self._rows[index][self._column] or {}).get("path")
        return f"row {index} of {self._where}" + (f", {file}" if file else "")


def hub(data: str, image_column: str, label_column: str, test_fraction: float) -> ImageSource:
    """A hub name; a folder of ``save_to_disk``, of parquet files or of images; a parquet file.

    Testing is on the split "test", or else "validation"; a dataset without either is split by a
    fixed seed.
    """
    splits = _splits(data)
    test = next((name for name in TEST_SPLITS if name in splits), "")
    if "train" in splits and test:
        train, tested = (
            _images(splits[name], f"{data} ({name})", image_column, label_column, splits["train"])
            for name in ("train", test)
        )
        return ImageSource(train, tested)
    if len(splits) > 1:
        raise ValueError(
            f"{data} must have a split train and one of {', '.join(TEST_SPLITS)}, or one split "
            f"only, got {', '.join(splits)}"
        )
    name, rows = next(iter(splits.items()))
    whole = _images(rows, f"{data} ({name})", image_column, label_column, rows)
    return hold_out(whole, test_fraction)


def _splits(data: str) -> dict[str, Any]:
    datasets = need("datasets", "vision")
    try:
        found = _load(datasets, data)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise FileNotFoundError(
            f"no dataset {data!r}: nothing at {Path(data).resolve()} that datasets can read, and "
            f"not on the hub or not reachable ({type(error).__name__}: {error}); give a hub name, "
            "a folder made by save_to_disk, a folder of images or a parquet file as data"
        ) from error
    return dict(found) if isinstance(found, datasets.DatasetDict) else {"all": found}


def _load(datasets: Any, data: str) -> Any:
    path = Path(data).expanduser()
    data = str(path) if path.exists() else data
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return datasets.load_from_disk(data)
    if path.suffix == ".parquet" and path.is_file():
        return datasets.load_dataset("parquet", data_files=data)
    return datasets.load_dataset(data)


def _images(rows: Any, where: str, image: str, label: str, train: Any) -> HubImages:
    datasets = need("datasets", "vision")
    image = _column("image_column", image or "image", rows, where)
    label = _column("label_column", label or "label", rows, where)
    labels, names = _labels(rows, train, label)
    undecoded = rows.select_columns([image]).cast_column(image, datasets.Image(decode=False))
    return HubImages(undecoded, image, labels, names, where)


def _column(setting: str, name: str, rows: Any, where: str) -> str:
    if name not in rows.features:
        there = (f"{column} ({type(kind).__name__})" for column, kind in rows.features.items())
        raise ValueError(
            f"{setting} must be a column of {where}, got {name!r}; there are {', '.join(there)}"
        )
    return name


def _labels(rows: Any, train: Any, column: str) -> tuple[Any, list[str]]:
    """Class ids and names. Strings get the alphabetical places of those in the training split."""
    values = np.asarray(list(rows[column]))
    feature = train.features[column]
    if names := getattr(feature, "names", None):
        return values, list(names)
    known = np.unique(np.asarray(list(train[column])))
    if unknown := sorted(set(values.tolist()) - set(known.tolist())):
        raise ValueError(f"every label must be in the training split too, got {unknown[:5]}")
    return np.searchsorted(known, values), [str(name) for name in known]
