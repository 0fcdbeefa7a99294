"""How much faster one draw is than Algorithm 1 taken literally, on this machine, in this run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from risegrad.rule import Sampler
from risegrad.sandbox.problem import even_gradient
from risegrad.sandbox.simulate import generator, one_thread, shaped

SAMPLES = 400
REPEATS = 5


@dataclass(frozen=True)
class Speed:
    """Processor seconds for ``samples`` shaped gradients by each sampler, and their ratio."""

    d: int
    q: int
    samples: int
    directions_seconds: float
    one_draw_seconds: float

    @property
    def ratio(self) -> float:
        return self.directions_seconds / self.one_draw_seconds


def measure_speed(d: int, q: int, seed: int) -> Speed:
    """Median time over repetitions that alternate between the samplers, after one warm-up each.

    The laws are equal, so only time is compared: that of one thread, which other work on the
    machine changes little; alternating spreads what it changes over both.
    """
    g = even_gradient(d, generator(seed, "speed/gradient"))
    draws = generator(seed, "speed")

    def run(sampler: Sampler) -> Callable[[], object]:
        return lambda: shaped(g, q, SAMPLES, draws, sampler=sampler)

    literal, one = run("directions"), run("one-draw")
    with one_thread():
        times = [(_seconds(literal), _seconds(one)) for _ in range(REPEATS + 1)][1:]
    slow, fast = (median(column) for column in zip(*times, strict=True))
    return Speed(d, q, SAMPLES, slow, fast)


def _seconds(job: Callable[[], object]) -> float:
    start = time.thread_time()
    job()
    return time.thread_time() - start
