"""Ties a process to the life of its parent, then becomes the command: ``python tether.py PARENT COMMAND…``.

The kernel sends SIGTERM when the parent ends, however it ends, so that a supervisor killed by force leaves nothing
behind (PR_SET_PDEATHSIG of prctl(2); it outlasts execve). It is asked for here, in a program of its own, and not in
``preexec_fn``: Python code between fork and exec can deadlock in a process that has threads. Costs some 20 ms of a
start. Imports nothing of the product.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def with_parent_death_signal(command: Sequence[str]) -> list[str]:
    """The words that run a command so, as a child of this process; the first is a program's whole path."""
    # -I and -S: nothing but the standard library is needed, and no site's start-up code.
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    # The parent may have ended before the request: then the signal never comes.
    if os.getppid() != parent:
        sys.exit("the supervisor has ended")
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
