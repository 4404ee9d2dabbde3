"""A temporary directory that nobody else may read or write, removed with its process.

What a killed process left is removed by the next one of the same user that needs such a directory: a lock tells that
its owner has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import weakref
from pathlib import Path

from isochrone.errors import Internal

_LOCK = "lock"


class PrivateDirectory:
    """It exists as long as this object."""

    def __init__(self, content: str, parent: Path | None = None) -> None:
        """``content``: a word for what it holds, such as "verified"; ``parent``: None is TMPDIR."""
        try:
            place = parent or Path(tempfile.gettempdir())
            sweep(content, place)
            # mkdtemp makes it with mode 0700.
            self.path = Path(tempfile.mkdtemp(prefix=_prefix(content), dir=place))
            lock = _lock(self.path)
        except OSError as error:
            remedy = "" if parent else "; TMPDIR chooses one"
            raise Internal(f"no temporary directory for {content} models: {error}{remedy}") from None
        self._finalizer = weakref.finalize(self, _end, self.path, lock, os.getpid())

    def remove(self) -> None:
        """Now: a forked process that ends runs no finalizers."""
        self._finalizer()


def _lock(directory: Path) -> int:
    """The descriptor of the held lock. It gets its name when it is held: a sweep takes no directory without one."""
    unnamed = directory / f".{_LOCK}"
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(unnamed, directory / _LOCK)
    return descriptor


def _prefix(content: str) -> str:
    return f"isochrone-{content}-"


def sweep(content: str, parent: Path) -> None:
    """Removes the directories of ended processes."""
    for left in parent.glob(f"{_prefix(content)}*"):
        # Another process may sweep, too.
        with contextlib.suppress(OSError):
            found = os.lstat(left)
            # Everybody can write there: a link there may lead anywhere.
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            descriptor = os.open(left / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)


def _end(path: Path, lock: int, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)
