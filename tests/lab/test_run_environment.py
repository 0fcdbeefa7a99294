"""What a record says about where it was made; engines and their share of the machine."""

import subprocess
from pathlib import Path

import pytest

from risegrad.common.environment import cores
from riselab.records import record as run_environment
from riselab.running import local
from riselab.running.local import LocalEngine, devices
from riselab.running.plan import RunOptions


def git(folder: Path, *arguments: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *names, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "src" / "riselab" / "records" / "record.py"
    file.parent.mkdir(parents=True)
    file.touch()
    git(tmp_path, "init", "--quiet")
    monkeypatch.setattr(run_environment, "__file__", str(file))
    return tmp_path


def test_the_commit_is_that_of_the_source(checkout: Path) -> None:
    assert run_environment.git() == {}, "no commit yet"
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "first")
    head = git(checkout, "rev-parse", "HEAD")
    assert run_environment.git() == {"commit": head, "dirty": False}
    (checkout / "notes").touch()
    assert run_environment.git() == {"commit": head, "dirty": False}, "not of the source"
    (checkout / "src" / "new.py").touch()
    assert run_environment.git() == {"commit": head, "dirty": True}


def test_a_new_file_of_the_source_is_of_the_checkout(checkout: Path) -> None:
    """Before, a record made while this very file was new said nothing."""
    git(checkout, "commit", "--quiet", "--allow-empty", "-m", "empty")
    head = git(checkout, "rev-parse", "HEAD")
    assert run_environment.git() == {"commit": head, "dirty": True}


def test_git_is_asked_about_the_source_and_nothing_else(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that a git hook started has ``GIT_DIR`` set to the hook's repository."""
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "first")
    head = git(checkout, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path_factory.mktemp("other")))
    assert run_environment.git() == {"commit": head, "dirty": False}


def test_an_environment_within_another_checkout_is_not_of_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = (
        checkout / ".venv" / "site-packages" / "risegrad" / "lab" / "records" / "run_environment.py"
    )
    installed.parent.mkdir(parents=True)
    installed.touch()
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "-m", "first")
    monkeypatch.setattr(run_environment, "__file__", str(installed))
    assert run_environment.git() == {}


def test_this_checkout_is_found() -> None:
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("no checkout")
    assert run_environment.git()["commit"] == git(root, "rev-parse", "HEAD")


def test_no_git_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert run_environment.git() == {}


def test_workers_take_turns_on_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert devices() == ["2", "5"]
    engine = LocalEngine(workers=3, threads=1)
    found = [engine._device(slot).get("CUDA_VISIBLE_DEVICES") for slot in range(3)]
    assert found == ["2", "5", "2"]
    assert LocalEngine(workers=1, threads=1)._device(0) == {}, "one run may use them all"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    pairs = LocalEngine(workers=2, threads=1, processes=2)
    assert [pairs._device(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(2)] == ["0,1", "2,3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert devices() == []


@pytest.mark.parametrize(
    ("workers", "threads", "grid", "expected"),
    [
        (None, None, 100, (8, 2)),
        (None, None, 2, (2, 8)),
        (3, None, 100, (3, 5)),
        (99, None, 100, (99, 1)),
        (None, 4, 100, (8, 4)),
    ],
)
def test_the_machine_is_divided(
    monkeypatch: pytest.MonkeyPatch,
    workers: int | None,
    threads: int | None,
    grid: int,
    expected: tuple[int, int],
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16))
    monkeypatch.setattr(local, "devices", list)
    engine = RunOptions(Path("out"), workers=workers, threads=threads).make_engine(grid)
    assert isinstance(engine, LocalEngine)
    assert (engine.workers, engine.threads) == expected


def test_cores_where_the_system_cannot_say_which_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS and Windows."""
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert cores() == 6
    assert run_environment.environment()["cpus"] == 6
    monkeypatch.setattr(local, "devices", list)
    assert RunOptions(Path("out"), workers=2).division(100) == (2, 3)
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert cores() == 1
