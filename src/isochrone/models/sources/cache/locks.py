"""Locks between the processes of a machine: flock(2), which the kernel releases when a process dies."""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.05


@contextmanager
def exclusive(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold a lock file. ``waiting`` is called again and again while another process holds it; it may raise."""
    while (descriptor := _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)) is None:
        waiting()
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def briefly(path: Path) -> Iterator[None]:
    """Hold a lock file that others hold for moments only: the kernel wakes this thread, and nothing ends the wait."""
    descriptor = _lock(path, fcntl.LOCK_EX)
    assert descriptor is not None
    try:
        yield
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether any process holds the lock, alone or shared. A missing file is not held."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_unheld(path: Path) -> None:
    """Remove a lock file that no process holds. Those that are about to lock it notice (``_lock``)."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Held until it is gone: otherwise another process may lock it in between. That one may have replaced it.
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            os.unlink(path)
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        os.close(descriptor)


class SharedLock:
    """A shared lock on a file that nobody holds alone for long.

    It is held until ``release``, the end of this object, or the end of the process.
    """

    def __init__(self, path: Path) -> None:
        descriptor = _lock(path, fcntl.LOCK_SH)
        assert descriptor is not None
        self._finalizer = weakref.finalize(self, os.close, descriptor)

    def release(self) -> None:
        self._finalizer()


def _lock(path: Path, kind: int) -> int | None:
    """The locked file's descriptor; None, with LOCK_NB alone: it is locked already."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        # Its last holder may have removed the file meanwhile: then the lock is on a file that nobody finds.
        try:
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)
