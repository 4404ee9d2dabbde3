"""Runs a command that gets SIGTERM when its parent ends: ``python parent_death.py PARENT COMMAND…``.

The kernel sends the signal however the parent ends, so that a killed supervisor leaves no process behind
(PR_SET_PDEATHSIG of prctl(2), which survives execve). This is a program of its own, and not a ``preexec_fn``: Python
code between fork and exec can deadlock in a process that has threads. It adds some 20 ms to a start. Imports nothing of
the product.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """The command line that runs a command as a child of this process with that signal set."""
    # -I and -S: only the standard library is needed, and no start-up code of a site.
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *command]


def end_with_parent(parent: int) -> None:
    """This process gets SIGTERM when its parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # If the parent ended before the call, the signal never comes.
    if os.getppid() != parent:
        sys.exit("the supervisor has ended")


def main(parent: int, command: list[str]) -> None:
    end_with_parent(parent)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
