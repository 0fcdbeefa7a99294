"""Small mistakes put into a copy of the sources, one at a time: do the default tests see each?

    python tests/mutations.py            # all
    python tests/mutations.py kappa      # those whose name has this in it

Each mistake replaces one line by a wrong one; where the line is gone, the script says so and fails.
The test that finds a mistake must pass without it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mistake(NamedTuple):
    """One wrong line, and the tests that it concerns."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str


CORE = "tests/core/attach tests/core/test_draws.py tests/core/test_rise_rule.py"
MISTAKES = (
    Mistake("theory: kappa without its 1", "risegrad/theory/calibration.py",
            "return (q + d + 1) / q", "return (q + d) / q", "tests/theory"),
    Mistake("core: the end of a long vector is left out of its norm", "risegrad/core/arithmetic.py",
            "parts = torch.cat([_row_norm(tiles), _row_norm(x[..., whole:])[..., None]], -1)",
            "parts = _row_norm(tiles)", "tests/test_reductions.py tests/core/test_shaped_step.py"),
    Mistake("core: two streams draw the same noise", "risegrad/core/draws.py",
            "mix(self._key, stream, direction)", "mix(self._key, direction)", CORE),
    Mistake("core: a state forgets the other attachments", "risegrad/core/saved_state.py",
            "cleaned[KEY] = rest", "pass", CORE),
    Mistake("memory: a sum of low ranks loses the second rest", "risegrad/memory/factor.py",
            "rest = r.double() + q.double()", "rest = r.double()", "tests/memory"),
    Mistake("memory: a filter without damping where nothing was seen", "risegrad/memory/factor.py",
            "off = float((rest.double() / self.mean + rho) ** power)",
            "off = float(rho**power)", "tests/memory"),
    Mistake("lab: deviations by n instead of n - 1", "riselab/common/intervals.py",
            "/ (len(values) - 1))", "/ len(values))", "tests/report tests/frontier"),
    Mistake("lab: forgetting from the best before the last", "riselab/continual/metrics.py",
            "for t in range(i, end + 1)", "for t in range(i, end)",
            "tests/continual/test_metrics.py"),
    Mistake("frontier: readings are weighted the wrong way round", "riselab/frontier/curves.py",
            "weight = (learned - low.learned) / run", "weight = (high.learned - learned) / run",
            "tests/frontier"),
    Mistake("frontier: half of the seeds are most of them", "riselab/frontier/curves.py",
            "2 * sum(judged) > len(judged)", "2 * sum(judged) >= len(judged)",
            "tests/frontier"),
)  # fmt: skip


def first_failure(source: Path, *tests: str) -> str:
    """The first test that fails with these sources; empty if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", *tests]
    found = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode not in (0, 1):
        raise SystemExit(f"pytest could not run {tests}:\n{found.stdout}{found.stderr}")
    lines = [line for line in found.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return lines[0].split(" - ")[0].split(" ", 1)[1] if lines else ""


def verdict(mistake: Mistake, sources: Path) -> str:
    """What finds a mistake, or ``NOBODY``."""
    path = sources / mistake.file
    text = path.read_text(encoding="utf-8")
    if text.count(mistake.right) != 1:
        raise SystemExit(f"{mistake.file} has {mistake.right!r} {text.count(mistake.right)} times")
    path.write_text(text.replace(mistake.right, mistake.wrong), encoding="utf-8")
    try:
        found = first_failure(sources, *mistake.tests.split())
    finally:
        path.write_text(text, encoding="utf-8")
    if found and first_failure(sources, found):
        raise SystemExit(f"{found} fails without any mistake, too")
    return found or "NOBODY"


def main(wanted: str = "") -> int:
    """Print what finds each mistake; the exit code says whether all were found."""
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        for mistake in MISTAKES:
            if wanted in mistake.name:
                found = verdict(mistake, sources)
                missed += found == "NOBODY"
                print(f"{mistake.name}\n    found by {found}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
