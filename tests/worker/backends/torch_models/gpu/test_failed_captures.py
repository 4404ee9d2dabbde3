"""Captures that fail: the pool is released exactly once, by torch or for it."""

from __future__ import annotations

import gc
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from isochrone.worker.backends.devices.uncollected import without_collections
from isochrone.worker.backends.torch.gpu.device import CudaDevice


class Graph:
    """As torch's: it has a pool once its capture has ended, and releases that when it goes."""

    def __init__(self, log: list[str], *, ends: bool) -> None:
        self._log, self._ends, self._has_ended = log, ends, False

    def capture_begin(self, **_: Any) -> None:
        assert not gc.isenabled()
        self._log.append("begin")

    def capture_end(self) -> None:
        if not self._ends:
            raise RuntimeError("operation failed due to a previous error during capture")
        self._has_ended = True
        self._log.append("end")

    def pool(self) -> str:
        if not self._has_ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return "pool"

    def replay(self) -> None:
        self._log.append("replay")


def device(log: list[str], *, ends: bool) -> CudaDevice:
    cuda = SimpleNamespace(
        default_stream=lambda index: None,
        stream=lambda stream: nullcontext(),
        device=lambda index: nullcontext(),
        CUDAGraph=lambda: Graph(log, ends=ends),
    )
    internals = SimpleNamespace(
        _cuda_endAllocateToPool=lambda *_: log.append("end of allocation"),
        _cuda_releasePool=lambda *_: log.append("released"),
    )
    return CudaDevice(SimpleNamespace(cuda=cuda, _C=internals), 0)


STREAM = SimpleNamespace(synchronize=lambda: None)


@pytest.mark.parametrize("ends", [True, False])
def test_the_pool_of_a_failed_capture_is_released_once(ends: bool) -> None:
    log: list[str] = []

    def run() -> None:
        raise MemoryError("no more")

    with pytest.raises(MemoryError, match="no more"):
        device(log, ends=ends).capture(run, STREAM, "pool", warm_runs=0)
    assert log == (["begin", "end"] if ends else ["begin", "end of allocation", "released"])
    assert gc.isenabled()


def test_a_capture_that_succeeds_is_replayed() -> None:
    log: list[str] = []
    _, results = device(log, ends=True).capture(lambda: "results", STREAM, "pool", warm_runs=2)
    assert (log, results) == (["begin", "end", "replay"], "results")


def test_the_last_of_several_captures_lets_the_collector_go_on() -> None:
    inside, leave = threading.Event(), threading.Event()

    def capture() -> None:
        with without_collections():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=capture)
    with without_collections():
        thread.start()
        assert inside.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="inside"), without_collections():
        raise ValueError("inside")
    assert gc.isenabled()
