"""Makes room in a cache: finds what is in use, lets ``eviction`` decide, and removes.

In use is every blob in a tree whose lock a process holds, and every unfinished file that a process is fetching.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog

from isochrone.errors import FetchFailed
from isochrone.models.sources.cache.eviction import CachedFile, to_evict
from isochrone.models.sources.cache.layout import CacheLayout
from isochrone.models.sources.cache.locks import is_held

log = structlog.get_logger(__name__)

_DEFAULT_LIMIT = 64 << 30
#: Of the disk: others need room, too.
_DEFAULT_SHARE = 0.8
_PART = ".part"
#: The unit of ``st_blocks``.
_BLOCK = 512


class CacheSpace:
    """``limit``: bytes; None: 64 GiB or 80 % of the space that the disk has for it, whichever is less."""

    def __init__(self, layout: CacheLayout, limit: int | None) -> None:
        self._layout = layout
        self._limit = limit

    def make_room(self, sizes: Mapping[str, int]) -> None:
        """Evict so that downloads with these keys and sizes fit.

        The caller holds the lock, and creates the files before it releases it: otherwise two may get the same room.
        """
        trees = dict(self._trees())
        own = {key + _PART for key in sizes}
        files = [file for file in self._files(trees) if file.name not in own]
        needed = sum(sizes.values())
        limit = self._limit if self._limit is not None else self._default_limit()
        chosen = to_evict(files, needed, limit)
        if chosen is None:
            used = sum(file.size for file in files if file.in_use)
            raise FetchFailed(
                f"model cache {self._layout.root}: {needed} bytes do not fit: its limit is {limit} bytes, and"
                f" loaded models use {used}; raise --model-cache-bytes or unload models"
            )
        if chosen:
            self._remove(chosen, trees)

    def _default_limit(self) -> int:
        """By what is free and what the cache has, the unfinished files that are about to be resumed included."""
        free = shutil.disk_usage(self._layout.root).free
        return min(_DEFAULT_LIMIT, int(_DEFAULT_SHARE * (free + self._allocated())))

    def _allocated(self) -> int:
        """Bytes of the disk: an unfinished file has its size before it has its blocks."""
        total = 0
        for entry in (*_walk(self._layout.root / "blobs"), *_walk(self._layout.root / "downloads")):
            # People may remove it meanwhile.
            with contextlib.suppress(FileNotFoundError):
                status = entry.stat()
                total += min(status.st_size, status.st_blocks * _BLOCK)
        return total

    def _trees(self) -> Iterator[tuple[Path, tuple[bool, float, frozenset[int]]]]:
        """Directory → whether it is in use, when it was used last, the inodes in it."""
        for directory in (self._layout.root / "trees").iterdir():
            if directory.name.endswith(".lock"):
                continue
            lock = self._layout.tree_lock(directory.name)
            in_use = is_held(lock)
            if self._layout.is_staging(directory.name) and not in_use:
                # Of a process that died while it made or removed it.
                self._remove_tree(directory)
                continue
            used = lock.stat().st_mtime if lock.exists() else 0.0
            inodes = frozenset(entry.inode() for entry in _walk(directory))
            yield directory, (in_use, used, inodes)

    def _files(self, trees: dict[Path, tuple[bool, float, frozenset[int]]]) -> Iterator[CachedFile]:
        in_use: set[int] = set()
        used: dict[int, float] = {}
        for is_held_now, last, inodes in trees.values():
            if is_held_now:
                in_use |= inodes
            for inode in inodes:
                used[inode] = max(used.get(inode, 0.0), last)
        for entry in _walk(self._layout.root / "blobs"):
            status = entry.stat()
            last = used.get(status.st_ino, status.st_mtime)
            yield CachedFile(entry.name, status.st_size, last, status.st_ino in in_use)
        for path in (self._layout.root / "downloads").glob(f"*{_PART}"):
            status = path.stat()
            key = path.name.removesuffix(_PART)
            yield CachedFile(path.name, status.st_size, status.st_mtime, is_held(self._layout.download_lock(key)))

    def _remove(self, chosen: list[CachedFile], trees: dict[Path, tuple[bool, float, frozenset[int]]]) -> None:
        blobs = {file.name for file in chosen if not file.name.endswith(_PART)}
        gone = {self._layout.blob(name).stat().st_ino for name in blobs}
        for directory, (_, _, inodes) in trees.items():
            if inodes & gone:
                # Under its name a tree is whole, whenever this process is killed.
                self._remove_tree(directory.rename(self._layout.tree(self._layout.staging())))
                self._layout.tree_lock(directory.name).unlink(missing_ok=True)
        for name in blobs:
            self._layout.blob(name).unlink()
        for file in chosen:
            if file.name.endswith(_PART):
                key = file.name.removesuffix(_PART)
                self._layout.part(key).unlink(missing_ok=True)
                self._layout.journal(key).unlink(missing_ok=True)
        for record in (self._layout.root / "objects").iterdir():
            # Those with a dot are being written, or were when their process died.
            if not record.name.startswith(".") and record.read_text() in blobs:
                record.unlink()
        log.info("evicted from the model cache", files=len(chosen), bytes=sum(file.size for file in chosen))

    def _remove_tree(self, directory: Path) -> None:
        shutil.rmtree(directory, ignore_errors=True)
        self._layout.tree_lock(directory.name).unlink(missing_ok=True)


def _walk(directory: Path) -> Iterator[os.DirEntry[str]]:
    """The regular files below a directory; those that people remove meanwhile are left out."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(Path(entry.path))
            else:
                yield entry
