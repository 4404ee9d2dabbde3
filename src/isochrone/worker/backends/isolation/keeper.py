"""Watches the process of an isolated model between calls: its end is noticed at once, not by the next caller.

It is a thread that sleeps while the process lives: calls do not wake it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from isochrone.worker.backends.processes.child import polled

#: Of one wait: a pause may be changed meanwhile.
_LONGEST_WAIT_MS = 10_000


class Keeper:
    """Has a process replaced that has ended."""

    def __init__(self, name: str, replace: Callable[[], int | None]) -> None:
        """``replace`` is called on a thread of its own when the process that was started last has ended. It returns the
        milliseconds after which it has to be called again; None: not before the next process has ended."""
        self._replace = replace
        self._started: SimpleQueue[int] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"keeper-{name}", daemon=True)
        self._thread.start()

    def watch(self, death: int) -> None:
        """A process was started; ``death`` is readable when it has ended, and may be closed by its owner before."""
        self._started.put(os.dup(death))
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Waits for a call of ``replace`` that has begun."""
        self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        self._newest(-1, close=True)
        os.close(self._wake)

    def _run(self) -> None:
        death, wait_ms = -1, None
        while not self._closing:
            watched = [self._wake] if death < 0 else [self._wake, death]
            ready = [descriptor for descriptor, _ in polled(*watched).poll(wait_ms)]
            if self._wake in ready:
                os.eventfd_read(self._wake)
                newest = self._newest(death)
                if newest != death:
                    death, wait_ms = newest, None
                continue
            if death >= 0:
                # The process that takes its place has a descriptor of its own.
                os.close(death)
                death = -1
            wait_ms = self._replace()
            if wait_ms is not None:
                wait_ms = min(wait_ms, _LONGEST_WAIT_MS)
        if death >= 0:
            os.close(death)

    def _newest(self, death: int, *, close: bool = False) -> int:
        """The descriptor of the last process that was started, in place of ``death``. The others are closed."""
        while True:
            try:
                started = self._started.get_nowait()
            except Empty:
                return death
            if death >= 0:
                os.close(death)
            death = started
            if close:
                os.close(death)
                death = -1
