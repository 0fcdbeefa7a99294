"""``rise tune``: a chat model learns from a file and keeps what it knew, without a line of code."""

import argparse
from collections.abc import Callable
from pathlib import Path

from riselab.commands.arguments import add_settings, settings_of, silence
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
To keep what it knows, the model writes chats itself, or takes those of --keep.
--minutes is for everything: the pace of the first steps decides how many there are.
A stopped command continues with the same arguments. --plain trains without keeping, into another
folder (DIR-plain); when both are done, the page shows both side by side."""
EXAMPLES: tuple[str, ...] = (
    "rise tune HuggingFaceTB/SmolLM2-135M-Instruct --new support",
    "rise tune ./my-model --new chats.jsonl --out adapter --minutes 60",
    "rise tune ./my-model --new chats.jsonl --keep important.jsonl --budget 0.05",
    "rise tune ./my-model --new chats.jsonl --plain",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise tune``."""
    text = "a folder in the form of transformers, or a name on the hub"
    parser.add_argument("model", metavar="MODEL", help=text)
    text = "a file of chats to learn, or a task of the package"
    parser.add_argument("--new", required=True, metavar="FILE", help=text)
    options = {"out": "DIR", "keep": "FILE", "budget": "N", "full": "", "plain": "", "minutes": "N",
               "steps": "N", "seed": "N"}  # fmt: skip
    add_settings(parser, TuneSettings, options)


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments, read the files and return the job."""
    from risegrad.common.imports import need

    lab = dict.fromkeys(("altair", "jinja2", "vl_convert"), "lab")
    for module, extra in {"peft": "language", "trl": "trl", **lab}.items():
        need(module, extra, "rise tune")
    from riselab.tune.run import Tuning

    out = args.out + (PLAIN if args.plain and not args.out.endswith(PLAIN) else "")
    tuning = Tuning(settings_of(TuneSettings, args, out=out))

    def execute() -> int:
        from riselab.tune.page import text, write
        from riselab.tune.run import PAGE, beside

        silence()
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
