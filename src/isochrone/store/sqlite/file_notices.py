"""Wakes a thread when another process has changed a file, through Linux's inotify.

A writer touches the file after its commit (``say_changed``); notices of the writes themselves would wake the reader
before the commit can be read. A notice can be missed, if its sender is killed in between: readers also check
periodically.
"""

from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path

# https://man7.org/linux/man-pages/man7/inotify.7.html
_IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x004, 0x400, 0x800
_IN_NONBLOCK = os.O_NONBLOCK
_IN_CLOEXEC = os.O_CLOEXEC


def say_changed(path: Path) -> None:
    """Touch the file: some 5 µs, without disk access."""
    try:
        os.utime(path)
    except OSError:
        # The next access reports a file that is gone or read-only.
        pass


class FileNotices:
    """Waits for notices about one file, or for ``wake``. One thread waits; any thread may wake it."""

    def __init__(self) -> None:
        self._wake_descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._descriptor = -1
        self._poll = select.poll()
        self._poll.register(self._wake_descriptor, select.POLLIN)

    @property
    def watching(self) -> bool:
        return self._descriptor >= 0

    def watch(self, path: Path) -> bool:
        """Watch the present file. False: inotify is not available (mostly because of its limits)."""
        self.unwatch()
        libc = ctypes.CDLL(None, use_errno=True)
        descriptor = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        if descriptor < 0:
            return False
        if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_ATTRIB | _IN_DELETE_SELF | _IN_MOVE_SELF) < 0:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        self._poll.register(descriptor, select.POLLIN)
        return True

    def unwatch(self) -> None:
        if self._descriptor >= 0:
            self._poll.unregister(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def wake(self) -> None:
        os.eventfd_write(self._wake_descriptor, 1)

    def wait(self, seconds: float | None) -> None:
        """Until a notice, a ``wake``, or the time limit."""
        for descriptor, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if descriptor == self._wake_descriptor:
                os.eventfd_read(descriptor)
            else:
                # Their content is irrelevant.
                os.read(descriptor, 4096)

    def close(self) -> None:
        self.unwatch()
        os.close(self._wake_descriptor)
