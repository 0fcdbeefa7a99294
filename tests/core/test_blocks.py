"""Blocks cover the parameters they should, in order, and say so when they do not."""

import pytest

from risegrad import Blocks
from risegrad.core.blocks import WORKSPACE, exempted, make_layout, resolve_blocks

GROUPS = {"body.0.weight": 0, "body.0.bias": 1, "head.weight": 0, "scale": 1}


@pytest.mark.parametrize(
    ("choice", "members"),
    [
        ("tensor", {name: (name,) for name in GROUPS}),
        (
            "module",
            {
                "body.0": ("body.0.weight", "body.0.bias"),
                "head": ("head.weight",),
                "(root)": ("scale",),
            },
        ),
        (
            "group",
            {"group 0": ("body.0.weight", "head.weight"), "group 1": ("body.0.bias", "scale")},
        ),
        ("whole", {"whole": tuple(GROUPS)}),
        (
            {"body": "body.*", "rest": ["head.*", "scale"]},
            {"body": ("body.0.weight", "body.0.bias"), "rest": ("head.weight", "scale")},
        ),
    ],
    ids=str,
)
def test_choices(choice, members):
    assert resolve_blocks(choice, GROUPS).members == members


def test_a_chunk_size_cuts_each_tensor():
    blocks = resolve_blocks(16, {"w": 0, "b": 0})
    layout = make_layout(blocks, (4, 2), {"w": 40, "b": 3})
    assert [(row.name, row.d, row.q, row.count) for row in layout.rows] == [
        ("w", 16, 4, 2),
        ("w (rest)", 8, 4, 1),
        ("b", 3, 2, 1),
    ]
    assert layout.d.tolist() == [16, 16, 8, 3]
    assert layout.q.tolist() == [4, 4, 4, 2]


def test_batches_hold_whole_blocks_and_bounded_work():
    names = [f"t{i}" for i in range(100)]
    sizes = dict.fromkeys(names, 10000) | {"big": 3_000_000}
    blocks = Blocks.by_tensor([*names, "big"])
    layout = make_layout(blocks, [4] * 101, sizes)
    assert [batch.first for batch in layout.batches[1:]] == [b.stop for b in layout.batches[:-1]]
    assert layout.batches[-1].stop == 101
    work = [sum(span.size for span in batch.spans) for batch in layout.batches]
    assert max(work[:-1]) <= WORKSPACE
    assert work[-1] == 3_000_000
    assert sum(work) == sum(sizes.values())


def test_exemption_names_what_it_takes_out():
    assert exempted(GROUPS, ["head.*", "scale"]) == ("head.weight", "scale")
    with pytest.raises(ValueError, match=r"exempt: no parameter matches 'tail.\*'.*body.0.weight"):
        exempted(GROUPS, ["tail.*"])


@pytest.mark.parametrize(
    ("choice", "error", "message"),
    [
        ("layer", ValueError, "blocks must be one of tensor, module, group, whole, .* got 'layer'"),
        (0, ValueError, r"blocks \(a chunk size\) must be an integer >= 1, got 0"),
        (-16, ValueError, r"blocks \(a chunk size\) must be an integer >= 1, got -16"),
        (True, TypeError, r"blocks must be .* got True \(bool\)"),
        (2.5, TypeError, r"blocks must be .* got 2.5 \(float\)"),
        ({"body": "body.*"}, ValueError, "no block covers head.weight, scale; .* exempt"),
        ({"all": "*", "x": "tail"}, ValueError, "block 'x': no parameter matches tail"),
        ({"a": "*", "b": "head.*"}, ValueError, "'head.weight' is in two blocks, 'a' and 'b'"),
        (
            Blocks({"a": [*GROUPS, "gone"]}),
            ValueError,
            "blocks name parameters that the optimizer does not have .*: gone",
        ),
    ],
    ids=str,
)
def test_bad_choices(choice, error, message):
    with pytest.raises(error, match=message):
        resolve_blocks(choice, GROUPS)


@pytest.mark.parametrize(
    ("members", "chunk", "error", "message"),
    [
        ({"a": []}, None, ValueError, "block 'a' is empty"),
        (
            {"a": "weight"},
            None,
            TypeError,
            "block 'a' must list parameter names, got the text 'weight'",
        ),
        ({"a": ["w"], "b": ["w"]}, None, ValueError, "'w' is in two blocks, 'a' and 'b'"),
        ({"a": ["w"]}, 0, ValueError, "chunk size must be an integer >= 1, got 0"),
        ({"a": ["w", "b"]}, 8, ValueError, "block 'a': with a chunk size, one parameter per block"),
    ],
)
def test_bad_blocks(members, chunk, error, message):
    with pytest.raises(error, match=message):
        Blocks(members, chunk)


def test_a_block_needs_elements():
    with pytest.raises(ValueError, match="parameter 'empty' has no elements"):
        make_layout(Blocks.by_tensor(["empty"]), (4,), {"empty": 0})


def test_parameters_are_numbered_as_they_come_whatever_the_blocks():
    """A parameter that joins an earlier block must not renumber, and so redraw, the others."""
    sizes = {"a.weight": 4, "b.weight": 5, "a.bias": 2}
    layout = make_layout(Blocks.by_module(sizes), (4, 4), sizes)
    assert layout.names == tuple(sizes)
    spans = [[span.parameter for span in batch.spans] for batch in layout.batches]
    assert spans == [[0, 2, 1]]
