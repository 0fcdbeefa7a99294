"""What a run reads: files by content, the hub by name and revision, and the cache of hashes."""

import hashlib
import os
import shutil
import time
from pathlib import Path

import pytest

from riselab.common import inputs
from riselab.common.folders import cache_folder
from riselab.common.inputs import Hub, Known, Local, describe, differing, essential, look_at

COMMITS = "a" * 40, "b" * 40


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """The files that were read, with a cache of the test's own."""
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path / "cache"))
    read: list[Path] = []
    sha256 = inputs._sha256
    monkeypatch.setattr(inputs, "_sha256", lambda file: [read.append(file), sha256(file)][1])
    return read


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def of(path: Path, *parts: str) -> str:
    found: str = describe(Local(str(path), parts))["sha256"]
    return found


def age(root: Path) -> None:
    """The same time of the last change for every file, as ``cp -p`` or ``touch`` can give them."""
    for file in root.rglob("*") if root.is_dir() else [root]:
        os.utime(file, (1, 1))


@pytest.fixture(autouse=True)
def _settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "SETTLED", -60.0)


def test_a_file_is_its_content(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(b"abc")
    expected = {"name": "w.pt", "sha256": hashlib.sha256(b"abc").hexdigest()}
    assert describe(Local(str(tmp_path / "w.pt"))) == expected
    assert describe(Local(str(tmp_path / "none"))) == {"missing": "none"}
    assert describe(Known("digits", str(tmp_path))) == {"known": "digits"}


def test_a_folder_is_its_files_wherever_it_lies(tmp_path: Path) -> None:
    here = folder(tmp_path / "here", **{"a/x": "1", "b": "2"})
    lines = [f"{n}\0{hashlib.sha256(t).hexdigest()}\n" for n, t in (("a/x", b"1"), ("b", b"2"))]
    assert of(here) == hashlib.sha256("".join(lines).encode()).hexdigest()
    there = shutil.copytree(here, tmp_path / "there")
    assert of(there) == of(here)
    (there / ".hidden").write_text("no part of it")
    assert of(there) == of(here)
    (there / "b").write_text("3")
    assert of(there) != of(here), "same names and sizes, other content"
    (there / "b").rename(there / "c")
    assert describe(Local(str(there)))["files"] == 2


def test_only_the_parts_that_are_read_count(tmp_path: Path) -> None:
    root = folder(tmp_path / "data", **{"yelp/train": "1", "amazon/train": "2"})
    before = of(root, "yelp", "not-there")
    (root / "amazon" / "train").write_text("changed")
    assert of(root, "yelp", "not-there") == before
    (root / "yelp" / "train").write_text("changed")
    assert of(root, "yelp", "not-there") != before


def test_links_are_followed_and_never_in_circles(tmp_path: Path) -> None:
    far = folder(tmp_path / "far", x="1")
    root = folder(tmp_path / "data", y="2")
    (root / "train").symlink_to(far)
    (far / "up").symlink_to(root)
    before = of(root)
    (far / "x").write_text("3")
    assert of(root) != before


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_text("1")

    def refuse(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(inputs, "_sha256", refuse)
    with pytest.raises(ValueError, match=r"x cannot be read \(Permission denied\)"):
        of(tmp_path / "x")


def test_the_second_time_nothing_is_read(tmp_path: Path, counted: list[Path]) -> None:
    root = folder(tmp_path / "data", a="1", b="2")
    first = of(root)
    assert len(counted) == 2
    assert of(root) == first
    assert len(counted) == 2
    (root / "b").write_text("3")
    assert of(root) != first
    assert len(counted) == 4


def test_a_change_that_hides_its_time_is_seen(tmp_path: Path, counted: list[Path]) -> None:
    file = tmp_path / "data.npz"
    file.write_text("one")
    age(file)
    first = of(file)
    time.sleep(0.02)  # the clock of the file system ticks every few milliseconds
    file.write_text("two")
    age(file)
    assert of(file) != first, "size and mtime are the same"


def test_what_just_changed_is_not_kept(
    tmp_path: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inputs, "SETTLED", 2.0)
    (tmp_path / "x").write_text("1")
    of(tmp_path / "x"), of(tmp_path / "x")
    assert len(counted) == 2


def test_a_damaged_or_forbidden_cache_costs_time_only(
    tmp_path: Path, counted: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder(tmp_path, x="1") / "x"
    first = of(file)
    (note,) = (tmp_path / "cache" / "contents").iterdir()
    for text in ("", "[]", '{"files": "other", "sha256": "0"}', note.read_text()[:-40]):
        note.write_text(text)
        assert of(file) == first
    monkeypatch.setenv("RISEGRAD_CACHE", str(file))  # a file cannot hold a folder
    assert of(file) == first
    monkeypatch.setenv("RISEGRAD_CACHE", "none")
    assert of(file) == first
    assert len(counted) == 7


def fetched(cache: Path, name: str, commit: str) -> None:
    ref = cache / name / "refs" / "main"
    ref.parent.mkdir(parents=True, exist_ok=True)
    ref.write_text(commit)


def test_the_hub_is_full_names_and_the_commit_if_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    ours, theirs = Hub("uoft-cs/cifar100", "dataset"), Hub("somebody/cifar100", "dataset")
    assert describe(ours) == {"hub": "uoft-cs/cifar100", "revision": "main"}
    fetched(tmp_path, "datasets--uoft-cs--cifar100", f"{COMMITS[0]}\n")
    assert describe(ours)["revision"] == COMMITS[0]
    assert describe(theirs)["revision"] == "main"
    fetched(tmp_path, "models--somebody--cifar100", "not a commit")
    assert describe(Hub("somebody/cifar100", "model"))["revision"] == "main"


def test_what_differs_is_said(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    found = look_at({"stream.data": Local(str(tmp_path / "x"))})
    assert differing(found, found) == []
    assert differing(found, essential(found)) == [], "names make no difference"
    (tmp_path / "x").write_text("2")
    (word,) = differing(found, look_at({"stream.data": Local(str(tmp_path / "x"))}))
    assert word.startswith("stream.data (x 6b86b273ff34, now x d4735e3a265e")
    assert differing({}, found) == ["stream.data (nothing, now x 6b86b273ff34)"]


def test_an_unknown_revision_contradicts_nothing() -> None:
    def at(revision: str, name: str = "a/b") -> dict[str, dict[str, str]]:
        return {"m": {"hub": name, "revision": revision}}

    assert differing(at("main"), at(COMMITS[0])) == []
    assert differing(at(COMMITS[0]), at("main")) == []
    assert differing(at(COMMITS[0]), at(COMMITS[1])) != []
    assert differing(at("main"), at("main", "c/b")) == ["m (a/b at main, now c/b at main)"]


def test_where_the_cache_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("RISEGRAD_CACHE", str(tmp_path / "cache"))
    assert cache_folder("contents") == tmp_path / "cache" / "contents"
    monkeypatch.setenv("RISEGRAD_CACHE", "none")
    assert cache_folder("contents") is None
    monkeypatch.delenv("RISEGRAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("contents") == tmp_path / "risegrad" / "contents"
