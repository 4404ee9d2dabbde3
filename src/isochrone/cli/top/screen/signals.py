"""Signals as bytes of a pipe, so that they are handled between two frames and never inside one.

A second request to stop, while the first waits for a terminal that takes no output, ends the command at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

from isochrone.stop_signals import stop_signals


class Signals:
    """Stop signals, SIGWINCH, SIGTSTP and SIGCONT, until the block ends."""

    def __init__(self) -> None:
        self._stops = stop_signals()
        self._found: dict[signal.Signals, Any] = {}
        self._stopped = False

    def __enter__(self) -> Signals:
        self.descriptor, self._write = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write, False)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (*self._stops, signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT):
            self._found[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, found in self._found.items():
            signal.signal(number, found)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self.descriptor)
        os.close(self._write)

    def taken(self) -> list[int]:
        """The signals since the last call."""
        try:
            return list(os.read(self.descriptor, 1024))
        except BlockingIOError:
            return []

    def is_stop(self, number: int) -> bool:
        return number in self._stops

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in self._stops:
            if self._stopped:
                raise KeyboardInterrupt
            self._stopped = True
