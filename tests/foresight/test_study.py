"""The study of foresight: its records follow from what they hold, and it can be made again."""

import argparse
import json
from pathlib import Path

import pytest

from benchmarks.studies.foresight import (
    BlockBenefit,
    FollowedSession,
    horizons_of,
    ranked,
    scores_of,
    study,
)
from foresight.test_sessions import TOML
from riselab.commands.arguments import add_experiment, overrides
from riselab.common.settings import read
from riselab.continual.host import silent
from riselab.continual.runs import perform, read_config
from riselab.experiments.cells import expand
from riselab.experiments.file import load_experiment

RECORDS = Path(__file__).parents[2] / "experiments" / "records" / "foresight"


@pytest.mark.parametrize("name", ["banking77", "turned-digits"])
def test_what_the_records_conclude_follows_from_what_they_hold(name):
    record = json.loads((RECORDS / f"{name}.json").read_text())
    sessions = [read(FollowedSession, one) for one in record["sessions"]]
    for found, kept in zip(horizons_of(sessions), record["horizons"], strict=True):
        same(found, kept)
    blocks = [read(BlockBenefit, one) for one in record["blocks"]]
    for found, kept in zip(scores_of(blocks), record["scores"], strict=True):
        same(found, kept)


def same(found, kept):
    for name, value in kept.items():
        if isinstance(value, dict):
            assert found[name] == pytest.approx(value, rel=1e-6, abs=1e-6), name
        else:
            assert found[name] == pytest.approx(value), name


def test_few_pairs_have_no_interval():
    assert ranked([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])["low"] is None
    assert ranked([1.0, 2.0], [1.0, 2.0])["value"] is None


def test_a_followed_run_is_the_run(tmp_path):
    """Looking ahead changes nothing: the scores are those of ``rise run``."""
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    parser = argparse.ArgumentParser()
    add_experiment(parser)
    args = parser.parse_args([str(path), "--only", "RISE", "--out", str(tmp_path)])
    found = study(args, silent)
    cell = expand(load_experiment(args.experiment, overrides(args)), read_config)[1]
    matrix = perform(read_config(cell.settings), tmp_path / "run", silent)["scores"]["accuracy"]
    first, second = matrix["matrix"][:2]
    (session,) = found["sessions"]
    assert (session["method"], session["task"]) == ("RISE", 2)
    assert session["learned"] == pytest.approx(second[1])
    assert session["forgetting"] == pytest.approx(first[0] - second[0])
    assert [moment["steps"] for moment in session["moments"]] == [1, 2, 0]
    assert [row["steps"] for row in found["horizons"]] == [1, 2, 0]
    assert len(found["blocks"]) == 3 * 2
    assert found["blocks"][0]["C"] is not None
