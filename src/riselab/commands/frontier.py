"""``rise frontier``: which method keeps most of what your model knows, at equal learning."""

import argparse
from collections.abc import Callable

from riselab.commands.arguments import add_settings, settings_of, silence
from riselab.frontier.problem import CHAT_METHODS, CHAT_USUAL, METHODS, USUAL, FrontierSettings

NAME = "frontier"
SUMMARY = "which method keeps most of what your model knows, at equal learning"
DESCRIPTION = """\
Trains your model on new data by several methods at several learning rates. After each run it
measures what the model learned of the new data and what it forgot of the data to keep, on which it
never trains. A smaller step forgets less and learns less, so methods are compared at equal
learning. It ends with one sentence, one figure, one table, and the code for the best method.

MODEL is one of
  a folder or hub name of a causal chat model, with files of chats (.jsonl, as for rise tune):
    --keep FILE keeps the answers to its questions; --keep dreams keeps the answers to questions
    that come with the package, by chats that the model writes itself. Trains a LoRA, or with
    --full all weights
  a folder or hub name of a transformers model, with folders of texts as data: each has train.json
    and test.json, lists of {"sentence": ..., "label": ...}. Trains a LoRA, or with --full all
    weights
  mlp, or the name of a timm ViT, with images: .npz files (train_images, train_labels, test_images,
    test_labels) or folders (CLASS/* or train/CLASS/*, test/CLASS/*). Trains all weights, after the
    network has learned the data to keep (--teach)
  module:function, your function that takes a seed and returns a
    riselab.continual.custom.OwnProblem: model, batches, loss and score; without --keep, --new
The time (--minutes) is for all runs: the pace of the first decides the number of rates, seeds and
examples, and the command says what it left out. A stopped command continues with the same --out."""
EXAMPLES: tuple[str, ...] = (
    "rise frontier HuggingFaceTB/SmolLM2-135M-Instruct --new chats.jsonl --keep dreams",
    "rise frontier google/flan-t5-small --keep data/agnews --new data/yahoo --minutes 20",
    "rise frontier ./my-encoder --full --keep data/agnews --new data/yahoo",
    "rise frontier mlp --keep upright.npz --new turned.npz --minutes 5",
    "rise frontier my_module:problem --methods adamw,sgd,rise,informed",
    "rise frontier ./my-t5 --keep a --keep b --new c --set model.rank=16 --out out/mine",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise frontier``."""
    text = "a transformers folder or hub name, mlp, a timm name, or module:function"
    parser.add_argument("model", metavar="MODEL", help=text)
    text = "data to keep: scored, never trained; may be repeated"
    parser.add_argument("--keep", action="append", default=[], metavar="DATA", help=text)
    text = "data to learn; may be repeated, one after the other"
    parser.add_argument("--new", action="append", default=[], metavar="DATA", help=text)
    text = f"names, separated by commas (default {','.join(USUAL)}, of {', '.join(METHODS)}; "
    text += f"for chats {','.join(CHAT_USUAL)}, of {', '.join(CHAT_METHODS)})"
    parser.add_argument("--methods", default=(), type=_words, metavar="NAMES", help=text)
    options = {"minutes": "N", "full": "", "out": "DIR", "seeds": "N", "rates": "N",
               "epochs": "N", "teach": "N", "examples": "N"}  # fmt: skip
    add_settings(parser, FrontierSettings, options)
    text = "any other setting of the runs, e.g. model.rank=16; may be repeated"
    parser.add_argument(
        "--set", action="append", default=[], dest="changes", metavar="KEY=VALUE", help=text
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments and return the job."""
    from riselab.frontier.problem import chosen, problem_of
    from riselab.frontier.search import check_extras

    check_extras()
    settings = settings_of(FrontierSettings, args)
    problem = problem_of(args.model, args.keep, args.new, settings)
    chosen(settings.methods, problem.domain == "chat")
    return lambda: execute(args, settings)


def execute(args: argparse.Namespace, settings: FrontierSettings) -> int:
    """Run what fits into the time and print what was found."""
    from riselab.frontier.search import frontier

    silence()
    try:
        found = frontier(args.model, keep=args.keep, new=args.new, settings=settings)
    except KeyboardInterrupt:
        print("\nstopping; the same command continues from here")
        raise
    print(f"\n{found}")
    return 0
