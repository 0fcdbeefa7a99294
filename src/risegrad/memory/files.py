"""A memory as a file of safetensors: numbers, and plain text that says what they are."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from risegrad.common.checks import check_number
from risegrad.common.files import write_bytes
from risegrad.common.imports import need
from risegrad.memory.factor import Diagonal, Factor, Side, check_not_negative
from risegrad.memory.layers import PARTS, LayerMemory

if TYPE_CHECKING:
    from risegrad.memory.memory import Memory

FORMAT, VERSION = "risegrad memory", 3
UNCHECKED, LONG = 1, 2
"""Versions whose files have no checksum, and no eigenvectors in half precision."""
BETWEEN = "|"
"""Between the layer, the part and the piece in a tensor's name."""


def write_memory(memory: Memory, path: Path) -> None:
    """Write a memory as a file of safetensors."""
    write_bytes(path, _as_safetensors(memory))


def _as_safetensors(memory: Memory) -> bytes:
    torch_form = need("safetensors.torch", "curvature", "saving a memory")
    tensors = {
        BETWEEN.join((name, part, piece)): tensor.detach().cpu().contiguous()
        for name, layer in memory.items()
        for part, side in layer.parts.items()
        for piece, tensor in side.tensors().items()
    }
    about = {
        "rank": memory.rank,
        "uncovered": memory.uncovered,
        "source": memory.source,
        "layers": {
            name: {what: getattr(layer, what) for what in ABOUT} for name, layer in memory.items()
        },
    }
    text = json.dumps(about)
    metadata = {"format": FORMAT, "version": str(VERSION), "about": text}
    content: bytes = torch_form.save(tensors, metadata | {"sha256": _checksum(text, tensors)})
    return content


def _checksum(about: str, tensors: Mapping[str, Tensor]) -> str:
    """Of all that a file says: its words, and every tensor with its name, dtype and shape."""
    digest = hashlib.sha256(about.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def packed(memory: Memory) -> Tensor:
    """A memory as one tensor of bytes, for checkpoints that hold tensors."""
    return torch.frombuffer(bytearray(_as_safetensors(memory)), dtype=torch.uint8)


def unpacked(held: Tensor) -> dict[str, Any]:
    """The arguments of the ``Memory`` that ``packed`` put into a checkpoint.

    By way of a file: safetensors reads the words about a memory from nothing else.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "memory.safetensors"
        path.write_bytes(held.cpu().numpy().tobytes())
        return read_memory(path)


ABOUT = ("kind", "shape", "examples", "predictions", "weight")
"""What is said of each layer in words."""


def read_memory(path: Path) -> dict[str, Any]:
    """The arguments of ``Memory``; every fault of the file is named with its path."""
    safetensors = need("safetensors", "curvature", "reading a memory")
    if not path.is_file():
        raise FileNotFoundError(f"no memory file {str(path)!r}")
    try:
        with safetensors.safe_open(path, framework="pt") as opened:
            metadata = opened.metadata() or {}
            version = _version(metadata)
            tensors = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 - no mapping
        if version == UNCHECKED:
            warnings.warn(
                f"memory file {str(path)!r} has no checksum, so damage to its numbers would not "
                "show: save the memory again to have one",
                stacklevel=3,
            )
        elif metadata["sha256"] != _checksum(metadata["about"], tensors):
            raise ValueError("it does not match its checksum: the file was changed or damaged")
        return _memory(json.loads(metadata["about"]), tensors)
    except (safetensors.SafetensorError, *FAULTS) as error:
        shown = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"damaged memory file {str(path)!r}: {shown}") from error


FAULTS = (
    OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError
)  # fmt: skip


def _version(metadata: Mapping[str, str]) -> int:
    if metadata.get("format") != FORMAT:
        raise ValueError(f"format must be {FORMAT!r}, got {metadata.get('format')!r}")
    known = {str(version): version for version in (UNCHECKED, LONG, VERSION)}
    if metadata.get("version") not in known:
        raise ValueError(f"version must be {VERSION}, got {metadata.get('version')!r}")
    return known[metadata["version"]]


def _memory(about: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Takes out of ``tensors`` what belongs to layers: nothing may be left."""
    layers = {name: _layer(name, found, tensors) for name, found in about["layers"].items()}
    if tensors:
        raise ValueError(f"it has tensors that belong to no layer, first {sorted(tensors)[0]!r}")
    if not layers:
        raise ValueError("it holds no layer")
    rank = about["rank"]
    if rank is not None:
        rank = int(check_number("rank", rank, at_least=1, whole=True))
    uncovered = {str(name): str(reason) for name, reason in about["uncovered"].items()}
    source = dict(about["source"])
    if not isinstance(source.get("sum", []), list):
        raise ValueError(f"the sum in its source must be a list, got {source['sum']!r}")
    return {"layers": layers, "rank": rank, "uncovered": uncovered, "source": source}


def _layer(name: str, found: Any, tensors: dict[str, Tensor]) -> LayerMemory:
    kind = found["kind"]
    if kind not in PARTS:
        raise ValueError(f"layer {name!r} is of the unknown kind {kind!r}")
    shape = tuple(int(check_number("shape", n, at_least=1, whole=True)) for n in found["shape"])
    examples, predictions = (
        int(check_number(what, found[what], at_least=0, whole=True))
        for what in ("examples", "predictions")
    )
    parts = {}
    for part in PARTS[kind]:
        start = f"{name}{BETWEEN}{part}{BETWEEN}"
        own = [key for key in tensors if key.startswith(start)]
        try:
            parts[part] = side_of({key[len(start) :]: tensors.pop(key) for key in own})
        except (ValueError, FloatingPointError) as error:
            raise ValueError(f"{part} of layer {name!r}: {error}") from error
    weight = check_number("weight", found["weight"], above=0)
    return LayerMemory(kind, shape, parts, examples, predictions, weight)


def side_of(tensors: Mapping[str, Tensor]) -> Side:
    """The inverse of ``tensors()``; what does not belong together is an error."""
    short = {"vectors": (torch.float16, torch.float32, torch.float64)}
    wide = (torch.float32, torch.float64)
    if any(tensor.dtype not in short.get(name, wide) for name, tensor in tensors.items()):
        raise ValueError("a factor must be float32 or float64, or its eigenvectors float16")
    if set(tensors) == {"matrix"}:
        found = Factor(tensors["matrix"])
        check_not_negative(tensors["matrix"])
        return found
    if set(tensors) == {"diagonal"}:
        return Diagonal(tensors["diagonal"])
    if set(tensors) != {"vectors", "values", "rest"}:
        raise ValueError(f"a factor cannot be made of {', '.join(sorted(tensors)) or 'nothing'}")
    vectors, values, rest = (tensors[name] for name in ("vectors", "values", "rest"))
    fits = vectors.ndim == 2 and values.shape == vectors.shape[1:] and rest.ndim == 0
    if not fits or len(vectors) < vectors.shape[1] or not len(values):
        raise ValueError("vectors, values and rest of a factor have shapes that do not match")
    found = Factor.of_eigenpairs(vectors, values, rest)
    if bool((values < 0).any()) or float(rest) < 0:
        raise ValueError("eigenvalues of a factor must not be negative")
    return found
