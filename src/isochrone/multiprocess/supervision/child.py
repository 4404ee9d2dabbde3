"""The first steps of a forked process, and its end: nothing of the supervisor's stack runs in it."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection

import numpy as np
import structlog

from isochrone.engines.local.parent_death import end_with_parent


def fork(
    run: Callable[[], int], supervisor: int, blocked: Collection[signal.Signals], ignored: Collection[signal.Signals]
) -> int:
    """Fork a process that calls ``run`` and exits with its result; returns its pid.

    ``blocked`` are the signals that the supervisor waits for; the process gets them again, except those ``ignored``.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        end_with_parent(supervisor)
        for number in blocked:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        # Forked processes would draw the same numbers. (``random`` takes care of itself.)
        np.random.seed()
        status = run()
    except BaseException:
        traceback.print_exc()
    finally:
        # Not sys.exit: the supervisor's frames, exit handlers and temporary files are not this process's.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def name_in_logs(name: str | int) -> None:
    """Every log line of this process carries its name."""
    structlog.contextvars.bind_contextvars(process=name)
