"""Reads a file once: its SHA-256, and on the way a copy of the bytes that were hashed."""

from __future__ import annotations

import hashlib
import os
import stat
from io import FileIO
from pathlib import Path

_CHUNK = 1 << 20


def hash_file(path: Path, copy: Path | None = None) -> str:
    """SHA-256 in hexadecimal. ``copy``: where the same bytes are written. Raises ``OSError``."""
    # A pipe in the file's place must not block.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(0, "not a regular file", str(path))
        if copy is None:
            return _hash(file, None)
        with copy.open("xb", buffering=0) as target:
            return _hash(file, target)


def _hash(file: FileIO, target: FileIO | None) -> str:
    total = hashlib.sha256()
    while chunk := file.read(_CHUNK):
        total.update(chunk)
        if target is not None:
            # An unbuffered write may be partial.
            view = memoryview(chunk)
            while view:
                view = view[target.write(view) :]
    return total.hexdigest()
