"""The paths of a cache, and the lock over its trees and blobs."""

from __future__ import annotations

import os
import stat
import uuid
from contextlib import AbstractContextManager
from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.models.sources.cache.locks import briefly
from isochrone.models.sources.cache.ownership import OTHERS, OTHERS_WRITE, is_trusted

_STAGING = "building-"
_FOLDERS = ("blobs", "objects", "listings", "downloads", "trees")


class CacheLayout:
    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _take(root, OTHERS_WRITE)
            for name in _FOLDERS:
                (root / name).mkdir(mode=0o700, exist_ok=True)
                _take(root / name, OTHERS)
        except OSError as error:
            expected = "a directory that can be written (choose one with --model-cache)"
            raise ConfigError("model cache", str(root), expected, error.strerror or str(error)) from None

    def blob(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256[:2] / sha256

    def object(self, key: str) -> Path:
        return self.root / "objects" / key

    def recorded(self, key: str) -> str:
        """The SHA-256 of a state of an object that was fetched; "": it is not known."""
        try:
            return self.object(key).read_text()
        except FileNotFoundError:
            return ""

    def listing(self, key: str) -> Path:
        return self.root / "listings" / key

    def part(self, key: str) -> Path:
        return self.root / "downloads" / f"{key}.part"

    def journal(self, key: str) -> Path:
        return self.root / "downloads" / f"{key}.journal"

    def download_lock(self, key: str) -> Path:
        return self.root / "downloads" / f"{key}.lock"

    def staging(self) -> str:
        """The key of a new tree that is not finished."""
        return f"{_STAGING}{uuid.uuid4().hex}"

    def is_staging(self, key: str) -> bool:
        return key.startswith(_STAGING)

    def tree(self, key: str) -> Path:
        return self.root / "trees" / key

    def tree_lock(self, key: str) -> Path:
        return self.root / "trees" / f"{key}.lock"

    def locked(self) -> AbstractContextManager[None]:
        """Held for moments: whatever is in the folders appears and vanishes under it."""
        return briefly(self.root / "lock")


def _take(directory: Path, forbidden: int) -> None:
    """Models are code: see that nobody else may write here. ``forbidden`` bits of the mode are removed."""
    status = directory.stat()
    if status.st_uid == os.geteuid():
        if status.st_mode & forbidden:
            directory.chmod(stat.S_IMODE(status.st_mode) & ~forbidden)
    elif not is_trusted(status.st_uid, status.st_gid, status.st_mode, {os.getegid(), *os.getgroups()}):
        expected = "a directory of this process's user (choose one with --model-cache; a new one below it will do)"
        given = f"one of user {status.st_uid}, group {status.st_gid}, with mode {stat.S_IMODE(status.st_mode):04o}"
        raise ConfigError("model cache", str(directory), expected, given)
