"""The files of a remote repository, as a listing or a manifest states them. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a repository."""

    #: Relative to the repository, with slashes.
    path: str
    size: int
    #: Changes with the bytes: an ETag, or the time of the last change.
    identity: str
    #: In hexadecimal; "": not stated.
    sha256: str = ""
    md5: str = ""

    @property
    def is_of_manifest(self) -> bool:
        """Whether the manifest stated it, which is identified by the SHA-256, and not a listing of the store."""
        return bool(self.sha256) and self.identity == self.sha256

    def key(self, repository: str) -> str:
        """A file name for this state of the file."""
        text = f"{repository}\n{self.path}\n{self.size}\n{self.identity}\n{self.sha256}"
        return hashlib.sha256(text.encode()).hexdigest()


def usable(files: Iterable[StoredFile]) -> list[StoredFile]:
    """The files that can be put into a directory, sorted by path.

    Left out: keys that would lead out of it, and the empty objects by which consoles of object stores show folders.
    """
    found = {file.path: file for file in files if _is_plain(file.path)}
    folders = {path[:end] for path in found for end in _slashes(path)}
    return [found[path] for path in sorted(found) if path not in folders]


def _slashes(path: str) -> list[int]:
    return [index for index, character in enumerate(path) if character == "/"]


def _is_plain(path: str) -> bool:
    parts = path.split("/")
    return path.isprintable() and not any(part in ("", ".", "..") or "\\" in part or len(part) > 255 for part in parts)
