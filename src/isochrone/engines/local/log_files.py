"""The log files of processes: one each, with older ones beside it, all of bounded size.

A process writes its file itself, so that a slow or dead supervisor never blocks a worker. The file is opened for
appending, which makes it safe to truncate it while the process writes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

#: Older files that are kept: NAME.log.1 is the newest.
KEPT = 3
#: Bytes that a file may have before it is rotated.
MOST_BYTES = 32 << 20


class LogFiles:
    """The log directory of one supervisor."""

    def __init__(self, directory: Path, most_bytes: int = MOST_BYTES, kept: int = KEPT) -> None:
        self.directory = directory
        self.most_bytes = most_bytes
        self.kept = kept
        directory.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def open(self, name: str) -> int:
        """A descriptor to write to; the caller closes it."""
        return os.open(self.path(name), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def rotate(self, name: str) -> None:
        """Rotate the file of a process that is about to start."""
        path = self.path(name)
        if path.exists() and path.stat().st_size:
            self._shift(name)
            path.rename(self._aside(name, 1))

    def bound(self, name: str) -> bool:
        """Rotate a file that has grown too large, while its process keeps writing.

        Lines written in the moment between the copy and the truncation are lost.
        """
        path = self.path(name)
        try:
            if path.stat().st_size <= self.most_bytes:
                return False
        except FileNotFoundError:
            return False
        self._shift(name)
        shutil.copyfile(path, self._aside(name, 1))
        os.truncate(path, 0)
        return True

    def last_lines(self, name: str, count: int = 5) -> list[str]:
        """The last lines of a log, which may say why a process died."""
        try:
            with self.path(name).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if line.strip()][-count:]

    def _aside(self, name: str, age: int) -> Path:
        return self.directory / f"{name}.log.{age}"

    def _shift(self, name: str) -> None:
        for age in range(self.kept - 1, 0, -1):
            aside = self._aside(name, age)
            if aside.exists():
                aside.replace(self._aside(name, age + 1))
