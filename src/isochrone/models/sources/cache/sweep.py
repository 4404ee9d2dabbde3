"""Removes what failed fetches and processes that died left in a cache, and listings of models that are not in it.

The caller holds the lock of the cache: what is here and not locked itself belongs to nobody.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import msgspec

from isochrone.models.sources.cache.layout import CacheLayout
from isochrone.models.sources.cache.locks import remove_unheld
from isochrone.models.sources.files import StoredFile

#: A model is listed before it is fetched.
_LISTING_SECONDS = 86_400.0


class SavedListing(msgspec.Struct):
    repository: str
    files: list[StoredFile]


def sweep(layout: CacheLayout) -> None:
    for folder in ("objects", "listings"):
        for path in (layout.root / folder).glob(".*"):
            # Written under the lock, by a process that died.
            path.unlink(missing_ok=True)
    for journal in (layout.root / "downloads").glob("*.journal"):
        if not layout.part(journal.stem).exists():
            journal.unlink(missing_ok=True)
    for lock in (layout.root / "downloads").glob("*.lock"):
        remove_unheld(lock)
    for lock in (layout.root / "trees").glob("*.lock"):
        if not layout.tree(lock.stem).exists():
            remove_unheld(lock)
    oldest = time.time() - _LISTING_SECONDS
    for path in (layout.root / "listings").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < oldest:
                _sweep_listing(layout, path)


def _sweep_listing(layout: CacheLayout, path: Path) -> None:
    """A listing is of use while its store is away, and then only with files."""
    try:
        listing = msgspec.json.decode(path.read_bytes(), type=SavedListing)
    except (msgspec.DecodeError, UnicodeDecodeError):
        path.unlink()
        return
    if any(_is_here(layout, listing.repository, file) for file in listing.files):
        # It is not read again before it is as old again.
        os.utime(path)
    else:
        path.unlink()


def _is_here(layout: CacheLayout, repository: str, file: StoredFile) -> bool:
    sha256 = file.sha256 or layout.recorded(file.key(repository))
    return bool(sha256) and layout.blob(sha256).exists()
