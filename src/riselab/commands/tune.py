"""``rise tune``: a chat model learns from a file and keeps what it knew, without a line of code."""

import argparse
from collections.abc import Callable
from pathlib import Path

from riselab.tune.settings import PLAIN, TuneSettings

NAME = "tune"
SUMMARY = "fine-tune a chat model on your chats and keep what it knows"
DESCRIPTION = """\
Trains a LoRA (with --full all weights) of a causal chat model on the answers in a file of chats,
by TRL's SFTTrainer with risegrad's KeepCallback. It writes a plain peft adapter (or a model
folder), its model card, a record (tune.json) and one page (tune.html): the scores on held-out
examples, how far other answers have moved, and the answers to ten everyday questions before and
after.

--new has one chat in JSON per line: {"messages": [...]}, {"prompt": ..., "completion": ...} or
{"prompt": ..., "answer": ...}, plain or .gz. 'support' is a task that comes with the package.
To keep what it knows, the model writes chats itself, or takes those of --old.
--minutes is for everything: the pace of the first steps decides how many there are.
A stopped command continues with the same arguments. --plain trains without keeping, into another
folder (DIR-plain); when both are done, the page shows both side by side."""
EXAMPLES: tuple[str, ...] = (
    "rise tune HuggingFaceTB/SmolLM2-135M-Instruct --new support",
    "rise tune ./my-model --new chats.jsonl --out adapter --minutes 60",
    "rise tune ./my-model --new chats.jsonl --old important.jsonl --budget 0.05",
    "rise tune ./my-model --new chats.jsonl --plain",
)
DEFAULTS = TuneSettings("model", "new")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise tune``."""
    text = "a folder in the form of transformers, or a name on the hub"
    parser.add_argument("model", metavar="MODEL", help=text)
    text = "a file of chats to learn, or a task of the package"
    parser.add_argument("--new", required=True, metavar="FILE", help=text)
    text = "folder of the result (default %(default)s; with --plain %(default)s-plain)"
    parser.add_argument("--out", default=DEFAULTS.out, metavar="DIR", help=text)
    text = "a file of chats to keep (default: the model writes its own)"
    parser.add_argument("--old", default="", metavar="FILE", help=text)
    text = "nats per token that other answers may move, such as 0.05 (default: no budget)"
    parser.add_argument("--budget", type=float, default=DEFAULTS.budget, metavar="N", help=text)
    parser.add_argument("--full", action="store_true", help="train all weights, not a LoRA")
    parser.add_argument("--plain", action="store_true", help="keep nothing, for comparison")
    text = "time for everything (default %(default)s)"
    parser.add_argument("--minutes", type=float, default=DEFAULTS.minutes, metavar="N", help=text)
    text = "exactly N steps, however long they take"
    parser.add_argument("--steps", type=int, default=DEFAULTS.steps, metavar="N", help=text)
    text = "seed of the adapter, the order and the draws (default %(default)s)"
    parser.add_argument("--seed", type=int, default=DEFAULTS.seed, metavar="N", help=text)


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments, read the files and return the job."""
    from risegrad.common.imports import need

    lab = dict.fromkeys(("altair", "jinja2", "vl_convert"), "lab")
    for module, extra in {"peft": "language", "trl": "trl", **lab}.items():
        need(module, extra, "rise tune")
    from riselab.tune.run import Tuning

    names = ("model", "new", "old", "budget", "full", "plain", "minutes", "steps", "seed")
    out = args.out + (PLAIN if args.plain and not args.out.endswith(PLAIN) else "")
    tuning = Tuning(TuneSettings(out=out, **{name: getattr(args, name) for name in names}))

    def execute() -> int:
        import datasets
        from transformers.utils import logging

        from riselab.tune.page import text, write
        from riselab.tune.run import PAGE, beside

        datasets.disable_progress_bars()
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        try:
            record = tuning.run()
        except KeyboardInterrupt:
            print("\nstopping; the same command continues from the last checkpoint")
            raise
        folders = [(tuning.out, record, other := beside(tuning.out, record))]
        if other:
            folders.append((Path(other["settings"]["out"]).expanduser(), other, record))
        for folder, own, compared in folders:
            write(folder / PAGE, own, compared)
        print(f"\n{text(record, other)}\n\nadapter: {tuning.out}; page: {tuning.out / PAGE}")
        return 0

    return execute
