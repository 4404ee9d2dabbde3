"""Isolated models that tests have started, so that those a failed test leaves open do not fail the tests after it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Collection, Iterable
from typing import TypeVar

from isochrone.worker.backends.isolation.executable import IsolatedExecutable
from isochrone.worker.backends.python.triton.isolation.executable import IsolatedTritonExecutable

Isolated = TypeVar("Isolated", IsolatedExecutable, IsolatedTritonExecutable)

_started: list[IsolatedExecutable | IsolatedTritonExecutable] = []


def started(executable: Isolated) -> Isolated:
    """Registers an executable that the fixture ``nothing_leaks`` closes if the test fails before it does."""
    _started.append(executable)
    return executable


def forget_all() -> None:
    _started.clear()


def close_left_open(threads_before: Collection[threading.Thread]) -> None:
    """Closes what a failed test has left open, and waits for the threads that it has started."""
    left = [executable for executable in _started if executable._spawner._thread.is_alive()]
    for executable in left:
        if executable.pid is not None:
            # A model that hangs would be waited for.
            with contextlib.suppress(ProcessLookupError):
                os.kill(executable.pid, signal.SIGKILL)
    # Threads of the test itself, which may be in a call: the death of the process ends it.
    _join(thread for thread in threading.enumerate() if thread not in threads_before and not thread.daemon)
    with contextlib.ExitStack() as closing:
        for executable in left:
            closing.callback(executable.close)
    _join(thread for thread in threading.enumerate() if thread not in threads_before)


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
