"""Private copies of verified versions: a worker loads the very bytes that it verified, now and later.

Checking files and then loading them leaves time to change them, and instances are loaded again long after: in place of
a hung one, or in a child process that died. So the bytes that are hashed are also written into a directory of this
process's user, and only they are loaded. It has the signed files and no others, so that Python finds no unsigned
``__pycache__`` either. A version whose files did not change since is not copied again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from isochrone.errors import FetchFailed
from isochrone.models.file_stamp import FileStamp, stamp
from isochrone.models.repository.private_directory import PrivateDirectory
from isochrone.models.repository.signed.checking import check_file, read_signature
from isochrone.models.repository.signed.hashing import hash_file
from isochrone.secure.signing.signed_version import Provenance, SignatureRefused, SignedVersion
from isochrone.secure.signing.trust import Trust

log = structlog.get_logger(__name__)

_MAX_KNOWN = 65_536


class PrivateCopy:
    """A model's directory with signed files alone. It is removed when nothing refers to it."""

    def __init__(self, within: PrivateDirectory, root: Path, model: str, files: Mapping[str, str]) -> None:
        #: It goes with its last copy.
        self._within = within
        self.directory = root / model
        #: Path → SHA-256.
        self.files = dict(files)
        self._finalizer = weakref.finalize(self, _remove, root, os.getpid())


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """Versions of a model that may be loaded."""

    copy: PrivateCopy
    provenance: Mapping[int, Provenance]


class VerifiedCopies:
    """The copies of one worker. Calls block, and may come from any thread."""

    def __init__(self, trusted: Sequence[Path]) -> None:
        self._trusted = tuple(trusted)
        self._lock = threading.Lock()
        self._private: PrivateDirectory | None = None
        self._copies: weakref.WeakValueDictionary[str, PrivateCopy] = weakref.WeakValueDictionary()
        #: Files that were copied: path → stamp, SHA-256.
        self._known: dict[Path, tuple[FileStamp, str]] = {}

    def open(
        self, model: str, directory: Path, versions: Iterable[int], configurations: Sequence[str]
    ) -> VerifiedModel:
        """A copy of the versions, if each is as somebody trusted signed it. Raises ``SignatureRefused``."""
        trust = Trust(self._trusted)
        signed = {
            version: read_signature(trust, model, directory, version, configurations) for version in sorted(versions)
        }
        with self._lock:
            copy = self._copy(model, directory, signed)
        for version, each in signed.items():
            log.info("signature verified", model=model, version=version, signed_by=each.provenance.summary)
        return VerifiedModel(copy, {version: each.provenance for version, each in signed.items()})

    def close(self) -> None:
        """Removes every copy: nothing is loaded any more."""
        with self._lock:
            if self._private is not None:
                self._private.remove()

    def _copy(self, model: str, directory: Path, signed: Mapping[int, SignedVersion]) -> PrivateCopy:
        files = {file: digest for each in signed.values() for file, digest in each.files.items()}
        for each in signed.values():
            for file in each.files:
                # Versions share config.pbtxt and labels: one signature may have other bytes of them than another.
                check_file(each, file, files[file])
        key = _key(model, signed, files)
        present = self._copies.get(key)
        if present is not None and all(self._is_unchanged(directory / file, files[file]) for file in files):
            return present
        made = self._make(model, directory, signed, files)
        self._copies[key] = made
        return made

    def _is_unchanged(self, path: Path, digest: str) -> bool:
        known = self._known.get(path)
        return known is not None and known[1] == digest and stamp(path) == known[0]

    def _make(
        self, model: str, directory: Path, signed: Mapping[int, SignedVersion], files: Mapping[str, str]
    ) -> PrivateCopy:
        if self._private is None:
            self._private = PrivateDirectory("verified")
        root = self._private.path / uuid.uuid4().hex
        try:
            _require_space(self._private.path, [directory / file for file in files])
            for version in signed:
                # The directory of an ensemble's version may have no file.
                (root / model / str(version)).mkdir(parents=True)
            # Removed with this object if a file is refused.
            made = PrivateCopy(self._private, root, model, files)
            for each in signed.values():
                for file in each.files:
                    if not (made.directory / file).exists():
                        self._add(made, directory, each, file)
            return made
        except OSError as error:
            _remove(root, os.getpid())
            raise FetchFailed(
                f"model '{model}' cannot be copied to {self._private.path}, from where signed models are loaded:"
                f" {error.strerror or error}; TMPDIR chooses another place"
            ) from None

    def _add(self, made: PrivateCopy, directory: Path, signed: SignedVersion, file: str) -> None:
        source, target = directory / file, made.directory / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if self._is_unchanged(source, signed.files[file]) and self._link(file, signed.files[file], made):
            return
        # Before the file is read: one that changes meanwhile differs the next time.
        before = _stamp(source, signed, file)
        found = hash_file(source, target)
        check_file(signed, file, found)
        # The stamp of a file that was just written proves nothing: it is read again.
        if before.is_settled:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[source] = (before, found)

    def _link(self, file: str, digest: str, made: PrivateCopy) -> bool:
        """Whether another copy has the same bytes: nobody writes into copies, so they can share a file."""
        for other in list(self._copies.values()):
            if other.directory.name == made.directory.name and other.files.get(file) == digest:
                try:
                    os.link(other.directory / file, made.directory / file)
                except OSError:
                    return False
                return True
        return False


def _stamp(path: Path, signed: SignedVersion, file: str) -> FileStamp:
    try:
        return stamp(path)
    except Exception as error:
        raise SignatureRefused(f"model '{signed.model}' version {signed.version}: {file!r}: {error}") from None


def _require_space(place: Path, files: Iterable[Path]) -> None:
    """A file of the repository may be larger than the disk: it must not fill it before its bytes are refused."""
    needed, free = sum(os.stat(file).st_size for file in files), shutil.disk_usage(place).free
    if needed > free:
        raise OSError(0, f"it has {needed} bytes, and {free} are free")


def _key(model: str, versions: Iterable[int], files: Mapping[str, str]) -> str:
    lines = [model, *map(str, sorted(versions)), *(f"{file}\n{digest}" for file, digest in sorted(files.items()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _remove(root: Path, pid: int) -> None:
    # A forked child that ends must not take the copies of its parent.
    if os.getpid() == pid:
        shutil.rmtree(root, ignore_errors=True)
