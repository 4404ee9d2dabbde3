"""The files of one log: numbered segments, the seal, the lock, and what was put aside."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

_SEGMENT: Final = re.compile(r"segment-(\d{8,})\.jsonl")
SEAL: Final = "seal.json"
LOCK: Final = "lock"
#: Of every file that is opened for writing: who may write the directory must not make another file the log.
NO_LINK: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class Segment(NamedTuple):
    number: int
    path: Path


def segment_path(directory: Path, number: int) -> Path:
    return directory / f"segment-{number:08d}.jsonl"


def segments_in(directory: Path) -> list[Segment]:
    """In their order. Raises ``OSError``."""
    found = ((_SEGMENT.fullmatch(name), name) for name in os.listdir(directory))
    return sorted(Segment(int(match[1]), directory / name) for match, name in found if match)


def is_log(directory: Path) -> bool:
    """Whether a directory is one process's log."""
    return (directory / SEAL).exists() or (directory / LOCK).exists() or bool(segments_in(directory))


def sync_directory(directory: Path) -> None:
    """A new, renamed or deleted file is so after a loss of power. Raises ``OSError``."""
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_all(opened: int, data: bytes) -> None:
    """Raises ``OSError``; a part may have been written then."""
    view = memoryview(data)
    while view:
        view = view[os.write(opened, view) :]
