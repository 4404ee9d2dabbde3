"""Makes room in a cache: finds what is in use, lets ``eviction`` decide, and removes.

In use is every blob in a tree whose lock a process holds, and every unfinished file that a process is fetching.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
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
#: Python writes them beside the files of a model.
_CACHES = "__pycache__"

#: Whether a tree is in use, when it was used last, the inodes in it.
_TreeState = tuple[bool, float, frozenset[int]]
_Statuses = Mapping[str, os.stat_result]


class CacheSpace:
    """``limit``: bytes; None: 64 GiB or 80 % of the space that the disk has for it, whichever is less."""

    def __init__(self, layout: CacheLayout, limit: int | None) -> None:
        self._layout = layout
        self._limit = limit

    def make_room(self, sizes: Mapping[str, int]) -> None:
        """Evict so that downloads with these keys and sizes fit.

        The caller holds the lock, and creates the files before it releases it: otherwise two may get the same room.
        """
        blobs = {entry.name: entry.stat() for entry in _walk(self._layout.root / "blobs")}
        parts = {path.name: path.stat() for path in (self._layout.root / "downloads").glob(f"*{_PART}")}
        trees = dict(self._trees({status.st_ino for status in blobs.values()}))
        own = {key + _PART for key in sizes}
        files = [file for file in self._files(blobs, parts, trees) if file.name not in own]
        needed = sum(sizes.values())
        # Of all files, those that are about to be resumed included: what is free does not count them.
        limit = self._limit if self._limit is not None else self._default_limit([*blobs.values(), *parts.values()])
        chosen = to_evict(files, needed, limit)
        if chosen is None:
            used = sum(file.size for file in files if file.in_use)
            raise FetchFailed(
                f"model cache {self._layout.root}: {needed} bytes do not fit: its limit is {limit} bytes, and"
                f" loaded models use {used}; raise --model-cache-bytes or unload models"
            )
        if chosen:
            self._remove(chosen, trees)

    def _default_limit(self, files: Iterable[os.stat_result]) -> int:
        free = shutil.disk_usage(self._layout.root).free
        # An unfinished file has its size before it has its blocks.
        used = sum(min(status.st_size, status.st_blocks * _BLOCK) for status in files)
        return min(_DEFAULT_LIMIT, int(_DEFAULT_SHARE * (free + used)))

    def _trees(self, blobs: set[int]) -> Iterator[tuple[Path, _TreeState]]:
        """Directory → whether it is in use, when it was used last, the inodes in it. Removes those of no use."""
        for directory in (self._layout.root / "trees").iterdir():
            if directory.name.endswith(".lock"):
                continue
            lock = self._layout.tree_lock(directory.name)
            in_use = is_held(lock)
            inodes = frozenset(entry.inode() for entry in _walk(directory))
            is_whole = bool(inodes) and inodes <= blobs
            if not in_use and (not is_whole or self._layout.is_staging(directory.name)):
                # Of a process that died while it made or removed it, without files, or with damaged ones.
                self._drop(directory)
                continue
            used = lock.stat().st_mtime if lock.exists() else 0.0
            yield directory, (in_use, used, inodes)

    def _files(self, blobs: _Statuses, parts: _Statuses, trees: Mapping[Path, _TreeState]) -> Iterator[CachedFile]:
        in_use: set[int] = set()
        used: dict[int, float] = {}
        for is_held_now, last, inodes in trees.values():
            if is_held_now:
                in_use |= inodes
            for inode in inodes:
                used[inode] = max(used.get(inode, 0.0), last)
        for name, status in blobs.items():
            last = used.get(status.st_ino, status.st_mtime)
            yield CachedFile(name, status.st_size, last, status.st_ino in in_use)
        for name, status in parts.items():
            lock = self._layout.download_lock(name.removesuffix(_PART))
            yield CachedFile(name, status.st_size, status.st_mtime, is_held(lock))

    def _remove(self, chosen: list[CachedFile], trees: Mapping[Path, _TreeState]) -> None:
        blobs = {file.name for file in chosen if not file.name.endswith(_PART)}
        gone = {self._layout.blob(name).stat().st_ino for name in blobs}
        for directory, (_, _, inodes) in trees.items():
            if inodes & gone:
                self._drop(directory)
        for name in blobs:
            self._layout.blob(name).unlink()
        for file in chosen:
            if file.name.endswith(_PART):
                key = file.name.removesuffix(_PART)
                self._layout.part(key).unlink(missing_ok=True)
                self._layout.journal(key).unlink(missing_ok=True)
        for record in (self._layout.root / "objects").iterdir():
            # Those with a dot were being written when their process died.
            if not record.name.startswith(".") and record.read_text() in blobs:
                record.unlink()
        log.info("evicted from the model cache", files=len(chosen), bytes=sum(file.size for file in chosen))

    def _drop(self, directory: Path) -> None:
        """Remove a tree that is not in use."""
        doomed = directory
        if not self._layout.is_staging(directory.name):
            # Under its name a tree is whole, whenever this process is killed.
            doomed = directory.rename(self._layout.tree(self._layout.staging()))
        shutil.rmtree(doomed, ignore_errors=True)
        self._layout.tree_lock(directory.name).unlink(missing_ok=True)


def _walk(directory: Path) -> Iterator[os.DirEntry[str]]:
    """The regular files below a directory; those that people remove meanwhile are left out."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name != _CACHES:
                    yield from _walk(Path(entry.path))
            else:
                yield entry
