"""CUDA streams of instances: each has its own, and later loads get those of instances that were closed.

cuBLAS keeps a workspace (32 MiB on Hopper) for every stream that it has seen, for the life of the process: a new stream
for every load would leave one behind each time. torch has 32 streams for each device and hands them out in turn, also
those in use: two instances on one stream would capture each other's launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from isochrone.errors import Unavailable

#: Streams that torch is asked for before it is certain that all of its own are in use.
_TRIES = 33


class StreamShelf:
    """The streams of this process, by device. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[str, list[Any]] = {}
        #: Device → handles of the streams that instances have.
        self._taken: dict[str, set[int]] = {}

    def take(self, device: str, make: Callable[[], Any]) -> Any:
        """A stream of a device that no other instance has; ``make`` makes one."""
        with self._lock:
            free, taken = self._free.setdefault(device, []), self._taken.setdefault(device, set())
            stream = free.pop() if free else self._unused(device, taken, make)
            taken.add(stream.cuda_stream)
            return stream

    @staticmethod
    def _unused(device: str, taken: set[int], make: Callable[[], Any]) -> Any:
        for _ in range(_TRIES):
            stream = make()
            if stream.cuda_stream not in taken:
                return stream
        raise Unavailable(f"{device}: instances use all {len(taken)} streams that torch has; unload models")

    def give(self, device: str, stream: Any) -> None:
        """Takes back a stream on which nothing runs any more."""
        with self._lock:
            self._taken[device].discard(stream.cuda_stream)
            self._free[device].append(stream)


SHELF = StreamShelf()
