"""What people see when they print a handle."""

from __future__ import annotations

import torch
from torch import nn

from core.attach.subjects import sgd
from risegrad.core.attachment import attach
from risegrad.core.shapers import CovarianceNoise, Rise


def test_the_table() -> None:
    """Dimension, q, tau = d/(q+d+1) and a = sqrt(q/(q+d+1)) of every block, and their summary."""
    handle = sgd(Rise(q=4, seed=7)).handle
    assert str(handle) == "\n".join(
        [
            "Rise on gradient, seed 7",
            "block        dimension  q     tau  mean factor",
            "weight              20  4  0.8000       0.4000",
            "bias                 7  4  0.5833       0.5774",
            "temperature          1  4  0.1667       0.8165",
            "3 blocks, 28 elements; mean factor 0.4000 to 0.8165 (median 0.5774); "
            "tau 0.1667 to 0.8000",
        ]
    )


def test_chunks_and_exemptions() -> None:
    handle = sgd(CovarianceNoise(q=1, blocks=6, exempt=["temp*"]), "update").handle
    lines = str(handle).splitlines()
    assert lines[0] == "CovarianceNoise on update, seed 0, exempt: temp*"
    assert [line.split() for line in lines[2:-1]] == [
        ["weight", "(3", "chunks)", "6", "1", "0.7500", "0.3536"],
        ["weight", "(rest)", "2", "1", "0.5000", "0.5000"],
        ["bias", "6", "1", "0.7500", "0.3536"],
        ["bias", "(rest)", "1", "1", "0.3333", "0.5774"],
    ]
    assert lines[-1].startswith("6 blocks, 27 elements; mean factor 0.3536 to 0.5774")


def test_a_large_dimension_shows_how_little_of_the_mean_is_left() -> None:
    """The number that people must see before they train: d = 8192, q = 4 leaves 2 percent."""
    weight = nn.Parameter(torch.zeros(64, 128))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    text = str(attach(optimizer, Rise(q=4), {"weight": weight}))
    assert text.splitlines()[2].split() == ["weight", "8,192", "4", "0.9994", "0.0221"]


def test_long_tables_are_cut_and_say_so() -> None:
    params = {f"layer.{number}": nn.Parameter(torch.zeros(2)) for number in range(100)}
    optimizer = torch.optim.SGD(list(params.values()), lr=0.1)
    lines = str(attach(optimizer, Rise(), params)).splitlines()
    assert len(lines) == 2 + 40 + 1 + 1
    assert "... 60 more ..." in lines
    assert lines[2].startswith("layer.0 ")
    assert lines[-2].startswith("layer.99 ")
    assert lines[-1].startswith("100 blocks, 200 elements")


def test_repr_is_one_line() -> None:
    run = sgd(Rise(q=2))
    run.advance(2)
    text = repr(run.handle)
    assert text.startswith("<Attachment of Rise(q=2, ")
    assert text.endswith(" on gradient, 2 steps>")
    assert "\n" not in text
