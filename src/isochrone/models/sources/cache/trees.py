"""The files of a model under their names, as hard links to blobs, in a directory that all processes share.

Hard links and not symbolic ones: a runtime that resolves paths, as onnxruntime does for external data, must stay in the
model's directory. A directory is named by its content, so that it is stable and never changes. Look for it before you
make it again: a link changes the time by which the digest of a file is remembered.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from isochrone.errors import ConfigError
from isochrone.models.sources.cache.layout import CacheLayout
from isochrone.models.sources.cache.locks import SharedLock


class Tree:
    """A finished directory. It stays until ``release``, the end of this object, or the end of the process."""

    def __init__(self, directory: Path, use: SharedLock) -> None:
        self.directory = directory
        self._use = use

    def release(self) -> None:
        self._use.release()


class TreeBuilder:
    """A directory in the making. Its blobs are in use from the moment they are in it."""

    def __init__(self, layout: CacheLayout, name: str) -> None:
        self._layout = layout
        self._name = name
        self._content: list[str] = []
        self._files: list[str] = []
        staging = layout.staging()
        self._staging, self._staging_lock = layout.tree(staging), layout.tree_lock(staging)
        with layout.locked():
            self._use = SharedLock(self._staging_lock)
            self.directory = self._staging / name
            self.directory.mkdir(mode=0o700, parents=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._layout.locked():
            shutil.rmtree(self._staging, ignore_errors=True)
            self._staging_lock.unlink(missing_ok=True)
        self._use.release()

    def add(self, path: str, sha256: str) -> bool:
        """Link a blob; False: it has been evicted meanwhile."""
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with self._layout.locked():
            try:
                os.link(self._layout.blob(sha256), target)
            except FileNotFoundError:
                return False
            except OSError as error:
                if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
                    raise
                expected = "a file system with hard links (choose a directory with --model-cache)"
                raise ConfigError("model cache", str(self._layout.root), expected, str(error)) from None
        self._content.append(f"{path}\n{sha256}")
        self._files.append(path)
        return True

    def add_folder(self, path: str) -> None:
        (self.directory / path).mkdir(parents=True, exist_ok=True)
        self._content.append(f"{path}\n")

    def finish(self) -> Tree:
        key = _key(self._name, self._content)
        with self._layout.locked():
            if self._layout.tree(key).is_dir():
                self._repair(self._layout.tree(key) / self._name)
            else:
                os.rename(self._staging, self._layout.tree(key))
            return _used(self._layout, key, self._name)

    def _repair(self, finished: Path) -> None:
        """Replace links to files that were damaged and fetched again. Processes that use the tree keep its path."""
        for path in self._files:
            if _inode(finished / path) != _inode(self.directory / path):
                (finished / path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(self.directory / path, finished / path)


def find_tree(layout: CacheLayout, name: str, files: Mapping[str, str], folders: Iterable[str]) -> Tree | None:
    """The finished directory with these files (path → SHA-256) and folders, if there is one.

    One whose links are not to the present blobs does not count: a blob was damaged and fetched again.
    """
    key = _key(name, [*(f"{path}\n{sha256}" for path, sha256 in files.items()), *(f"{path}\n" for path in folders)])
    with layout.locked():
        directory = layout.tree(key)
        is_whole = directory.is_dir() and all(
            _inode(directory / name / path) == _inode(layout.blob(sha256)) != 0 for path, sha256 in files.items()
        )
        return _used(layout, key, name) if is_whole else None


def _inode(path: Path) -> int:
    """0: there is none."""
    try:
        return os.lstat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _key(name: str, content: Iterable[str]) -> str:
    return hashlib.sha256("\n".join([name, *sorted(content)]).encode()).hexdigest()


def _used(layout: CacheLayout, key: str, name: str) -> Tree:
    use = SharedLock(layout.tree_lock(key))
    os.utime(layout.tree_lock(key))
    return Tree(layout.tree(key) / name, use)
