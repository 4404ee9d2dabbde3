"""SIGTERM and a closed terminal end a measuring command as Ctrl-C does: its processes and temporary files go, too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from isochrone.stop_signals import stop_signals

#: The exit status of an interrupted command, as shells have it for Ctrl-C.
INTERRUPTED = 130


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Within it, these signals raise ``KeyboardInterrupt``. Outside the main thread it changes nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {each: signal.signal(each, _interrupt) for each in stop_signals()}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
