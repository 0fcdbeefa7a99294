"""Whether a run has the setting of the paper's figure that it names, and what differs if not.

What the paper says is compared: stream, increment, host, rule and backbone. What it leaves open is
not; ``docs/guides/reproduce.md`` lists that.
"""

from __future__ import annotations

from collections.abc import Iterator

from risegrad.lab.records.record import Record
from risegrad.lab.report.paper_tables import PaperPlace, PaperTable, plain_name

STREAMS = {"cifar100inc5": "cifar100", "imagenetrinc5": "imagenet-r", "domainnetinc69": "domainnet"}
"""By column: how the names of its streams begin."""

INCREMENTS = {"cifar100inc5": 5, "imagenetrinc5": 5, "domainnetinc69": 69}
ORDERS = ("order1", "order2", "order3")
"""The streams of Table 2, column by column."""

HOSTS = {
    "learnablecls": "learnable-classifier",
    "adaptercls": "adapter-classifier",
    "aperadapter": "aper",
    "ease": "ease",
    "zofc": "zo-fc",
    "zofcrise": "zo-fc-rise",
}
LIMITS = {
    "train_per_class": "training images per class",
    "test_per_class": "test images per class",
    "train_size": "training examples per task",
    "test_size": "test examples per task",
    "classes": "classes",
}


def setting(table: PaperTable, column: int) -> str:
    """The paper's setting in a few words."""
    return f"{table.columns[column]}, {'T5' if table.number == '2' else 'ViT-B/16'}"


def departures(run: Record, place: PaperPlace) -> tuple[str, ...]:
    """What is different here, each in a few words; nothing where the figures can be compared."""
    domain = _language if place.table.number == "2" else _vision
    return (*domain(run, place), *_method(run, place), *_parts(run))


def _vision(run: Record, place: PaperPlace) -> Iterator[str]:
    column = plain_name(place.table.columns[place.column])
    stream, increment, base = (_text(run, "stream", key) for key in ("name", "increment", "base"))
    if stream.partition("-inc")[0] != STREAMS[column]:
        yield f"stream {stream}"
    if increment != str(INCREMENTS[column]):
        yield f"Inc-{increment}"
    if base not in ("0", increment, "not said"):
        yield f"{base} classes in the first session"
    model = _text(run, "model", "name")
    if not model.startswith("vit_base_patch16"):
        yield model if model != "not said" else "model not said"
    if run.setting("model", "pretrained") is False:
        yield "no pretrained weights"


def _language(run: Record, place: PaperPlace) -> Iterator[str]:
    stream = _text(run, "stream", "name")
    if stream != ORDERS[place.column] or run.setting("stream", "tasks"):
        yield f"stream {stream}"
    if left_out := run.setting("stream", "leave_out"):
        yield f"without {', '.join(map(str, left_out))}"
    model = _text(run, "model", "name")
    if "t5" not in model.lower() or "flan" in model.lower():
        yield model if model != "not said" else "model not said"


def _method(run: Record, place: PaperPlace) -> Iterator[str]:
    """Host and rule, which the row of the paper names."""
    row = place.table.rows[place.row]
    host, rule = _text(run, "host", "name"), _text(run, "rule", "name")
    name = plain_name(row.label)
    if place.table.number == "2":
        wanted, by = {"SeqLoRA": "seq-lora", "O-LoRA": "o-lora"}[row.section], name
    elif place.table.number == "3":
        wanted, by = "zo-fc-rise", "rise"
        if f"q{_text(run, 'rule', 'q')}" != name:
            yield f"q = {_text(run, 'rule', 'q')}"
    else:
        wanted = HOSTS[name]
        by = "rise" if name.endswith("rise") else row.section[:2].lower()
    if host != wanted:
        yield f"host {host}"
    if rule not in (by, ""):  # empty: the host's own, which is the paper's
        yield f"rule {rule}"


def _parts(run: Record) -> Iterator[str]:
    for key, words in LIMITS.items():
        value = run.setting("stream", key)
        if isinstance(value, int) and value > 0:
            yield f"{value} {words}"
    if run.setting("loop", "score_on") == "validation":
        yield "scored on validation data"


def _text(run: Record, *keys: str) -> str:
    value = run.setting(*keys)
    return "not said" if value is None else str(value)
