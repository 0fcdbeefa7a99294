"""``[sweep]``: one method at several settings, as rows that belong together."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from riselab.experiments.cells import choose
from riselab.experiments.file import load_experiment, points

from .conftest import cells_of

HEAD = 'name = "x"\ndomain = "counting"\n'
Write = Callable[..., Path]


def rows_of(file: Path) -> list[tuple[str, str, str]]:
    return [(c.row.label, c.row.method, c.row.swept) for c in cells_of(file)]


def test_the_files_sweep_is_that_of_every_row_without_its_own(write: Write) -> None:
    text = "[sweep]\nhost.lr = [1, 0.5]\n"
    text += '[[rows]]\nlabel = "a"\n[[rows]]\nlabel = "b"\nsweep = { "rule.q" = [2, 3] }\n'
    text += '[[rows]]\nlabel = "c"\nrule = { q = 7 }\nsweep = {}\n'
    assert rows_of(write(HEAD + text)) == [
        ("a (lr=1)", "a", "lr=1"), ("a (lr=0.5)", "a", "lr=0.5"),
        ("b (q=2)", "b", "q=2"), ("b (q=3)", "b", "q=3"), ("c", "", ""),
    ]  # fmt: skip


def test_what_a_row_varies_makes_methods_and_what_it_sweeps_their_points(write: Write) -> None:
    text = '[[rows]]\nlabel = "q={rule.q}"\nsweep = { host.lr = [1, 2] }\n'
    text += '[rows.vary]\n"rule.q" = [4, 8]\n'
    assert rows_of(write(HEAD + text)) == [
        ("q=4 (lr=1)", "q=4", "lr=1"), ("q=4 (lr=2)", "q=4", "lr=2"),
        ("q=8 (lr=1)", "q=8", "lr=1"), ("q=8 (lr=2)", "q=8", "lr=2"),
    ]  # fmt: skip


def test_lr_sets_the_rates_of_head_and_adapter_together() -> None:
    assert list(points({"lr": [0.1, 0.2]})) == [
        ({"lr": 0.1}, {"head.lr": 0.1, "adapter.lr": 0.1}),
        ({"lr": 0.2}, {"head.lr": 0.2, "adapter.lr": 0.2}),
    ]


def test_a_record_speaks_of_a_sweep_only_where_there_is_one(write: Write) -> None:
    text = '[[rows]]\nlabel = "a"\nsweep = { host.lr = [1, 2] }\n[[rows]]\nlabel = "b"\n'
    swept, _, plain = (cell.row_plain() for cell in cells_of(write(HEAD + text)))
    assert (swept["method"], swept["swept"]) == ("a", "lr=1")
    assert not {"method", "swept"} & plain.keys()


def test_only_takes_the_name_of_a_method(write: Write) -> None:
    text = '[sweep]\nhost.lr = [1, 2]\n[[rows]]\nlabel = "a"\n[[rows]]\nlabel = "b"\nrule.q = 3\n'
    cells = choose(cells_of(write(HEAD + text)), ["b"])
    assert [cell.row.label for cell in cells] == ["b (lr=1)", "b (lr=2)"]


def test_several_swept_baselines_are_one_reference(write: Write) -> None:
    text = "[sweep]\nhost.lr = [1, 2]\n"
    text += '[[rows]]\nlabel = "a"\nbaseline = true\n'
    text += '[[rows]]\nlabel = "b"\nbaseline = true\nrule.q = 3\n'
    assert [cell.row.baseline for cell in cells_of(write(HEAD + text))] == [True] * 4
    mixed = text + "sweep = {}\n"
    with pytest.raises(ValueError, match="sweep all of its baselines or none"):
        load_experiment(write(HEAD + mixed))


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        ("rul.q = [1]", "sweep.rul.q: unknown"),
        ("rule.q = 3", "sweep.rule.q must be a list of values, got 3"),
        ("lr = [1]\nhead.lr = [2]", "sweep.lr sets head.lr too"),
    ],
)
def test_what_is_no_sweep_is_refused(sweep: str, message: str, write: Write) -> None:
    with pytest.raises(ValueError, match=message):
        load_experiment(write(f'{HEAD}[sweep]\n{sweep}\n[[rows]]\nlabel = "a"\n'))


def test_a_label_cannot_name_what_is_swept(write: Write) -> None:
    text = '[[rows]]\nlabel = "q={rule.q}"\nsweep = { rule.q = [1, 2] }\n'
    with pytest.raises(ValueError, match="out of the label: swept values are added to it"):
        cells_of(write(HEAD + text))


@pytest.mark.parametrize(
    ("name", "count", "baselines"),
    [("turned-digits", 18, {"FO (AdamW)", "FO (SGD)"}), ("demo", 4, {"plain (AdamW)"})],
)
def test_the_demo_is_a_whole_curve_of_every_method(
    name: str, count: int, baselines: set[str]
) -> None:
    from riselab.continual.runs import read_config
    from riselab.experiments.cells import expand

    cells = expand(load_experiment(name), read_config)
    methods = Counter((cell.row.method, cell.row.baseline) for cell in cells)
    assert len(methods) == count
    assert set(methods.values()) == {9}, "three rates with three seeds each"
    assert {name for name, baseline in methods if baseline} == baselines
    for cell in cells:  # the same first task and clipping, and both rates as the sweep says
        assert (cell.config["head"]["clip"], cell.config["adapter"]["clip"]) == (1.0, 1.0)
        assert cell.config["model"]["base_epochs"] == 20
        assert cell.config["head"]["lr"] == cell.config["adapter"]["lr"]
        assert cell.row.swept == f"lr={cell.config['head']['lr']}"
