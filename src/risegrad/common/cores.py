"""How many cores there are for us."""

import os


def cores() -> int:
    """Those this process may use; macOS and Windows cannot say, there it is all of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
