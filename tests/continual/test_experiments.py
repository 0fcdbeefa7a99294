"""The experiment files that come with the package: fair comparisons, and every row can run."""

import json
import re
from pathlib import Path

import pytest

from continual.language.tiny_text import save_model, write_task
from riselab.common.settings import override
from riselab.continual.host import silent
from riselab.continual.runs import perform, read_config
from riselab.experiments import file
from riselab.experiments.cells import choose, expand
from riselab.experiments.file import load_experiment

TRAINING = (
    "epochs", "steps", "optimizer", "momentum", "weight_decay", "schedule", "warmup", "clip",
)  # fmt: skip
"""What must not differ between rules without a reason; learning rates are chosen for each."""


def cells(name, *overrides):
    return expand(load_experiment(name, ["seeds=[0]", *overrides]), read_config)


def training_of(cell):
    groups = {
        f"{group}.{key}": cell.config.get(group, {}).get(key)
        for group in ("head", "adapter")
        for key in TRAINING
    }
    # What chooses is scored on validation data, and trains like the rest.
    loop = {key: value for key, value in cell.config["loop"].items() if key != "score_on"}
    return json.dumps(groups | {"loop": loop}, sort_keys=True)


@pytest.mark.parametrize("name", sorted(file.experiments()))
def test_rules_are_compared_with_the_same_training_or_the_row_says_why(name):
    found = cells(name)
    shared = {training_of(cell): cell.row.label for cell in found if not cell.row.why}
    assert len(shared) == 1, f"{list(shared.values())} train differently and do not say why"
    stale = [cell.row.label for cell in found if cell.row.why and training_of(cell) in shared]
    assert not stale, f"{stale} give a reason for nothing"


SMALL_IMAGES = (
    "stream.name=digits", "stream.image_size=8", "stream.base=2", "stream.increment=2",
    "stream.classes=4", "stream.train_per_class=3", "stream.test_per_class=2",
    "model.name=vit_tiny_patch16_224", "model.pretrained=false", "model.width=16",
    "model.depth=12", "model.heads=2", "model.patch=4", "model.adapter_width=4",
    "head.epochs=1", "adapter.epochs=1", "loop.batch=6", "loop.workers=0", "loop.device=cpu",
)  # fmt: skip
"""Twelve blocks, because patterns name them."""


@pytest.mark.parametrize(
    "cell",
    [
        *cells("table1-cifar100-inc5", *SMALL_IMAGES),
        *cells("table3-imagenet-r-inc5", *SMALL_IMAGES),
    ],
    ids=lambda cell: cell.row.label,
)
def test_every_row_of_the_vision_tables_runs(cell, tmp_path):
    found = perform(read_config(cell.settings), tmp_path, silent)
    assert len(found["scores"]["accuracy"]["matrix"]) == 2


def differences(cell):
    return cell.row.label, cell.config["host"], cell.config["rule"], cell.config["additions"]


def test_the_vision_tables_have_the_same_rows():
    first, *others = (
        [differences(cell) for cell in cells(f"table1-{stream}")]
        for stream in ("cifar100-inc5", "imagenet-r-inc5", "domainnet-inc69")
    )
    assert others == [first, first]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    root = tmp_path_factory.mktemp("texts")
    for task in ("SST-2", "RTE"):
        write_task(root / "data", task, train=4, test=2)
    save_model(root / "t5")
    return (
        "stream.name=tiny", 'stream.tasks=["SST-2", "RTE"]', f"stream.data={root / 'data'}",
        f"model.weights={root / 't5'}", "model.rank=2", "model.source_length=64",
        "model.target_length=4", "host.zero_shot=false", "loop.batch=4", "loop.workers=0",
        "loop.precision=float32", "loop.device=cpu",
    )  # fmt: skip


def labels(name):
    return [cell.row.label for cell in cells(name)]


@pytest.mark.parametrize("label", labels("table2-order1"))
def test_every_row_of_the_language_tables_runs(label, texts, tmp_path):
    (cell,) = (cell for cell in cells("table2-order1", *texts) if cell.row.label == label)
    found = perform(read_config(cell.settings), tmp_path, silent)
    assert len(found["scores"]["exact_match"]["matrix"]) == 2


def test_the_language_tables_have_the_same_rows():
    orders = [labels(f"table2-order{n}") for n in (1, 2, 3)]
    assert orders[0] == orders[1] == orders[2]


LARGE = [name for name in file.experiments() if load_experiment(name).gpu]


@pytest.mark.parametrize("name", LARGE)
def test_a_gpu_file_runs_the_paper_s_rows_by_default_and_says_what_they_cost(name):
    experiment = load_experiment(name)
    cost = " ".join(experiment.description.split()[:40])
    assert re.match(r"By estimate \d+ hours on one A800 .*\(all rows \d+\).* \d+ GB", cost)
    every = expand(experiment, read_config)
    first = choose(every, (), experiment.default)
    assert {cell.row.label for cell in first} == {c.row.label for c in every if c.row.paper}
    assert every[: len(first)] == first
    assert choose(every, ["all"], experiment.default) == every
    (label,) = {cell.row.label for cell in choose(every, [first[0].row.label], experiment.default)}
    assert label == first[0].row.label
    rules = {(cell.config["rule"]["name"], cell.config["rule"]["norm_matched"]) for cell in every}
    if name.startswith(("table1", "table2")):
        assert {("informed", False), ("keep", False), ("zo", True)} <= rules
        assert any(a["name"] == "replay" for cell in every for a in cell.config["additions"])


GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "reproduce.md"
FILES = {"vision": "table1-domainnet-inc69", "language": "table2-order1"}


def choices():
    """The guide's tables: the domain, what was chosen and what changes it, as assignments."""
    domain, found = "", []
    for line in GUIDE.read_text(encoding="utf-8").splitlines():
        columns = [column.strip() for column in line.strip("|").split("|")]
        if len(columns) == 4 and columns[1] == "the paper":
            domain = columns[0]
        elif len(columns) == 4 and domain and "---" not in columns[0]:
            here, change = (re.findall(r"`([a-z_]+\.[a-z_]+=[^`]+)`", text) for text in columns[2:])
            found.append((domain, columns[0], here, change))
    return found


@pytest.mark.parametrize(("domain", "what", "here", "change"), choices())
def test_what_the_guide_says_was_chosen_was_and_can_be_changed(domain, what, here, change):
    configs = [cell.config for cell in cells(FILES[domain])]
    for assignment in here:
        section, key = assignment.partition("=")[0].split(".")
        value = override({}, assignment)[section][key]
        assert any(config[section].get(key) == value for config in configs), assignment
    for assignment in change:
        section, key = assignment.partition("=")[0].split(".")
        changed = cells(FILES[domain], assignment)
        assert [cell.config[section][key] for cell in changed] != [c[section][key] for c in configs]


def test_the_guide_names_what_the_paper_leaves_open():
    text = " ".join(what for _, what, _, _ in choices())
    for word in (
        "momentum",
        "blocks",
        "T5",
        "weights",
        "Learnable",
        "queries",
        "DomainNet",
        "epochs",
    ):
        assert word in text
