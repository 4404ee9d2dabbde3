"""The part of torch.cuda that an instance needs: streams, events, pinned memory, graphs.

``HostDevice`` does the same on the CPU, at once and in order. Tests use it: the way of a batch through the slots is the
same code on both.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Protocol

import structlog

from isochrone.devices.cuda.library import process_driver
from isochrone.devices.loads import loading
from isochrone.worker.backends.devices.streams import SHELF
from isochrone.worker.backends.devices.uncollected import without_collections
from isochrone.worker.backends.torch.gpu.pool_memory import pool_bytes

log = structlog.get_logger(__name__)

#: Runs before a capture.
WARM_RUNS = 3


class Device(Protocol):
    """One device, as one instance uses it."""

    #: torch's name: ``cuda:0``, ``cpu``.
    name: str
    index: int

    def stream(self) -> Any:
        """A stream of the instance's own, until ``release_stream``."""

    def release_stream(self, stream: Any) -> None: ...

    def release_streams(self) -> None:
        """Releases all that are left, as after a load that failed."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """What is launched inside goes to the stream."""

    def event(self) -> Any:
        """A new event, with ``record(stream)``, ``query()`` and ``synchronize()``, which releases the interpreter."""

    def wait(self, stream: Any, event: Any) -> None:
        """What is launched on the stream from now on waits for the event."""

    def synchronize(self, stream: Any) -> None:
        """Waits for everything that was launched on a stream."""

    def host_bytes(self, size: int, pinned: bool) -> Any:
        """A tensor of bytes in the host's memory."""

    def device_bytes(self, size: int) -> Any: ...

    def start_copies(self, copies: Sequence[tuple[int, int, int]], stream: Any) -> None:
        """Starts copies of (target, source, size) from pinned memory to the device's, by their addresses."""

    def capture(
        self, run: Callable[[], Any], stream: Any, pool: Any, warm_runs: int = WARM_RUNS
    ) -> tuple[Callable[[], None], Any]:
        """A function that repeats what ``run`` launches, and what ``run`` returned, at fixed addresses.

        ``warm_runs``: runs before, until libraries have chosen their algorithms and allocated their workspaces.
        """

    def graph_pool(self) -> Any: ...

    def pool_bytes(self, pool: Any) -> int | None:
        """Bytes of the device that a pool has taken; None: unknown."""

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the device."""

    def reserved(self) -> int:
        """Bytes that this process has allocated there, including what is cached."""

    def free_cached(self) -> None:
        """Gives memory that nothing uses back to the device."""


class _CurrentStream(threading.local):
    """The stream to which this thread launches; None: the device's default stream."""

    stream: Any = None


class _OnStream:
    """``torch.cuda.stream`` without its look-ups of the current stream, which take tens of microseconds."""

    __slots__ = ("_before", "_cuda", "_current", "_default", "_stream")

    def __init__(self, cuda: Any, stream: Any, default: Any, current: _CurrentStream) -> None:
        self._cuda = cuda
        self._stream = stream
        self._default = default
        self._current = current
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = self._current.stream
        self._current.stream = self._stream
        self._cuda.set_stream(self._stream)

    def __exit__(self, *_: object) -> None:
        self._current.stream = self._before
        self._cuda.set_stream(self._before or self._default)


class CudaDevice:
    """A GPU, or the reserved part of its multiprocessors."""

    def __init__(self, torch: Any, index: int, *, busy_wait: bool = False, is_reserved: bool = False) -> None:
        self._torch = torch
        self._cuda = torch.cuda
        self._busy_wait = busy_wait
        self._is_reserved = is_reserved
        self.index = index
        self.name = f"cuda:{index}"
        self._current = _CurrentStream()
        self._default = torch.cuda.default_stream(index)
        self._streams: list[Any] = []

    def stream(self) -> Any:
        if self._is_reserved:
            stream = SHELF.take_reserved(self.name)
        else:
            stream = SHELF.take(self.name, lambda: self._cuda.Stream(self.index))
        self._streams.append(stream)
        return stream

    def release_stream(self, stream: Any) -> None:
        self._streams.remove(stream)
        SHELF.give(self.name, stream)

    def release_streams(self) -> None:
        while self._streams:
            SHELF.give(self.name, self._streams.pop())

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return _OnStream(self._cuda, stream, self._default, self._current)

    def event(self) -> Any:
        return self._cuda.Event(blocking=not self._busy_wait)

    def wait(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def synchronize(self, stream: Any) -> None:
        stream.synchronize()

    def host_bytes(self, size: int, pinned: bool) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8, pin_memory=pinned)

    def device_bytes(self, size: int) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8, device=self.name)

    def start_copies(self, copies: Sequence[tuple[int, int, int]], stream: Any) -> None:
        process_driver().start_copies(self.index, copies, stream.cuda_stream)

    def capture(
        self, run: Callable[[], Any], stream: Any, pool: Any, warm_runs: int = WARM_RUNS
    ) -> tuple[Callable[[], None], Any]:
        for _ in range(warm_runs):
            with self._cuda.stream(stream):
                run()
        stream.synchronize()
        graph = self._cuda.CUDAGraph()
        try:
            with without_collections(), self._cuda.stream(stream):
                # Not torch.cuda.graph, which waits for the whole device and frees what every model has cached there.
                # thread_local: other models go on using the device meanwhile.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    results = run()
                except BaseException:
                    with suppress(Exception):  # the capture is invalid: the first error says why
                        graph.capture_end()
                    raise
                graph.capture_end()
        except BaseException:
            if not _has_ended(graph):
                self._end_capture(pool)
            raise
        # The first replay uploads the graph.
        with self._cuda.stream(stream):
            graph.replay()
        stream.synchronize()
        return graph.replay, results

    def _end_capture(self, pool: Any) -> None:
        """Ends the use of a pool whose capture failed.

        torch leaves that to the end of the capture, which raised: its allocator would give no memory back to the device
        any more. There is no public call. A graph whose capture has ended releases the pool itself, once.
        """
        end = getattr(self._torch._C, "_cuda_endAllocateToPool", None)
        release = getattr(self._torch._C, "_cuda_releasePool", None)
        with self._cuda.device(self.index):
            for call in (end, release):
                if call is not None:
                    try:
                        call(self.index, pool)
                    except Exception as error:  # it had ended
                        log.debug("a pool of a failed capture was released before", error=str(error))

    def graph_pool(self) -> Any:
        return self._cuda.graph_pool_handle()

    def pool_bytes(self, pool: Any) -> int | None:
        snapshot = self._cuda.memory_snapshot
        # Newer versions look at one pool alone, if asked.
        takes_pool = "mempool_id" in inspect.signature(snapshot).parameters
        return pool_bytes(snapshot(pool) if takes_pool else snapshot(), self.index, pool)

    def memory(self) -> tuple[int, int]:
        free, total = self._cuda.mem_get_info(self.index)
        return int(free), int(total)

    def reserved(self) -> int:
        return int(self._cuda.memory_reserved(self.index))

    def free_cached(self) -> None:
        with loading(), self._cuda.device(self.index):
            self._cuda.empty_cache()


def _has_ended(graph: Any) -> bool:
    """Whether the capture of a graph has ended: only then it has a pool."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


class HostDevice:
    """The CPU: every launch has ended when it returns."""

    name = "cpu"
    index = 0

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def stream(self) -> Any:
        return None

    def release_stream(self, stream: Any) -> None: ...

    def release_streams(self) -> None: ...

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def event(self) -> Any:
        return _HostEvent()

    def wait(self, stream: Any, event: Any) -> None:
        event.synchronize()

    def synchronize(self, stream: Any) -> None: ...

    def host_bytes(self, size: int, pinned: bool) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8)

    def device_bytes(self, size: int) -> Any:
        return self._torch.empty(size, dtype=self._torch.uint8)

    def start_copies(self, copies: Sequence[tuple[int, int, int]], stream: Any) -> None:
        for target, source, size in copies:
            ctypes.memmove(target, source, size)

    def capture(
        self, run: Callable[[], Any], stream: Any, pool: Any, warm_runs: int = WARM_RUNS
    ) -> tuple[Callable[[], None], Any]:
        results = run()

        def replay() -> None:
            for kept, fresh in zip(results, run(), strict=True):
                kept.copy_(fresh)

        return replay, results

    def graph_pool(self) -> Any:
        return None

    def pool_bytes(self, pool: Any) -> int | None:
        return None

    def memory(self) -> tuple[int, int]:
        return 1 << 40, 1 << 40

    def reserved(self) -> int:
        return 0

    def free_cached(self) -> None: ...


class _HostEvent:
    def record(self, stream: Any = None) -> None: ...

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...
