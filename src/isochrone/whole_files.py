"""Files that are complete or absent: written beside their place and renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes | str) -> None:
    """Write or replace a file; text as UTF-8. Raises ``OSError``, and leaves the earlier file then."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
