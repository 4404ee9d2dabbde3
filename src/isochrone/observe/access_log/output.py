"""Where lines of the access log go: a file, which may be rotated, or standard output."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

#: Written at once, of whole lines: up to this size, writes of several processes to one pipe do not mix.
_WRITTEN_AT_ONCE: Final = 4096
_STANDARD_OUTPUT: Final = 1


class LogOutput:
    """A file that is opened for appending. ``path``: "" is standard output, which is never closed."""

    def __init__(self, path: str) -> None:
        """Raises ``OSError``."""
        self.path = path
        self._file = self._opened()

    def write(self, lines: Iterable[bytes]) -> None:
        """Raises ``OSError``. A process that is rotated away from its file writes to the new one."""
        if self.path and self._is_moved():
            self.reopen()
        waiting = b""
        for line in lines:
            if waiting and len(waiting) + len(line) > _WRITTEN_AT_ONCE:
                self._write(waiting)
                waiting = b""
            waiting += line
        if waiting:
            self._write(waiting)

    def reopen(self) -> None:
        """Raises ``OSError``: the file before stays open."""
        if self.path:
            before, self._file = self._file, self._opened()
            os.close(before)

    def close(self) -> None:
        if self.path:
            os.close(self._file)

    def _opened(self) -> int:
        if not self.path:
            return _STANDARD_OUTPUT
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _is_moved(self) -> bool:
        """Whether the path names another file by now, or none."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return True
        here = os.fstat(self._file)
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._file, data) :]


def has_terminal() -> bool:
    """Whether the process belongs to a terminal, whose end SIGHUP announces."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
