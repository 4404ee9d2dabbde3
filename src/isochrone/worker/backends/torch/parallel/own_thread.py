"""The thread on which rank 0 computes, while its main thread watches the other ranks.

A collective whose partner has died may wait for long; the main thread must not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class OwnThread:
    """Runs one task at a time. ``finished`` is readable when it has ended."""

    def __init__(self, name: str) -> None:
        self.finished = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._tasks: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        self.result: Any = None
        self.error: BaseException | None = None
        # A daemon: it may be inside a collective that never ends.
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def begin(self, task: Callable[[], Any]) -> None:
        self.result = self.error = None
        self._tasks.put(task)

    def take(self) -> None:
        """The task has ended: ``finished`` is not readable any more."""
        os.eventfd_read(self.finished)

    def _serve(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                self.result = task()
            except BaseException as error:
                self.error = error
            del task
            os.eventfd_write(self.finished, 1)
