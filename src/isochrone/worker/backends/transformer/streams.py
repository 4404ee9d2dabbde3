"""CUDA streams that instances hand on when they are closed.

cuBLAS keeps a workspace (32 MiB on Hopper) for every stream that it has seen, for the life of the process. A new stream
for every load would leave one behind each time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class StreamShelf:
    """Streams that no instance uses, by device. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[str, list[Any]] = {}

    def take(self, device: str, make: Callable[[], Any]) -> Any:
        """A stream of a device; ``make`` makes a new one."""
        with self._lock:
            free = self._free.get(device)
            return free.pop() if free else make()

    def give(self, device: str, stream: Any) -> None:
        """Takes back a stream on which nothing runs any more."""
        with self._lock:
            self._free.setdefault(device, []).append(stream)


SHELF = StreamShelf()
