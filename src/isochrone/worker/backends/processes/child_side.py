"""What every child process of a model does first, and how a failure of its code is described."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1

# Limit of the characters of a traceback.
_LONGEST_TRACEBACK = 8000


def begin(parent: int) -> None:
    """Dies with the server, and shows where native code crashes."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the line above took effect
        os._exit(1)
    faulthandler.enable()


def pin(cpus: Sequence[int]) -> None:
    """Before threads are started, and before libraries count the CPUs."""
    if cpus:
        os.sched_setaffinity(0, cpus)


def import_from(directory: str) -> None:
    # In a process of its own this is safe, and pickled objects can name modules beside model.py.
    sys.path.insert(0, directory)


def traceback_of(error: BaseException) -> str:
    """The traceback of the user's code, shortened at its beginning."""
    return "".join(traceback.format_exception(error.__cause__ or error))[-_LONGEST_TRACEBACK:].rstrip()
