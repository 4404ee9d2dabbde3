"""The paths of a cache, and the lock over its trees and blobs."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.models.sources.cache.locks import briefly

_STAGING = "building-"
_FOLDERS = ("blobs", "objects", "listings", "downloads", "trees")


class CacheLayout:
    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            # Models are code: nobody else may write here.
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in _FOLDERS:
                (root / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            expected = "a directory that can be written (choose one with --model-cache)"
            raise ConfigError("model cache", str(root), expected, error.strerror or str(error)) from None

    def blob(self, sha256: str) -> Path:
        return self.root / "blobs" / sha256[:2] / sha256

    def object(self, key: str) -> Path:
        return self.root / "objects" / key

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
        """Held for moments: whatever is in trees, blobs, objects and downloads appears and vanishes under it."""
        return briefly(self.root / "lock")
