"""Sums, files and words."""

import json
import random
import struct
import sys
import warnings

import pytest
import torch
from torch import nn

import risegrad
from memory.subjects import dense, network, t5, texts, vectors, with_lora
from references import assert_close
from risegrad import Memory
from risegrad.memory.factor import Diagonal, Factor
from risegrad.memory.layers import LayerMemory


def memory(seed=1, model=None, **options):
    options = {"examples": None} | options
    return risegrad.remember(model or network(), vectors(seed=seed), **options)


def test_a_sum_is_a_product_of_sums():
    one, two = memory(), memory(2)
    both = one + 3 * two
    for name in one:
        s = (dense(one[name].inputs) + 3 * dense(two[name].inputs)) / 4
        d = dense(one[name].outputs) + 3 * dense(two[name].outputs)
        assert_close(dense(both[name].inputs), s)
        assert_close(dense(both[name].outputs), d)
        assert (both[name].weight, both[name].examples) == (4, 20)
    assert both.source == {"sum": [one.source, two.source]}


def test_the_same_memory_twice_is_the_memory_with_twice_the_weight():
    one = memory()
    for name in one:
        for part, side in (one + one)[name].parts.items():
            assert_close(dense(side), dense((2 * one)[name].parts[part]))
    assert (2 * one)["0"].weight == 2 == (one * 2)["0"].weight


def test_a_list_of_memories_has_a_sum():
    a, b = memory(), memory(2)
    assert sum([a, b]) == a + b
    with pytest.raises(TypeError, match="unsupported operand"):
        1 + a


def test_sums_do_not_depend_on_the_order():
    a, b, c = memory(), memory(2), memory(3)
    first, second = (a + b) + c, c + (b + a)
    for name in a:
        for part, side in first[name].parts.items():
            assert_close(dense(side), dense(second[name].parts[part]))


def test_sums_of_low_rank_keep_the_rank():
    both = memory(rank=2) + memory(2, rank=3)
    assert both.rank == 3
    assert {side.rank for layer in both.values() for side in layer.parts.values()} <= {3, None}
    assert (memory() + memory(2, rank=2)).rank == 2
    assert memory().truncated(2).bytes == memory(rank=2).bytes


def test_norms_and_embeddings_add_up():
    both = risegrad.remember(t5(), texts(), examples=None, exempt=["lm_head"])
    total = both + both
    norm = "encoder.final_layer_norm"
    assert_close(total[norm].inputs.values, 2 * both[norm].inputs.values)
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    assert_close(total[table].inputs.values, both[table].inputs.values)


def test_a_layer_of_one_memory_only_is_kept():
    part = memory(layers=["0"])
    both = part + memory()
    assert list(both) == ["0", "2"]
    assert both["2"].weight == 1


def test_what_one_of_two_memories_covers_is_covered():
    head = risegrad.remember(network(), vectors(), examples=None)
    body = risegrad.remember(network(), vectors(), examples=None, of="features")
    assert set(body.uncovered) == {"2.weight", "2.bias"}
    assert (body + head).uncovered == (head + body).uncovered == {}
    assert "not covered" not in str(body + head)
    assert set((body + body).uncovered) == {"2.weight", "2.bias"}


def test_memories_of_two_models_do_not_add():
    other = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    with pytest.raises(ValueError, match=r"two models: layer '[02]' is linear of shape \("):
        memory() + memory(model=other)
    named = nn.ModuleDict({"a": nn.Linear(4, 3)}).double()
    renamed = memory(model=named, predict=lambda m, b: m["a"](b[0]))
    with pytest.raises(ValueError, match="memories of two models: one has 0, 2, the other a"):
        memory() + renamed
    with pytest.raises(TypeError, match="unsupported operand"):
        memory() + 1


@pytest.mark.parametrize("weight", [0, -1, float("nan")])
def test_weights_are_positive(weight):
    with pytest.raises(ValueError, match="weight must be a finite number > 0, got"):
        memory().scaled(weight)


@pytest.mark.parametrize("rank", [None, 2])
def test_files_give_back_the_same(tmp_path, rank):
    model = with_lora(t5(), ["q", "v"])
    for name, p in model.named_parameters():
        p.requires_grad_("shared" not in name and "lm_head" not in name)
    found = risegrad.remember(model, texts(), examples=None, rank=rank)
    path = tmp_path / "memory.safetensors"
    found.save(path)
    read = Memory.load(str(path))
    assert read == found
    assert read.hash == found.hash
    assert (read.rank, read.uncovered, read.source) == (rank, found.uncovered, found.source)
    assert str(read) == str(found)
    assert [p.name for p in tmp_path.iterdir()] == ["memory.safetensors"]
    (found + read).save(path)
    assert Memory.load(path).source["sum"] == [found.source, found.source]


def test_the_hash_sees_every_number():
    one = memory()
    assert one.hash == memory().hash
    assert hash(one) == hash(memory())
    for other in (memory(2), one.scaled(2), one.truncated(2), one.rotated()):
        assert other.hash != one.hash
        assert other != one


def write(path, about=None, tensors=None, **metadata):
    """A file as someone else might write it."""
    from safetensors.torch import save_file

    eye = torch.eye(2)
    plain = {
        "rank": None, "uncovered": {}, "source": {},
        "layers": {"a": {"kind": "linear", "shape": [2, 2], "examples": 1, "predictions": 1,
                         "weight": 1.0}},
    }  # fmt: skip
    text = about if isinstance(about, str) else json.dumps(plain | (about or {}))
    whole = (
        {"a|inputs|matrix": eye, "a|outputs|matrix": eye.clone()} if tensors is None else tensors
    )
    save_file(whole, path, {"format": "risegrad memory", "version": "1", "about": text} | metadata)
    return path


def layer(**changes):
    found = {"kind": "linear", "shape": [2, 2], "examples": 1, "predictions": 1, "weight": 1.0}
    return {"layers": {"a": found | changes}}


CROSS = torch.eye(2).flip(0)
LOW = {"a|inputs|vectors": torch.eye(2)[:, :1].contiguous(), "a|inputs|values": torch.ones(1),
       "a|inputs|rest": torch.tensor(0.5), "a|outputs|matrix": torch.eye(2)}  # fmt: skip
FILES = [
    ({"format": "other"}, "format must be 'risegrad memory', got 'other'"),
    ({"version": "9"}, "version must be 3, got '9'"),
    ({"about": "{"}, "Expecting property name"),
    ({"about": "[]"}, "list indices must be"),
    ({"about": {"layers": {}}}, "tensors that belong to no layer, first 'a"),
    ({"about": {"layers": {}}, "tensors": {}}, "it holds no layer|InvalidHeader"),
    ({"about": layer(kind="code")}, "layer 'a' is of the unknown kind 'code'"),
    ({"about": layer(shape=[2, 3])}, "needs factors of size .* got"),
    ({"about": layer(shape=[2, -1])}, "shape must be an integer >= 1"),
    ({"about": layer(shape=[])}, "index out of range"),
    ({"about": layer(kind="conv1d", shape=[2])}, "index out of range"),
    ({"about": layer(weight=0)}, "weight must be a finite number > 0, got 0"),
    ({"about": layer(examples="many")}, "examples must be an integer >= 0, got 'many'"),
    ({"about": {"rank": 0}}, "rank must be an integer >= 1, got 0"),
    ({"about": {"uncovered": []}}, "has no attribute 'items'"),
    ({"tensors": {"a|inputs|matrix": torch.eye(2)}}, "outputs of layer 'a': a factor cannot be"),
    ({"tensors": {"a|inputs|matrix": torch.eye(2), "a|outputs|matrix": -torch.eye(2)}},
     "outputs of layer 'a': a factor must not have a negative diagonal"),
    ({"tensors": {"a|inputs|matrix": torch.eye(2), "a|outputs|matrix": torch.eye(2) + 1.5 * CROSS}},
     "outputs of layer 'a': a factor must have no negative eigenvalue"),
    ({"about": {"source": {"sum": 5}}}, "the sum in its source must be a list, got 5"),
    ({"tensors": {"a|inputs|matrix": torch.eye(2) / 0, "a|outputs|matrix": torch.eye(2)}},
     "inputs of layer 'a': a factor must be finite"),
    ({"tensors": {"a|inputs|matrix": torch.eye(2).half(), "a|outputs|matrix": torch.eye(2)}},
     "inputs of layer 'a': a factor must be float32 or float64"),
    ({"tensors": LOW | {"a|inputs|values": torch.ones(2)}}, "shapes that do not match"),
    ({"tensors": LOW | {"a|inputs|rest": torch.tensor(-1.0)}}, "must not be negative"),
    ({"tensors": LOW | {"b|inputs|matrix": torch.eye(2)}}, "belong to no layer, first 'b"),
]  # fmt: skip


unchecked = pytest.mark.filterwarnings("ignore:memory file .* has no checksum")


@unchecked
@pytest.mark.parametrize(("changes", "message"), FILES)
def test_damaged_files_are_named(tmp_path, changes, message):
    path = write(tmp_path / "kept.safetensors", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        Memory.load(path)
    assert "damaged memory file" in str(caught.value)
    assert "kept.safetensors" in str(caught.value)


def test_any_flipped_bit_is_damage(tmp_path):
    path = tmp_path / "kept.safetensors"
    memory(rank=2).save(path)
    content, drawn = path.read_bytes(), random.Random(0)
    header = 8 + struct.unpack("<Q", content[:8])[0]
    bits = [
        *drawn.sample(range(8 * header), 200),
        *drawn.sample(range(8 * header, 8 * len(content)), 200),
    ]
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"damaged memory file '.*kept.safetensors'"):
            Memory.load(path)


def test_a_file_without_a_checksum_loads_and_says_so(tmp_path):
    path = write(tmp_path / "kept.safetensors")
    with pytest.warns(UserWarning, match=r"kept.safetensors' has no checksum, .* save the memory"):
        old = Memory.load(path)
    old.save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Memory.load(path) == old
    with pytest.raises(ValueError, match=r"damaged memory file .*: no 'sha256'"):
        Memory.load(write(path, version="2"))


@unchecked
def test_a_good_file_of_someone_else_loads(tmp_path):
    assert list(Memory.load(write(tmp_path / "kept.safetensors"))) == ["a"]
    assert Memory.load(write(tmp_path / "low.safetensors", tensors=LOW))["a"].inputs.rank == 1


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", struct.pack("<Q", 2**60) + b"{", b"\x80\x04cos\nsystem\n(S'true'\ntR."],
)
def test_files_that_are_none_are_never_run(tmp_path, content):
    path = tmp_path / "kept.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged memory file '.*kept.safetensors'"):
        Memory.load(path)


def test_a_cut_file_is_damaged_and_a_missing_one_missing(tmp_path):
    path = tmp_path / "kept.safetensors"
    memory().save(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="damaged memory file"):
        Memory.load(path)
    with pytest.raises(FileNotFoundError, match=r"no memory file '.*other'"):
        Memory.load(tmp_path / "other")


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "kept.safetensors"
    memory().save(path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        memory(2).save(path)
    assert path.read_bytes() == before
    assert len([*tmp_path.iterdir()]) == 1


def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(
        ImportError, match=r"saving a memory: pip install \"risegrad\[curvature\]\""
    ):
        memory().save(tmp_path / "kept")


def test_the_text_tells_what_is_kept():
    found = memory(rank=2, exempt=["0"])
    shown = str(found)
    assert "memory of 1 layers" in shown
    assert "2 eigenpairs of each factor" in shown
    row = next(line for line in shown.splitlines() if line.startswith("2 "))
    kept = found["2"]
    assert row.split()[:3] == ["2", "linear", "10"]
    assert f"{kept.inputs.effective_dimension(0.1):.1f}/5" in row
    assert f"{kept.bytes} B" in row
    assert "0.weight: exempt" in shown


def test_names_that_steer_a_terminal_are_written_out():
    found = memory()
    name = "a\x1b[2J\u202eb"
    shown = str(Memory({name: found["0"]}, uncovered={"c\rd": "e\nf", "größe": "g"}))
    assert "\x1b" not in shown
    assert r"a\x1b[2J\u202eb" in shown
    assert r"  c\rd: e\nf" in shown
    assert "größe" in shown


def test_controls():
    found = memory()
    turned = found.rotated(1)
    assert turned["0"].inputs.mean == pytest.approx(found["0"].inputs.mean)
    assert turned == found.rotated(1) != found.rotated(2)
    flat = found.changed(lambda _layer, part, side: side if part == "inputs" else side.scaled(0))
    assert flat["0"].outputs.mean == 0
    assert flat["0"].inputs.mean == found["0"].inputs.mean
    assert found.to("cpu", torch.float32)["0"].inputs.like.dtype == torch.float32


def test_layers_must_fit_their_factors():
    eye = Factor(torch.eye(2))
    with pytest.raises(ValueError, match="kind must be one of norm, linear"):
        LayerMemory("other", (2, 2), {}, 1, 1)
    with pytest.raises(ValueError, match=r"shape \(3, 2\) needs factors of size"):
        LayerMemory("linear", (3, 2), {"inputs": eye, "outputs": eye}, 1, 1)
    with pytest.raises(ValueError, match="at least one layer"):
        Memory({})
    table = LayerMemory(
        "embedding", (4, 2), {"inputs": Diagonal(torch.ones(4)), "outputs": eye}, 1, 1
    )
    assert table.effective_dimension(1.0) == pytest.approx(2 * 1)
