"""Files are whole or not there, and a folder for results is known to be one before any work."""

import json
import os
from pathlib import Path

import pytest

from risegrad.common.files import replacing, write_bytes, write_json
from riselab.common.folders import output_folder


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"a": float("nan")})
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(str(1 / 0))
    assert json.loads(path.read_text()) == {"a": 1}
    assert os.listdir(tmp_path) == ["a.json"]
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_fixed_name_beside_takes_the_place_of_a_leftover(tmp_path: Path) -> None:
    path, beside = tmp_path / "a.ckpt", tmp_path / "a.partial"
    beside.write_bytes(b"half of something longer")
    write_bytes(path, b"whole", beside)
    assert path.read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["a.ckpt"]


def test_a_folder_is_made_and_a_file_is_none(tmp_path: Path) -> None:
    made = output_folder(tmp_path / "a" / "b")
    assert made.is_dir()
    assert list(made.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"--out must be a folder .*file' \(File exists\)"):
        output_folder(tmp_path / "file")
