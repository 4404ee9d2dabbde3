"""A timer finer than the event loop's: libuv rounds to milliseconds, but a queue delay may be a hundred microseconds.

It uses Linux's timerfd through ctypes (Python has it from 3.13 on).
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

from isochrone.clock import now_ns

_CLOCK_MONOTONIC = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_ABSOLUTE = 1

_libc = ctypes.CDLL(None, use_errno=True)


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Alarm:
    """Calls back on the loop at an instant of the monotonic clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._spec = _TimerSpec()
        self._at = 0
        self._descriptor = _libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        if self._descriptor < 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error), "timerfd_create")
        loop.add_reader(self._descriptor, self._fire)

    def set(self, at: int) -> None:
        """Calls back at ``at``, or immediately if that has passed. Replaces an earlier setting."""
        if at == self._at:
            return
        self._at = at
        # An absolute time of zero would switch the timer off, so a time in the past becomes "now".
        self._spec.value.seconds, self._spec.value.nanoseconds = divmod(max(at, now_ns() - 1), 1_000_000_000)
        _libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(self._spec), None)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _fire(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        self._at = 0
        self._callback()
