"""The memory in which the processes of a gateway keep the accounts of its callers. Made before they are forked."""

from __future__ import annotations

import fcntl
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

from isochrone.gateway.traffic.quota_ledger import QuotaLedger, size

#: The lock is held for some 20 µs, unless its owner has to wait for a processor.
_ATTEMPTS, _PAUSE_SECONDS = 100, 0.0002


class QuotaMemory:
    """Of ``count`` processes. Pages that no account uses take no memory."""

    def __init__(self, count: int, lock_file: Path) -> None:
        self._count = count
        self._lock_file = lock_file
        self._secret = os.urandom(32)
        self._words = memoryview(mmap.mmap(-1, size(count))).cast("q")

    def ledger(self, number: int) -> QuotaLedger:
        """The accounts as the process ``number`` sees them. Called in that process, which is new."""
        ledger = QuotaLedger(self._words, self._count, number, self._secret, _FileLock(self._lock_file))
        ledger.forget_in_flight()
        return ledger


class _FileLock:
    """Taken once per account. The kernel releases it when its process dies; a process that is stopped must not keep the
    others waiting, so the wait is short."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __call__(self, do: Callable[[], None]) -> bool:
        for _ in range(_ATTEMPTS):
            try:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(_PAUSE_SECONDS)
                continue
            try:
                do()
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)
            return True
        return False
