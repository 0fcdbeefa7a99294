"""``rise calibrate``: what RISE and what a memory would do to a model, before anything trains."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from riselab.foresight.calibration import CalibrationTable, MemoryEstimate

NAME = "calibrate"
SUMMARY = "how much of each gradient RISE would keep, and the size of a memory; needs no data"
DESCRIPTION = """\
Shows how much of the gradient's mean RISE would keep in every block of a model,
a = sqrt(q/(q+d+1)), and which q or block size would keep --mean-factor. It reads only shapes: of a
timm name, a transformers folder or name, or a file of weights; with --lora, of what LoRA would
train. A second table has the size of a memory of the model at ranks 8, 16 and 64, for full
fine-tuning and for LoRA, and the multiplications that an informed step adds."""
EXAMPLES: tuple[str, ...] = (
    "rise calibrate --model vit_base_patch16_224 --lora r=8",
    "rise calibrate --model MODEL_FOLDER --lora r=8,targets=q+v --q 16 --blocks module",
    "rise calibrate --model weights.safetensors --blocks 1024 --mean-factor 0.1",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``rise calibrate``."""
    model = "timm name, transformers folder or name, or file of weights"
    parser.add_argument("--model", required=True, metavar="NAME_OR_PATH", help=model)
    lora = "r=RANK or r=RANK,targets=NAME+NAME (default targets: peft's)"
    parser.add_argument("--lora", metavar="SPEC", help=lora)
    parser.add_argument(
        "--q", type=int, default=4, metavar="N", help="random directions per block (default 4)"
    )
    blocks = "tensor, module, whole, or a chunk size (default tensor)"
    parser.add_argument("--blocks", default="tensor", metavar="KIND", help=blocks)
    exempt = "parameters that are not shaped, such as 'head.*'; may be repeated"
    parser.add_argument("--exempt", action="append", default=[], metavar="PATTERN", help=exempt)
    wanted = "the share of the mean that another q or block size should keep (default 0.5)"
    parser.add_argument("--mean-factor", type=float, default=0.5, metavar="A", help=wanted)
    tokens = "tokens in a training step, for the time of informed steps (default 2048)"
    parser.add_argument("--tokens", type=int, default=2048, metavar="N", help=tokens)
    parser.add_argument("--json", metavar="FILE", help="also write the table as JSON")


def plan(args: argparse.Namespace) -> Callable[[], int]:
    """Check the arguments, which is most of the work, and return the job."""
    from risegrad.core.shapers import Rise
    from riselab.foresight.calibration import Lora, calibration_table, memory_estimates

    blocks = int(args.blocks) if args.blocks.isdigit() else args.blocks
    shaper = Rise(q=args.q, blocks=blocks, exempt=tuple(args.exempt))
    lora = None if args.lora is None else Lora.parse(args.lora)
    found = calibration_table(args.model, lora, shaper, args.mean_factor)
    memory = memory_estimates(args.model, lora, args.tokens)
    return lambda: execute(found, memory, args.json)


def execute(found: CalibrationTable, memory: Sequence[MemoryEstimate], path: str | None) -> int:
    """Print, and write where wanted."""
    from dataclasses import asdict
    from pathlib import Path

    from risegrad.common.files import write_json

    print(*(str(part) for part in (found, *memory)), sep="\n\n")
    if path is not None:
        write_json(Path(path), {**asdict(found), "memory": [asdict(part) for part in memory]})
    return 0
