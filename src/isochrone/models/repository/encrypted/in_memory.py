"""A place for plain text that no disk has: a file system whose files are in memory."""

from __future__ import annotations

import ctypes
import os
import tempfile
from pathlib import Path
from typing import Final

from isochrone.secure.encryption.failures import EncryptionRefused

_TMPFS, _RAMFS = 0x01021994, 0x858458F6
_SHARED_MEMORY: Final = "/dev/shm"


def plain_text_place(*, allow_disk: bool) -> Path:
    """Where decrypted versions go. Raises ``EncryptionRefused`` if that would be a disk, and may not be."""
    temporary = tempfile.gettempdir()
    for place in (_SHARED_MEMORY, temporary):
        if is_in_memory(place) and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    if allow_disk:
        return Path(temporary)
    raise EncryptionRefused(
        f"encrypted versions are decrypted to memory alone, and neither {_SHARED_MEMORY} nor TMPDIR ({temporary}) is a"
        " tmpfs that can be written; mount one, or accept plain text on disk with --model-key-allow-disk"
    )


def is_in_memory(path: str) -> bool:
    """Whether a directory is on a tmpfs or a ramfs; Linux alone can say so."""
    try:
        statfs = ctypes.CDLL(None, use_errno=True).statfs
    except (AttributeError, OSError):
        return False
    # ``struct statfs`` begins with the type, a word; its other fields do not matter here.
    found = (ctypes.c_ulong * 64)()
    if statfs(os.fsencode(path), ctypes.byref(found)):
        return False
    return found[0] in (_TMPFS, _RAMFS)
