"""Experiment files: what they say, what is refused, and what a run is called."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from riselab.experiments import file as experiment_library
from riselab.experiments.cells import choose, slug
from riselab.experiments.file import load_experiment

from .conftest import EXPERIMENT, cells_of

HEAD = 'name = "x"\ndomain = "counting"\n'
ROW = '[[rows]]\nlabel = "a"\n'

Write = Callable[..., Path]


def test_rows_and_variants_and_seeds_in_the_order_of_the_file(small: Path) -> None:
    cells = cells_of(small)
    assert [(cell.row.label, cell.seed, cell.order) for cell in cells] == [
        ("FO", 0, 0), ("FO", 1, 0), ("RISE (q=4)", 0, 1), ("RISE (q=4)", 1, 1),
        ("RISE (q=8)", 0, 2), ("RISE (q=8)", 1, 2),
    ]  # fmt: skip
    assert [cell.row.baseline for cell in cells] == [True, True, False, False, False, False]
    assert cells[2].config["rule"] == {"q": 4}
    assert cells[2].config["loop"] == {"steps": 3, "score_on": "test"}
    assert cells[2].config["host"] == {"name": "well", "lr": 0.1}, "those of the dataclass"
    assert len({cell.id for cell in cells}) == 6


def test_a_row_is_merged_over_the_defaults_key_by_key(write: Write) -> None:
    text = '[host]\nname = "talks"\nlr = 0.5\n' + ROW + "host = { lr = 0.25 }\n"
    text += 'section = "ZO"\npaper = { table = "1", row = "ZO-FC", column = "Inc-5" }\n'
    (cell,) = cells_of(write(HEAD + text))
    assert cell.config["host"] == {"name": "talks", "lr": 0.25}
    assert cell.row.section == "ZO"
    assert cell.row.paper is not None
    assert cell.row.paper.column == "Inc-5"


def test_a_label_can_say_what_varies(write: Write) -> None:
    text = '[[rows]]\nlabel = "q={rule.q}"\n[rows.vary]\n"rule.q" = [1, 2]\n"host.lr" = [1, 0.5]\n'
    labels = [cell.row.label for cell in cells_of(write(HEAD + text))]
    assert labels == ["q=1 (lr=1)", "q=1 (lr=0.5)", "q=2 (lr=1)", "q=2 (lr=0.5)"]


def test_overrides_win_over_every_row(small: Path) -> None:
    cells = cells_of(small, "host.lr=2", "loop.steps=7", "seeds=[5]")
    assert {cell.config["host"]["lr"] for cell in cells} == {2.0}
    assert {cell.seed for cell in cells} == {5}


def test_the_id_is_of_the_content_alone(small: Path, write: Write) -> None:
    other = EXPERIMENT.replace("A small one", "Another").replace('"FO"', '"First order"')
    other = other.replace("[loop]\nsteps = 3", "[rule]\nq = 1\n[loop]\nsteps = 3")
    first, second = cells_of(small), cells_of(write(other, "other"))
    assert [cell.id for cell in first] == [cell.id for cell in second]
    assert [cell.id for cell in first] != [cell.id for cell in cells_of(small, "host.lr=3")]


def test_the_same_data_elsewhere_is_the_same_run(write: Write, tmp_path: Path) -> None:
    ids = set()
    for folder in ("here", "there"):
        file = tmp_path / folder / "digits.npz"
        file.parent.mkdir()
        file.write_text("")
        (cell,) = cells_of(write(HEAD + ROW), f"stream.data={file}")
        assert cell.settings["stream"]["data"] == str(file)
        assert cell.config["stream"]["data"] == "digits.npz"
        assert str(tmp_path) not in json.dumps(cell.config)
        ids.add(cell.id)
    assert len(ids) == 1


def test_a_file_is_found_from_elsewhere(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits.npz").write_text("")
    (cell,) = cells_of(write(HEAD + ROW), "stream.data=digits.npz")
    assert cell.settings["stream"]["data"] == str(tmp_path / "digits.npz")
    (cell,) = cells_of(write(HEAD + ROW), "stream.data=not-there.npz")
    assert cell.settings["stream"]["data"] == "not-there.npz"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "name: missing"),
        (HEAD, "rows: missing"),
        (HEAD + "rows = []\n", "rows: there must be at least one"),
        ("nam = 1\n" + HEAD + ROW, "nam: unknown, did you mean 'name'?"),
        (HEAD + "[hots]\n" + ROW, "hots: unknown, did you mean 'host'?"),
        (HEAD + ROW + "lable = 1\n", "rows[0].lable: unknown, did you mean 'label'?"),
        (HEAD + ROW + "host = 3\n", "rows[0].host: expected a table, got 3"),
        (HEAD + ROW + "host = { nme = 'well' }\n", "x: row 'a': host.nme: unknown, did"),
        (HEAD + ROW + "host = { name = 'wel' }\n", "x: row 'a': host.name: expected one of 'well'"),
        (HEAD + ROW + "host = { lr = 0 }\n", "x: row 'a': host: lr must be positive, got 0.0"),
        (HEAD + ROW + "[rows.vary]\n'rule.q' = 3\n", "rows[0]: vary.rule.q must be a list"),
        (HEAD + ROW + "[rows.vary]\n'rules.q' = [3]\n", "rows[0]: vary.rules.q: unknown"),
        (HEAD + "seeds = [1, 1]\n" + ROW, "seeds must be different integers, got [1, 1]"),
        (HEAD + "seeds = [true]\n" + ROW, "seeds[0]: expected an integer, got True"),
        (HEAD + ROW + ROW + "rule = { q = 2 }\n", "x: 2 rows are called 'a'"),
        (HEAD + ROW + '[[rows]]\nlabel = "b"\n', "x: 'a seed 0' and 'b seed 0' are the same run"),
        (HEAD + '[[rows]]\nlabel = "{rule.q}"\n', "the label's {rule.q} is not set in the file"),
        (HEAD + '[[rows]]\nlabel = " "\n', "rows[0]: label must not be blank"),
        (HEAD + "overrides = []\n" + ROW, "overrides: unknown"),
        (HEAD + ROW + "why = 3\n", "rows[0].why: expected a text, got 3"),
        (HEAD + ROW + "baseline = true\n" + ROW.replace('"a"', '"b"') + "baseline = true\n",
         "section '' has several baselines: 'a', 'b'"),
        (HEAD + ROW + "baseline = true\nsection = 's'\n[rows.vary]\n'rule.q' = [1, 2]\n",
         "section 's' has several baselines: row 'a' varies a setting"),
        ("not toml", "is not TOML"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_file_is_named(write: Write, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        cells_of(write(text))


HOSTILE = [
    "../evil",
    "/etc/evil",
    "a/b",
    "a\\\\b",
    "..",
    "a..b",
    ".hidden",
    "A",
    "a b",
    "",
    "a" * 99,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_refused(write: Write, name: str) -> None:
    with pytest.raises(ValueError, match="name must be of a-z, 0-9"):
        cells_of(write(EXPERIMENT.replace('"small"', f'"{name}"')))


@pytest.mark.parametrize(
    "label", ["../../evil", "/etc/passwd", "..", "a\\nb", "né\\u0000", "x" * 300]
)
def test_a_hostile_label_stays_in_its_folder(write: Write, label: str) -> None:
    (cell,) = cells_of(write(HEAD + f'[[rows]]\nlabel = "{label}"\n'))
    assert len(cell.folder.parts) == 2
    assert re.fullmatch(r"[a-z0-9-]{1,80}", cell.folder.name)


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_a_slug_is_a_plain_name(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,46}[a-z0-9])?", slug(text))


def test_wrong_overrides_are_named(small: Path) -> None:
    with pytest.raises(ValueError, match="hosts: unknown, did you mean 'host'"):
        cells_of(small, "hosts.lr=1")
    with pytest.raises(ValueError, match=re.escape("name: unknown")):
        cells_of(small, "name=evil")
    with pytest.raises(ValueError, match=r"host\.rate: unknown"):
        cells_of(small, "host.rate=1")
    with pytest.raises(
        ValueError, match=re.escape("'FO seed 0' and 'RISE (q=4) seed 0' are the same")
    ):
        cells_of(small, "rule.q=4")


def test_sections_have_a_baseline_each(write: Write) -> None:
    row = '[[rows]]\nlabel = "{0}"\nsection = "{0}"\nbaseline = true\nrule = {{ q = {1} }}\n'
    cells = cells_of(write(HEAD + row.format("a", 1) + row.format("b", 2)))
    assert [cell.row.baseline for cell in cells] == [True, True]


def test_a_section_is_chosen_by_its_name(write: Write) -> None:
    other = '[[rows]]\nlabel = "b"\nsection = "Controls"\n[rows.vary]\n"rule.q" = [2, 3]\n'
    cells = cells_of(write(HEAD + ROW + other))
    assert choose(cells, ["Controls"]) == cells[1:]
    with pytest.raises(ValueError, match="--only 'Control': unknown, did you mean 'Controls'"):
        choose(cells, ["Control"])


def test_cells_are_chosen_by_label_or_id(small: Path) -> None:
    cells = cells_of(small)
    assert choose(cells, []) == cells
    assert choose(cells, ["FO"]) == cells[:2]
    assert choose(cells, [cells[3].id[:12], "FO"]) == [*cells[:2], cells[3]]
    with pytest.raises(ValueError, match=re.escape("--only 'FOO': unknown, did you mean 'FO'")):
        choose(cells, ["FOO"])


def test_experiments_are_found_by_name(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "experiments" / "paper"
    place.mkdir(parents=True)
    (place / "small.toml").write_text(EXPERIMENT)
    (place / "broken.toml").write_text("not toml")
    (place / "other.toml").write_text('[model]\nname = "not an experiment"\n')
    monkeypatch.setattr(experiment_library, "PLACES", (tmp_path / "none", tmp_path / "experiments"))
    assert load_experiment("small").name == "small"
    titles = {name: found.title for name, found in experiment_library.library().items()}
    assert titles == {"broken": "(cannot be read)", "small": "A small one"}
    with pytest.raises(ValueError, match="experiment 'smal': unknown, did you mean 'small'"):
        load_experiment("smal")
    with pytest.raises(ValueError, match=r"there is no file 'x/y.toml'"):
        load_experiment("x/y.toml")


@pytest.mark.parametrize("name", sorted(experiment_library.experiments()))
def test_what_comes_along_can_be_read(name: str) -> None:
    experiment = load_experiment(name)
    assert experiment.name == name, "file name and name agree"
    assert experiment.title
    assert experiment.question, "what it asks is the first thing that a reader wants to know"


def test_no_text_at_all(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not UTF-8 text"):
        load_experiment(tmp_path / "x.toml")
