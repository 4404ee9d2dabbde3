"""The library alone in a loop, without a server: what a caller in the same process would get."""

import time
from dataclasses import dataclass

import numpy as np

from bench.worker.trees.models import FEATURES, Predict


@dataclass(frozen=True)
class Loop:
    """Rows per second and microseconds of a call, at one batch size."""

    batch: int
    rows_per_second: float
    median_us: float
    p99_us: float


def loop(predict: Predict, batch: int, seconds: float) -> Loop:
    rows = np.random.default_rng(7).standard_normal((batch, FEATURES), dtype=np.float32)
    for _ in range(3):
        predict(rows)
    times = []
    started = now = time.perf_counter()
    while now - started < seconds:
        predict(rows)
        ended = time.perf_counter()
        times.append(ended - now)
        now = ended
    times.sort()
    return Loop(
        batch,
        len(times) * batch / (now - started),
        times[len(times) // 2] * 1e6,
        times[int(len(times) * 0.99)] * 1e6,
    )
