"""onnxruntime alone in a loop, without a server: the bound for a perfect server with the same thread and batch size."""

import time
from pathlib import Path

import numpy as np
import onnxruntime

from bench.worker.models import INPUT, OUTPUT


def session(path: Path, intra_op_threads: int = 1) -> onnxruntime.InferenceSession:
    """The model with the thread settings every server in the bench gets."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = intra_op_threads
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def rows_per_second(loaded: onnxruntime.InferenceSession, batch: int, seconds: float) -> float:
    """Rows per second at one batch size."""
    width = loaded.get_inputs()[0].shape[1]
    rows = np.random.default_rng(7).standard_normal((batch, width), dtype=np.float32)
    for _ in range(3):
        loaded.run([OUTPUT], {INPUT: rows})
    runs = 0
    started = now = time.perf_counter()
    while now - started < seconds:
        loaded.run([OUTPUT], {INPUT: rows})
        runs += 1
        now = time.perf_counter()
    return runs * batch / (now - started)
