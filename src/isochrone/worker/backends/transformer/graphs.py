"""CUDA graphs of decode steps: the model once per size of batch, sampling once per size and kind.

A replay launches all kernels of a step at once, where the host would need longer to launch them than the GPU to run
them. Graphs read and write fixed memory, and share one pool of memory for what is between: they run one after another
on one stream. The thread that captures is the one that replays.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from isochrone.errors import Internal

#: cuBLAS and Triton's compiler settle in the first runs; they must not do so while a graph is captured.
_WARM_UP_RUNS = 3


class DecodeGraphs:
    """``compute(rows)`` and ``sample(rows, kind)`` as graphs."""

    def __init__(
        self,
        stream: Any,
        compute: Callable[[int], None],
        sample: Callable[[int, str], None],
    ) -> None:
        self._stream = stream
        self._compute = compute
        self._sample = sample
        self._models: dict[int, Any] = {}
        self._samplers: dict[tuple[int, str], Any] = {}
        self._thread = 0

    def capture(self, buckets: Sequence[int], kinds: Sequence[str]) -> None:
        """Captures the largest first: the smaller ones fit into its memory."""
        self._thread = threading.get_ident()
        pool = torch.cuda.graph_pool_handle()
        collects = gc.isenabled()
        gc.collect()
        gc.disable()  # a tensor freed in the middle of a capture would break it
        try:
            for rows in sorted(buckets, reverse=True):
                self._models[rows] = self._captured(pool, lambda rows=rows: self._compute(rows))  # type: ignore[misc]
                for kind in kinds:
                    self._samplers[rows, kind] = self._captured(
                        pool,
                        lambda rows=rows, kind=kind: self._sample(rows, kind),  # type: ignore[misc]
                    )
        finally:
            if collects:
                gc.enable()

    def replay(self, rows: int, kind: str) -> None:
        if threading.get_ident() != self._thread:
            raise Internal("a CUDA graph was replayed on another thread than the one that captured it")
        self._models[rows].replay()
        self._samplers[rows, kind].replay()

    def _captured(self, pool: Any, function: Callable[[], None]) -> Any:
        for _ in range(_WARM_UP_RUNS):
            function()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
            function()
        return graph
