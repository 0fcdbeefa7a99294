"""Checkpoints: atomic, checked, and one step back when a file is damaged."""

import pytest
import torch

from riselab.continual.checkpoints import KEEP, Checkpoints, Origin, read_checked


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints")


def test_nothing_saved_is_nothing_found(checkpoints):
    assert checkpoints.latest() is None


def test_the_newest_comes_back_and_old_ones_go(checkpoints):
    for number in range(5):
        checkpoints.save({"number": number, "tensor": torch.full((2,), number)})
    assert len(list(checkpoints.folder.iterdir())) == KEEP
    found = checkpoints.latest()
    assert found["number"] == 4
    assert found["tensor"].tolist() == [4, 4]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_file_is_named_and_the_previous_one_used(checkpoints, damage):
    checkpoints.save({"number": 0})
    newest = checkpoints.save({"number": 1})
    body = newest.read_bytes()
    middle = len(body) // 2
    newest.write_bytes(
        {
            "truncated": body[:middle],
            "flipped": body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :],
            "empty": b"",
        }[damage]
    )
    with pytest.warns(UserWarning, match=r"checkpoint 00000001\.ckpt .* is damaged"):
        assert checkpoints.latest() == {"number": 0}
    assert checkpoints.save({"number": 2}).name == "00000001.ckpt"


def test_a_leftover_of_a_killed_write_is_not_taken_for_a_checkpoint(checkpoints):
    checkpoints.save({"number": 0})
    (checkpoints.folder / "00000001.partial").write_bytes(b"half")
    assert checkpoints.latest() == {"number": 0}


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    """A pickle with a right checksum is still refused by weights_only."""
    import hashlib
    import pickle

    class Evil:
        def __reduce__(self):
            return (eval, ("1/0",))

    body = pickle.dumps(Evil())
    path = tmp_path / "00000000.ckpt"
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        read_checked(path)


def data(content):
    return {"stream.data": {"name": "data.npz", "sha256": content * 64}}


def test_a_checkpoint_refuses_other_inputs_and_settings(tmp_path):
    ours = Checkpoints(tmp_path, Origin("settings", data("a")))
    ours.save({"number": 1})
    moved = {"stream.data": {"name": "moved.npz", "sha256": "a" * 64}}
    assert Checkpoints(tmp_path, Origin("settings", moved)).latest() == {"number": 1}
    with pytest.raises(ValueError, match=r"inputs or settings: stream\.data \(data\.npz aaaa"):
        Checkpoints(tmp_path, Origin("settings", data("b"))).latest()
    with pytest.raises(ValueError, match=r"other inputs or settings: the settings; remove that"):
        Checkpoints(tmp_path, Origin("others", data("a"))).latest()
    assert ours.latest() == {"number": 1}, "what was refused is still there"


def test_a_checkpoint_goes_on_when_a_revision_became_known(tmp_path):
    before, after = ({"m": {"hub": "a/b", "revision": r}} for r in ("main", "c" * 40))
    Checkpoints(tmp_path, Origin("s", before)).save({"number": 1})
    assert Checkpoints(tmp_path, Origin("s", after)).latest() == {"number": 1}
