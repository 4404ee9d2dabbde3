"""Signals that end a measuring command: what it started is ended first, and the exit status names the signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from isochrone.stop_signals import stop_signals

#: Added to the number of the signal, as shells do: 130 is Ctrl-C, 143 is SIGTERM.
_SIGNALLED = 128


class _Interrupted(KeyboardInterrupt):
    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def exits_on_signals() -> Iterator[None]:
    """Within it, Ctrl-C, SIGTERM and a closed terminal end the command: blocks inside are left as by an exception.

    Further signals wait until those blocks are left. Outside the main thread it changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handled = stop_signals()

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, _leave_running)
        raise _Interrupted(number)

    before = {each: signal.signal(each, interrupt) for each in handled}
    try:
        yield
    except _Interrupted as interrupted:
        raise typer.Exit(_SIGNALLED + interrupted.number) from None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _leave_running(number: int, frame: FrameType | None) -> None:
    """Not SIG_IGN, which child processes would inherit."""
