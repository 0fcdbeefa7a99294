"""A text task of one's own: what an experiment file says of it."""

from __future__ import annotations

from dataclasses import dataclass

from risegrad.common.declared_fields import Checked

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")


@dataclass(frozen=True)
class OwnTextTask(Checked):
    """A task under any name: where its examples are, and which columns hold texts and labels."""

    path: str = ""
    """A folder in the benchmark's form, or a CSV, TSV, JSON, JSON lines or Parquet file (all but
    Parquet also as ``.gz``) of training examples."""
    hub: str = ""
    """Instead of ``path``: a dataset on the Hugging Face hub."""
    config: str = ""
    """With ``hub``: the dataset's configuration, if it has several."""
    test: str = ""
    """Of a file: another one with the test examples; without, ``held_out`` of the one is for
    testing. Of a dataset: its split for testing; empty: ``test``."""
    text: str = "text"
    """The column of texts."""
    label: str = "label"
    """The column of labels: their names, or whole numbers from 0 that count through ``labels``."""
    labels: tuple[str, ...] = ()
    """The names of all labels; empty: ``labels.json`` of a folder, a dataset's own names, or all
    that occur in the training examples, sorted."""
    instruction: str = ""
    """What the prompt asks of a model that writes; empty: what the topic is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.path) == bool(self.hub):
            raise ValueError(
                "a task needs either path (a folder in the benchmark's form, or a file: "
                f"{', '.join(TABLES)}) or hub (a dataset), with text and label, the names of its "
                f"columns, and labels; got path={self.path!r}, hub={self.hub!r}"
            )
        for name, column in (("text", self.text), ("label", self.label)):
            if not column:
                raise ValueError(f"{name} must be the name of a column, got ''")
        if self.config and not self.hub:
            raise ValueError(f"config is of a dataset on the hub, got {self.config!r} with a path")
        if len(set(self.labels)) < len(self.labels):
            raise ValueError(f"labels must be different, got {', '.join(self.labels)}")
