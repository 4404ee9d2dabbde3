"""Reads the log files of ``log_files``: the last lines, and new lines as they are written.

A file may be renamed or truncated by a rotation while it is read; no line is returned twice, and no line of a renamed
file is lost. Never writes.
"""

from __future__ import annotations

import os
from pathlib import Path

_SUFFIX = ".log"
#: Bytes read from the end at first; doubled while they are too few.
_BLOCK = 64 * 1024


def log_files(directory: Path) -> dict[str, Path]:
    """By the name of the process; without rotated files."""
    try:
        return {path.name.removesuffix(_SUFFIX): path for path in sorted(directory.glob(f"*{_SUFFIX}"))}
    except OSError:
        return {}


class LogReader:
    """Reads one process's file: ``tail`` first, then ``news`` repeatedly."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = 0
        self._offset = 0
        #: The beginning of an incomplete line.
        self._rest = b""

    def tail(self, count: int) -> list[str]:
        """The present last lines; an absent file has none."""
        try:
            with self.path.open("rb") as file:
                end = position = file.seek(0, os.SEEK_END)
                content, size = b"", _BLOCK
                while position > 0 and content.count(b"\n") <= count:
                    position, size = max(0, end - size), 2 * size
                    file.seek(position)
                    content = file.read(end - position)
                self._inode, self._offset = os.fstat(file.fileno()).st_ino, end
        except OSError:
            return []
        whole, _, self._rest = content.rpartition(b"\n")
        lines = _decoded(whole)
        return lines[-count:] if count else []

    def news(self) -> list[str]:
        """The complete lines that were added since the last call."""
        lines: list[str] = []
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if self._inode and status.st_ino != self._inode:
                    lines += self._remains()
                if status.st_ino != self._inode or status.st_size < self._offset:
                    # Another file, or the same one after a truncation: everything in it is new.
                    self._inode, self._offset, self._rest = status.st_ino, 0, b""
                lines += self._lines(file.seek(self._offset), file.read())
        except OSError:
            pass  # absent during a rotation
        return lines

    def _remains(self) -> list[str]:
        """The lines between the last read and the rotation of the file."""
        aside = self.path.with_name(f"{self.path.name}.1")
        with aside.open("rb") as file:
            if os.fstat(file.fileno()).st_ino != self._inode:
                return []
            return self._lines(file.seek(self._offset), file.read())

    def _lines(self, offset: int, content: bytes) -> list[str]:
        self._offset = offset + len(content)
        whole, newline, rest = (self._rest + content).rpartition(b"\n")
        self._rest = rest
        return _decoded(whole) if newline else []


def _decoded(whole: bytes) -> list[str]:
    return whole.decode(errors="replace").split("\n") if whole else []
