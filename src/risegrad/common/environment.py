"""What a record says about the machine and the software."""

import os
import platform
import resource
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def cores() -> int:
    """Those this process may use; macOS and Windows cannot say, there it is all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


PACKAGES = (
    "risegrad", "torch", "numpy", "torchvision", "timm", "transformers", "peft", "accelerate",
    "datasets", "tokenizers", "safetensors", "scikit-learn", "ray",
)  # fmt: skip


def environment() -> dict[str, Any]:
    """Python, system, device, threads and the versions of the packages that matter."""
    torch = _torch()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": cores(),
        "device": str(torch.cuda.get_device_name()) if _on_gpu() else "cpu",
        "threads": None if torch is None else int(torch.get_num_threads()),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def watch_memory() -> None:
    """Forget how large this process was: an earlier run in it is no part of the next.

    Only Linux can; elsewhere a process with several runs reports the largest of them.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if _on_gpu():
        _torch().cuda.reset_peak_memory_stats()


def memory() -> dict[str, int]:
    """The largest this process was since ``watch_memory``, here and on the accelerator."""
    found = {"peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    if _on_gpu():
        found["peak_device_bytes"] = int(_torch().cuda.max_memory_allocated())
    return found


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch() -> Any:
    """Only if the run used it: importing it to say that it is there would be silly."""
    return sys.modules.get("torch")


def _on_gpu() -> bool:
    torch = _torch()
    return torch is not None and bool(torch.cuda.is_available())
