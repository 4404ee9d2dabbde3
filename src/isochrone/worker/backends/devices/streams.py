"""CUDA streams of instances: each has its own, and later loads get those of instances that were closed.

cuBLAS keeps a workspace (32 MiB on Hopper) for every stream that it has seen, for the life of the process: a new stream
for every load would leave one behind each time. torch has 32 streams for each device and hands them out in turn, also
those in use: two instances on one stream would capture each other's launches.

A device may be divided: some of its multiprocessors are reserved for instances that ask for them. While there is such
an instance, all others get streams of the rest. Those that have streams already keep them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isochrone.errors import Unavailable

#: Streams that torch is asked for before it is certain that all of its own are in use.
_TRIES = 33

MakeStream = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """The two parts of a divided device."""

    make_reserved: MakeStream
    make_rest: MakeStream
    #: Whether the rest is all that others get even while nobody uses what is reserved.
    is_permanent: bool


class StreamShelf:
    """The streams of this process, by device. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: By device, or by device and part.
        self._free: dict[tuple[str, str], list[Any]] = {}
        #: The same → handles of the streams that instances have.
        self._taken: dict[tuple[str, str], set[int]] = {}
        self._parts: dict[str, Parts] = {}

    def divide(self, device: str, parts: Parts) -> None:
        """From now on, or from a later call of ``take_reserved`` on, ``take`` gives streams of the rest."""
        with self._lock:
            self._parts[device] = parts

    def take(self, device: str, make: MakeStream) -> Any:
        """A stream of a device that no other instance has; ``make`` makes one of the whole device."""
        with self._lock:
            parts = self._parts.get(device)
            if parts is not None and (parts.is_permanent or self._taken.get((device, "reserved"))):
                return self._take((device, "rest"), parts.make_rest)
            return self._take((device, ""), make)

    def take_reserved(self, device: str) -> Any:
        """A stream of the reserved part of a device that was divided."""
        with self._lock:
            return self._take((device, "reserved"), self._parts[device].make_reserved)

    def undivided(self, device: str) -> int:
        """How many streams of the whole device instances have."""
        with self._lock:
            return len(self._taken.get((device, ""), ()))

    def give(self, device: str, stream: Any) -> None:
        """Takes back a stream on which nothing runs any more."""
        with self._lock:
            for place, taken in self._taken.items():
                if place[0] == device and stream.cuda_stream in taken:
                    taken.discard(stream.cuda_stream)
                    self._free[place].append(stream)
                    return
            raise ValueError(f"{device}: a stream was given back that nobody had taken")

    def _take(self, place: tuple[str, str], make: MakeStream) -> Any:
        free, taken = self._free.setdefault(place, []), self._taken.setdefault(place, set())
        stream = free.pop() if free else self._unused(place[0], taken, make)
        taken.add(stream.cuda_stream)
        return stream

    @staticmethod
    def _unused(device: str, taken: set[int], make: MakeStream) -> Any:
        for _ in range(_TRIES):
            stream = make()
            if stream.cuda_stream not in taken:
                return stream
        raise Unavailable(
            f"{device}: instances use all {len(taken)} streams that torch has in a process; unload models, or give "
            'some of them processes of their own (isolation: "process")'
        )


SHELF = StreamShelf()
