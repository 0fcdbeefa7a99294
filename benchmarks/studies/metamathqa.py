"""python -m benchmarks.studies.metamathqa PEFT_CLONE [--only keep] [--prepare]

Enters our rows in peft's comparison on MetaMathQA (`experiments/chat/metamathqa.toml` says which,
and what they cost). Its own script trains, scores and writes the results; all that is ours stands
between its optimizer and the model: `risegrad.keep`, which takes no data. The model writes its
samples before that script's clock starts.
"""

import argparse
import json
import os
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import risegrad
from risegrad.keeping.keeper import Keeper

ROWS = Path(__file__).parents[2] / "experiments" / "chat" / "metamathqa.toml"
INSIDE = "method_comparison/MetaMathQA"


@dataclass(frozen=True)
class Row:
    """One run of the comparison: a method at a rate."""

    method: str
    rate: float
    seed: int
    options: dict[str, Any]
    """Of ``risegrad.keep``."""
    like: str
    """The experiment there whose adapter it has."""

    @property
    def name(self) -> str:
        """As experiments there are called: a folder of the method, one of the settings."""
        return f"{self.like}-{self.method}-lr_{self.rate:g}-seed_{self.seed}"

    @property
    def plain(self) -> bool:
        """Whether nothing of ours takes part."""
        return self.method == "plain"


def rows(path: Path = ROWS) -> list[Row]:
    """All runs of the file."""
    file = tomllib.loads(path.read_text(encoding="utf-8"))
    return [
        Row(method, rate, seed, options, file["like"])
        for method, options in file["methods"].items()
        for rate in file["rates"]
        for seed in file["seeds"]
    ]


def prepare(place: Path, row: Row) -> Path:
    """The folder of an experiment as the comparison reads it; only rate and seed are changed."""
    like = place / "experiments" / row.like
    if not (like / "adapter_config.json").is_file():
        raise FileNotFoundError(f"{place} has no experiments/{row.like}: is it {INSIDE} of peft?")
    defaults = json.loads((place / "default_training_params.json").read_text(encoding="utf-8"))
    own = like / "training_params.json"
    changed = json.loads(own.read_text(encoding="utf-8")) if own.is_file() else {}
    kwargs = {**defaults["optimizer_kwargs"], **changed.get("optimizer_kwargs", {}), "lr": row.rate}
    folder = place / "experiments" / row.name
    folder.mkdir(parents=True, exist_ok=True)
    adapter = (like / "adapter_config.json").read_text(encoding="utf-8")
    (folder / "adapter_config.json").write_text(adapter, encoding="utf-8")
    content = changed | {"optimizer_kwargs": kwargs, "seed": row.seed}
    (folder / "training_params.json").write_text(json.dumps(content, indent=2), encoding="utf-8")
    return folder


def entered(make: Callable[..., Any], row: Row, tokenizer: Any = None) -> Callable[..., Any]:
    """The function there that makes optimizer and schedule, with a keeper on what it makes."""

    def made(model: Any, *args: Any, **kwargs: Any) -> Any:
        optimizer, schedule = make(model, *args, **kwargs)
        # Its hooks hold the keeper, which shapes and pulls from here on.
        kept: Keeper = risegrad.keep(model, optimizer, tokenizer=tokenizer, **row.options)
        print(f"{row.name}: {kept}")
        return optimizer, schedule

    return made


def run_inside(row: Row) -> None:
    """The comparison's own script, in its own folder, with our row's optimizer."""
    sys.path.insert(0, os.getcwd())
    if not row.plain:
        utils: Any = __import__("utils")
        config = utils.get_train_config(f"experiments/{row.name}/training_params.json")
        tokenizer = utils.get_tokenizer(
            model_id=config.model_id, max_seq_length=config.max_seq_length
        )
        made = entered(utils.get_optimizer_and_scheduler, row, tokenizer)
        utils.get_optimizer_and_scheduler = made
    sys.argv = ["run.py", "-v", f"experiments/{row.name}"]
    runpy.run_path("run.py", run_name="__main__")


def results(place: Path) -> Iterator[str]:
    """What came out so far: accuracy on the test set, and forgetting."""
    for row in rows():
        path = place / "results" / f"{row.name.replace('/', '--')}.json"
        if path.is_file():
            found = json.loads(path.read_text(encoding="utf-8"))["train_info"]["metrics"][-1]
            yield f"{row.name}: {found['test accuracy']:.3f}, {found['forgetting']:+.4f}"


def main(arguments: list[str] | None = None) -> None:
    """Prepare all rows, and run those that have no result yet, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clone", type=Path, help="a clone of peft")
    parser.add_argument("--only", choices=sorted({row.method for row in rows()}))
    parser.add_argument("--prepare", action="store_true", help="write the folders, run nothing")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    place = (given.clone / INSIDE).absolute()
    chosen = [row for row in rows() if given.only in (None, row.method)]
    if given.inside:
        run_inside(next(row for row in chosen if row.name == given.inside))
        return
    for row in chosen:
        print(prepare(place, row).relative_to(place))
    here = str(Path(__file__).parents[2])
    paths = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    module = [sys.executable, "-m", "benchmarks.studies.metamathqa", str(given.clone.absolute())]
    for row in [] if given.prepare else chosen:
        if not (place / "results" / f"{row.name.replace('/', '--')}.json").is_file():
            command = [*module, "--inside", row.name]
            subprocess.run(command, cwd=place, env=os.environ | {"PYTHONPATH": paths}, check=True)
    print(*results(place), sep="\n")


if __name__ == "__main__":
    main()
