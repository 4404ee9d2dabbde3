"""The decrypted versions of one worker: directories in memory that runtimes load from, and load from again.

A runtime, a child process or a new instance in place of a hung one finds files by their paths, whichever backend it is.
The directory has mode 0700, exists as long as something refers to the version, and is removed by the next worker of the
same user if this one is killed.
"""

from __future__ import annotations

import os
import shutil
import threading
import uuid
import weakref
from pathlib import Path

import structlog

from isochrone.errors import FetchFailed
from isochrone.models.file_stamp import FileStamp, stamp
from isochrone.models.repository.digest import regular_files
from isochrone.models.repository.encrypted.in_memory import plain_text_place
from isochrone.models.repository.encrypted.names import is_encrypted
from isochrone.models.repository.encrypted.opening import data_key, decrypt_files, read_header, read_key
from isochrone.models.repository.private_directory import PrivateDirectory, sweep
from isochrone.models.repository.signed.covered import covered_files
from isochrone.models.repository.signed.hashing import hash_file
from isochrone.secure.encryption.failures import EncryptionRefused, NoKey
from isochrone.secure.encryption.model_keys import FLAG, ModelKeys

log = structlog.get_logger(__name__)

_CONTENT = "decrypted"


class DecryptedVersion:
    """The plain files of a version. They are removed when nothing refers to it."""

    def __init__(
        self, within: PrivateDirectory, root: Path, model: str, version: int, stored: Path, *, only_in_memory: bool
    ) -> None:
        #: It goes with its last version.
        self._within = within
        #: Runtimes must not write parts of it to a disk.
        self.only_in_memory = only_in_memory
        #: As in a repository, with ``config.pbtxt`` and what that names above it.
        self.directory = root / model / str(version)
        #: The encrypted files, of which the digest is.
        self.stored = stored
        self.stamps: dict[Path, FileStamp] = {}
        self._finalizer = weakref.finalize(self, _remove, root, os.getpid())


class DecryptedVersions:
    """Calls block, and may come from any thread."""

    def __init__(self, keys: ModelKeys, *, allow_disk: bool = False, required: bool = False) -> None:
        """``required``: a version that is not encrypted is refused. Raises ``EncryptionRefused`` without a place."""
        self._keys = keys
        self._required = required
        self._allow_disk = allow_disk
        self._place = plain_text_place(allow_disk=allow_disk)
        # What a killed worker left must not wait for the first load.
        sweep(_CONTENT, self._place)
        self._lock = threading.Lock()
        self._private: PrivateDirectory | None = None
        self._open: weakref.WeakValueDictionary[Path, DecryptedVersion] = weakref.WeakValueDictionary()

    def open(self, model: str, version: int, stored: Path, keys_at: Path) -> DecryptedVersion | None:
        """The plain files of a version; None: it is not encrypted, and need not be.

        ``stored``: its directory; ``keys_at``: the model's, with the wrapped key, which no verified copy has.
        """
        if not is_encrypted(stored):
            # The version of an ensemble has no files.
            if self._required and next(regular_files(stored), None) is not None:
                raise EncryptionRefused(
                    f"model '{model}' version {version} is refused: it is not encrypted; encrypt it, or serve without"
                    " --require-encryption"
                )
            return None
        with self._lock:
            # Before the files are read: one that changes meanwhile differs the next time.
            stamps = {path: stamp(path) for _, path in regular_files(stored)}
            present = self._open.get(stored)
            if present is not None and present.stamps == stamps and _settled(stamps):
                return present
            made = self._made(model, version, stored, keys_at)
            made.stamps = stamps if _settled(stamps) else {}
            self._open[stored] = made
        log.info("version decrypted", model=model, version=version)
        return made

    def close(self) -> None:
        """Removes every plain file: nothing is loaded any more."""
        with self._lock:
            if self._private is not None:
                self._private.remove()

    def _made(self, model: str, version: int, stored: Path, keys_at: Path) -> DecryptedVersion:
        header = read_header(model, version, stored)
        key = data_key(header, read_key(model, version, keys_at), self._keys)
        self._private = self._private or PrivateDirectory(_CONTENT, self._place)
        root = self._private.path / uuid.uuid4().hex
        try:
            needed, free = sum(header.files.values()), shutil.disk_usage(self._place).free
            if needed > free:
                raise OSError(0, f"it has {needed} bytes, and {free} are free")
            made = DecryptedVersion(self._private, root, model, version, stored, only_in_memory=not self._allow_disk)
            made.directory.mkdir(parents=True)
            decrypt_files(header, key, stored, made.directory)
            _copy_shared(stored.parent, version, made.directory.parent)
            return made
        except BaseException as error:
            # Now: an error that is kept somewhere keeps the objects of its frames.
            _remove(root, os.getpid())
            if not isinstance(error, OSError):
                raise
            reason = error.strerror or error
            raise FetchFailed(
                f"model '{model}' version {version} cannot be decrypted to {self._place}: {reason}"
            ) from None


def refuse_without_keys(model: str, version: int, stored: Path) -> None:
    """Raises ``NoKey`` for an encrypted version, in a process that has no key."""
    if is_encrypted(stored):
        raise NoKey(
            f"model '{model}' version {version} is encrypted, and this process has no key: serve it with {FLAG}; other"
            " commands need plain files (isochrone decrypt)"
        )


def _settled(stamps: dict[Path, FileStamp]) -> bool:
    return all(each.is_settled for each in stamps.values())


def _copy_shared(directory: Path, version: int, target: Path) -> None:
    """config.pbtxt and what it names, for code that looks above its version."""
    for file in covered_files(directory, version):
        path = target / file
        if not file.startswith(f"{version}/") and (directory / file).is_file() and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            hash_file(directory / file, path)


def _remove(root: Path, pid: int) -> None:
    # A forked child that ends must not take the files of its parent.
    if os.getpid() == pid:
        shutil.rmtree(root, ignore_errors=True)
