"""`python -m bench.activation_cache.comparing`: the time of a picture's plane and of its comparison with a key frame.

Medians in microseconds: repeated at once (warm processor caches), and each time after a run of the network on the same
thread, as between two requests of a worker.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime

from bench.activation_cache.frames import SIDE
from bench.activation_cache.network import network
from isochrone.worker.activation_cache.planes import Reduction
from isochrone.worker.activation_cache.similarity import compare, key_plane

_PICTURES = (
    ("224×224 UINT8", "HWC", (SIDE, SIDE, 3), np.uint8),
    ("1280×720 UINT8", "HWC", (720, 1280, 3), np.uint8),
    ("224×224 FP32", "CHW", (3, SIDE, SIDE), np.float32),
    ("1280×720 FP32", "CHW", (3, 720, 1280), np.float32),
)


def medians(picture: Any, reduction: Reduction, before: Callable[[], object], rounds: int) -> tuple[float, float]:
    plane = reduction.plane(picture)
    assert plane is not None
    key = key_plane(plane)
    planes, comparisons = [], []
    for _ in range(rounds):
        before()
        started = time.perf_counter_ns()
        plane = reduction.plane(picture)
        reduced = time.perf_counter_ns()
        assert plane is not None
        compare(key, plane)
        planes.append(reduced - started)
        comparisons.append(time.perf_counter_ns() - reduced)
    return statistics.median(planes) / 1e3, statistics.median(comparisons) / 1e3


def main() -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(network(), options)
    random = np.random.default_rng(0)
    frame = random.integers(0, 256, (1, SIDE, SIDE, 3)).astype(np.uint8)
    print("| picture | plane, warm | comparison, warm | plane, after a run | comparison, after a run |")
    print("|---|---|---|---|---|")
    for name, layout, shape, dtype in _PICTURES:
        largest = 255.0 if dtype is np.uint8 else 1.0
        picture = (random.random(shape) * largest).astype(dtype)
        reduction = Reduction(layout, 48, 0.0, largest)
        warm = medians(picture, reduction, lambda: None, 500)
        cold = medians(picture, reduction, lambda: session.run(None, {"picture": frame}), 40)
        print(f"| {name} | " + " | ".join(f"{each:.0f} µs" for each in (*warm, *cold)) + " |")


if __name__ == "__main__":
    main()
