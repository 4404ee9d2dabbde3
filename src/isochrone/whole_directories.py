"""Directories that are complete or absent: written in a staging directory beside their place, synced and renamed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


@contextlib.contextmanager
def staging(parent: Path, prefix: str) -> Iterator[Path]:
    """A directory ``PREFIX<process>`` that is removed at the end, for its user alone."""
    made = parent / f"{prefix}{os.getpid()}"
    made.mkdir(mode=0o700)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def remove_leftovers(parent: Path, prefix: str) -> None:
    """Staging directories of commands that were killed while they wrote."""
    for each in parent.glob(f"{prefix}*"):
        found = re.fullmatch(re.escape(prefix) + r"(\d+)", each.name)
        if found and (int(found[1]) == os.getpid() or not os.path.exists(f"/proc/{found[1]}")):
            shutil.rmtree(each, ignore_errors=True)


def sync_tree(directory: Path) -> None:
    """To the disk before the rename: a power failure must not leave empty files."""
    for folder, _, files in os.walk(directory):
        for name in files:
            sync(Path(folder) / name)
        sync(Path(folder))


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Each gets the other's name, in one step. Raises ``OSError``, also where the file system cannot do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], ctypes.c_uint(_RENAME_EXCHANGE)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one), None, str(other))
