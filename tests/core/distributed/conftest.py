from collections.abc import Callable, Iterator

import pytest

from core.distributed.pool import Pool


@pytest.fixture(scope="session")
def processes() -> Iterator[Callable[[int], Pool]]:
    """``processes(4)``: a pool of four workers, shared by all tests."""
    pools: dict[int, Pool] = {}
    yield lambda size: pools.setdefault(size, Pool(size))
    for pool in pools.values():
        pool.close()
