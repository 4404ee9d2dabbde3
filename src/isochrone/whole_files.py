"""Files that are complete or absent: written beside their place and renamed."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, content: bytes | str, mode: int | None = None) -> None:
    """Write or replace a file; text as UTF-8. Raises ``OSError``, and leaves the earlier file then.

    ``mode``: the permissions, whatever the process's umask is; nobody reads the content with others before.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if mode is not None:
            unfinished.unlink(missing_ok=True)
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            unfinished.chmod(mode)
        unfinished.replace(path)
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink()
