"""The model cache of a machine: fetches a file once, however many processes need it, and keeps it by its SHA-256.

Every file is verified before it has its name: by its stated SHA-256, else by the MD5 that its store states, else by its
size alone. A file with wrong bytes is fetched a second time, then the load fails. ``blobs`` checks what was kept.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import structlog

from isochrone.errors import ConfigError, FetchFailed, IsochroneError
from isochrone.models.sources.cache.blobs import Blobs
from isochrone.models.sources.cache.download import Chunks, Download
from isochrone.models.sources.cache.layout import CacheLayout
from isochrone.models.sources.cache.locks import exclusive
from isochrone.models.sources.cache.space import CacheSpace
from isochrone.models.sources.cache.sweep import SavedListing, sweep
from isochrone.models.sources.cache.trees import Tree, TreeBuilder, find_tree
from isochrone.models.sources.checksums import CHECKSUMS
from isochrone.models.sources.files import StoredFile
from isochrone.models.sources.manifest import MANIFEST

log = structlog.get_logger(__name__)

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_ATTEMPTS = 2


class ModelCache:
    def __init__(self, directory: Path, limit: int | None = None) -> None:
        self._layout = CacheLayout(directory)
        self._space = CacheSpace(self._layout, limit)
        self._blobs = Blobs(self._layout)

    def tree(self, name: str) -> TreeBuilder:
        """A directory to fill with fetched files; ``name`` is the last part of its path."""
        return TreeBuilder(self._layout, name)

    def find_tree(self, name: str, files: Mapping[str, str], folders: Iterable[str]) -> Tree | None:
        """The finished directory with these files (path → SHA-256) and folders, if there is one."""
        return find_tree(self._layout, name, files, folders)

    def read(self, sha256: str) -> bytes | None:
        """A small file; None: it has been evicted."""
        try:
            return self._layout.blob(sha256).read_bytes()
        except FileNotFoundError:
            return None

    def holds(self, repository: str, file: StoredFile) -> str:
        """The SHA-256 of a file that is here and undamaged; "": it is not. Its first call for a file reads it."""
        sha256 = file.sha256 or self._layout.recorded(file.key(repository))
        return sha256 if sha256 and self._blobs.has(sha256, file.size) else ""

    def make_room(self, repository: str, files: Iterable[StoredFile]) -> None:
        """Evict for all of these files that are not here: either all of them fit, or nothing is evicted in vain."""
        sizes = {_download(repository, file): file.size for file in files if not self.holds(repository, file)}
        if sizes:
            with self._layout.locked():
                sweep(self._layout)
                self._space.make_room(sizes)

    def fetch(
        self,
        repository: str,
        file: StoredFile,
        chunks: Chunks,
        waiting: Callable[[], None] = lambda: None,
        progress: Callable[[int], None] = lambda count: None,
    ) -> str:
        """The SHA-256 of a file that is here afterwards.

        ``waiting`` is called repeatedly while another process fetches it, ``progress`` with the bytes that arrive.
        """
        key = _download(repository, file)
        if found := self.holds(repository, file):
            return found
        try:
            lock = self._layout.download_lock(key)
            with exclusive(lock, waiting):
                found = self.holds(repository, file) or self._fetch(repository, file, key, chunks, progress)
                with self._layout.locked():
                    lock.unlink()
            return found
        except OSError as error:
            raise self._unwritable(error, file) from None

    def _fetch(
        self, repository: str, file: StoredFile, key: str, chunks: Chunks, progress: Callable[[int], None]
    ) -> str:
        download = Download(self._layout.part(key), self._layout.journal(key), file.size)
        where = f"{repository}/{file.path}"
        for attempt in range(1, _ATTEMPTS + 1):
            with self._layout.locked():
                self._space.make_room({key: file.size})
                download.create()
            download.run(chunks, progress)
            sha256, md5 = download.digests(with_md5=bool(file.md5) and not file.sha256)
            problem = _problem(file, where, sha256, md5)
            if problem is None:
                self._keep(key, sha256, file)
                return sha256
            with self._layout.locked():
                download.discard()
            log.warning("a file arrived with wrong bytes", attempt=attempt, error=str(problem))
            progress(-file.size)
        assert problem is not None
        raise problem

    def _keep(self, key: str, sha256: str, file: StoredFile) -> None:
        part, blob = self._layout.part(key), self._layout.blob(sha256)
        # Without the lock, since it may read the file: a damaged one must go.
        self._blobs.has(sha256, file.size)
        with self._layout.locked():
            blob.parent.mkdir(mode=0o700, exist_ok=True)
            if blob.exists():
                # The same bytes under another name: the trees that link to them stay as they are.
                part.unlink()
            else:
                part.chmod(0o400)
                os.utime(part)
                part.rename(blob)
                self._blobs.fetched(sha256)
            self._layout.journal(key).unlink(missing_ok=True)
            if not file.sha256:
                _write(self._layout.object(key), sha256.encode())

    def _unwritable(self, error: OSError, file: StoredFile) -> IsochroneError:
        root, reason = self._layout.root, error.strerror or str(error)
        if error.errno not in _FULL:
            return FetchFailed(f"model cache {root}: cannot keep {file.path}: {reason}")
        free = shutil.disk_usage(root).free
        return FetchFailed(
            f"model cache {root}: no room for {file.path}: {reason}: it needs {file.size} bytes, and the disk has"
            f" {free} free; free some, or choose another directory with --model-cache"
        )

    # Listings, for the time in which a store is away.

    def save_listing(self, repository: str, folder: str, files: Sequence[StoredFile]) -> None:
        """Keep the files of a model, or with folder "" of the repository."""
        path = self._layout.listing(_key(repository, folder))
        try:
            with self._layout.locked():
                if files or not folder:
                    _write(path, msgspec.json.encode(SavedListing(repository, list(files))))
                else:
                    # Anybody can ask for any name.
                    path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("a listing could not be kept", repository=repository, error=str(error))

    def saved_listing(self, repository: str, folder: str) -> list[StoredFile] | None:
        try:
            content = self._layout.listing(_key(repository, folder)).read_bytes()
            return msgspec.json.decode(content, type=SavedListing).files
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None


def _download(repository: str, file: StoredFile) -> str:
    """The key of its download: the same bytes are fetched once, whatever their name."""
    return file.sha256 or file.key(repository)


def _key(repository: str, folder: str) -> str:
    return hashlib.sha256(f"{repository}\n{folder}".encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    """Atomic: other processes read it."""
    # Not by the process's id: those of two pods may be equal.
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def _problem(file: StoredFile, where: str, sha256: str, md5: str) -> ConfigError | None:
    if file.sha256 and sha256 != file.sha256:
        stated = f"{MANIFEST} again (isochrone repository index)" if file.is_of_manifest else f"{CHECKSUMS} again"
        given = f"{sha256}: the file has wrong bytes and was not loaded; if it was replaced, write {stated}"
        return ConfigError(where, "SHA-256", file.sha256, given)
    if not file.sha256 and file.md5 and md5 != file.md5:
        remedy = "an object that its store encrypted with SSE-KMS or SSE-C needs a SHA256SUMS or a manifest"
        given = f"{md5}: the file has wrong bytes and was not loaded ({remedy})"
        return ConfigError(where, "MD5 (its ETag)", file.md5, given)
    return None
