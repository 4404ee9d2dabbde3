"""Forked copies of this process: a model that calls ``os.fork`` makes one, and nobody else may use it.

A copy that returned from the model into the server's code would answer the requests of the original and hold its ports.
So it ends there. When it is forked, it loses what it could harm the original with: its links are closed, and signals
that are sent to it do not reach the original's event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import traceback
from typing import NoReturn
from weakref import WeakSet

from isochrone.stop_signals import stop_signals

#: Differs between a process and its copies; keep the number of the process that loads a model. Read it as
#: ``forks.generation``: that takes 20 ns, where ``os.getpid`` is a system call.
generation = 0
#: The text of the error if a copy asks for something that only the original has.
UNREACHABLE = "the server cannot be reached from a process that the model has forked"

_links: WeakSet[socket.socket] = WeakSet()
_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def close_in_copies(*links: socket.socket) -> None:
    """What a copy sent over these would be taken for the original's."""
    _links.update(links)


def end_copies_of(loop: asyncio.AbstractEventLoop) -> None:
    """A copy that a coroutine of this loop makes ends as soon as it waits or returns: both share their selector."""
    _loops.add(loop)


def end_if_copy(original: int, error: BaseException | None = None) -> None:
    """The model has returned, or raised ``error``; ``original``: the generation that loaded it."""
    if generation != original:
        end_copy(error)


def end_copy(error: BaseException | None = None) -> NoReturn:
    """Ends this process as a script would end; without the exit handlers, which are the original's."""
    status: object = 0
    if error is not None:
        raised = error if isinstance(error, SystemExit) else error.__cause__ or error
        status = raised.code or 0 if isinstance(raised, SystemExit) else 1
        if not isinstance(raised, SystemExit):
            # Not sys.stderr: a thread of the original may have held its lock.
            os.write(2, "".join(traceback.format_exception(raised)).encode(errors="replace"))
    os._exit(status if isinstance(status, int) else 1)


def _forked() -> None:
    """In the copy, before the model's code goes on."""
    global generation
    generation += 1
    # A signal would be written into the original's event loop, and would stop the server instead of the copy.
    if signal.set_wakeup_fd(-1) != -1:
        for number in stop_signals():
            signal.signal(number, signal.SIG_DFL)
    for link in list(_links):
        link.close()
    for loop in list(_loops):
        try:
            loop.call_soon(os._exit, 0)
        except RuntimeError:  # it is closed
            pass


os.register_at_fork(after_in_child=_forked)
