"""CUDA graphs of the parts of steps.

A replay launches all kernels of a part at once, where the host would need longer to launch them than the GPU to run
them. Graphs read and write fixed memory, and share one pool of memory for what is between: they run one after another
on one stream. The thread that captures is the one that replays.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch

from isochrone.errors import Internal
from isochrone.worker.backends.devices.uncollected import without_collections

#: What a part does, its size, and perhaps a variant.
PartKey = tuple[str, int, str]

#: cuBLAS and Triton's compiler settle in the first runs; they must not do so while a graph is captured.
_WARM_UP_RUNS = 3


class StepGraphs:
    """Functions as graphs, by keys."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._graphs: dict[PartKey, Any] = {}
        self._thread = 0

    def capture(self, parts: Iterable[tuple[PartKey, Callable[[], None]]]) -> None:
        """Captures in the given order: the largest should come first, then the others fit into its memory.

        A part is taken from ``parts`` when the one before is captured, so a generator can prepare its inputs.
        """
        self._thread = threading.get_ident()
        pool = torch.cuda.graph_pool_handle()
        gc.collect()
        with without_collections():
            for key, function in parts:
                self._graphs[key] = self._captured(pool, function)

    def replay(self, key: PartKey) -> None:
        if threading.get_ident() != self._thread:
            raise Internal("a CUDA graph was replayed on another thread than the one that captured it")
        self._graphs[key].replay()

    def _captured(self, pool: Any, function: Callable[[], None]) -> Any:
        for _ in range(_WARM_UP_RUNS):
            function()
        self._stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
            function()
        return graph
