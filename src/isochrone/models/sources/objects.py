"""Lists and reads one remote repository through obstore. Calls block: they run on threads.

Failures that may pass (throttling, resets, truncated answers, a server that is away) are repeated with growing pauses
for a bounded time. Errors name the URL, the failure and what to check. Credentials are obstore's own chain: environment
variables, web identity, the metadata service of the machine.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import structlog

from isochrone.errors import ConfigError, IsochroneError, NotFound, Unavailable
from isochrone.models.sources.endpoints import check_endpoint
from isochrone.models.sources.failures import ALLOW_HTTP, PackageMissing, RangesIgnored, explained, panics_as_errors
from isochrone.models.sources.files import StoredFile, usable
from isochrone.models.sources.locations import RepositoryUrl
from isochrone.models.sources.manifest import MANIFEST, parse_manifest
from isochrone.models.sources.retries import Patience, is_lasting, is_without_ranges

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

#: Calls that a person or the control plane waits for: longer than one that hangs, shorter than the command line's 30 s.
LISTING = Patience(12.0)
#: May outlast a restart of the store.
DOWNLOAD = Patience(60.0)
_CLIENT: ClientConfig = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "120s"}
#: Of a whole file in one answer: the time without a byte is limited (read_timeout), the whole is not.
_WHOLE_FILE_TIMEOUT = "7d"
_CHUNK = 1 << 20
#: Of files that are read as a whole: configurations, manifests, checksums.
_LARGEST_SMALL_FILE = 64 << 20
_LIST = "list its files"
#: Begins the identity of a file without an ETag.
_MODIFIED = "modified "


class RemoteFiles:
    """The files of one repository. ``stopping`` ends every wait."""

    def __init__(self, url: RepositoryUrl, stopping: threading.Event | None = None) -> None:
        self.url = url
        self._stopping = stopping or threading.Event()
        self._store: ObjectStore | None = None
        self._patient_store: ObjectStore | None = None
        #: Whether the store answered a range with status 200. Then files are read as a whole.
        self._ignores_ranges = False

    def list(self, model: str = "") -> list[StoredFile]:
        """All files, or those of one model's folder: by the manifest if there is one, else by the store's listing."""
        try:
            content = self.read(MANIFEST, _LIST)
        except NotFound:
            if not self.url.has_listing:
                expected = f"{MANIFEST} there, since a web server lists no files (isochrone repository index writes it)"
                raise ConfigError("model repository", str(self.url), expected, "nothing there") from None
        else:
            files = parse_manifest(content, f"{self.url}/{MANIFEST}")
            return [file for file in files if not model or file.path.startswith(f"{model}/")]
        return self._repeat(lambda: usable(self._listed(model)), _LIST, LISTING)

    def read(self, path: str, task: str = "") -> bytes:
        """A small file. Raises ``NotFound`` if it does not exist. ``task``: what errors say that it is read for."""

        def read() -> bytes:
            answer = _obstore(self.url).get(self._opened(), path)
            if answer.meta["size"] > _LARGEST_SMALL_FILE:
                expected = f"at most {_LARGEST_SMALL_FILE >> 20} MiB"
                raise ConfigError(f"{self.url}/{path}", "size", expected, f"{answer.meta['size']} bytes")
            return bytes(answer.bytes())

        return self._repeat(read, task or f"read {path}", LISTING)

    def reader(self, file: StoredFile) -> RangeReader:
        return RangeReader(self, file)

    def _listed(self, model: str) -> Iterator[StoredFile]:
        for batch in _obstore(self.url).list(self._opened(), prefix=model or None):
            for meta in batch:
                identity = identity_of(meta)
                # S3's ETag of a plain upload is its MD5; of one in parts it has a dash.
                is_md5 = self.url.scheme == "s3" and len(identity) == 32 and set(identity) <= set("0123456789abcdef")
                yield StoredFile(meta["path"], meta["size"], identity, md5=identity if is_md5 else "")

    def _opened(self) -> ObjectStore:
        if self._store is None:
            self._store = _open(self.url)
        return self._store

    def _get(self, path: str, start: int, end: int, *, is_whole: bool) -> tuple[Any, int]:
        """An answer with the bytes from ``start`` to ``end``, and the offset in the file at which it begins.

        A store without ranges begins at 0, or raises ``RangesIgnored`` unless the whole file is wanted.
        """
        obstore = _obstore(self.url)
        if not self._ignores_ranges:
            try:
                return obstore.get(self._opened(), path, options={"range": (start, end)}), start
            except Exception as error:
                if not is_without_ranges(error):
                    raise
                self._ignores_ranges = True
                effect = "each file is fetched over one connection, and from its start after an interruption"
                log.warning(f"the store answers ranges with status 200 instead of 206: {effect}", url=str(self.url))
        if not is_whole:
            raise RangesIgnored(f"{self.url} has no ranges")
        if self._patient_store is None:
            self._patient_store = _open(self.url, _WHOLE_FILE_TIMEOUT)
        return obstore.get(self._patient_store, path), 0

    def _repeat(self, work: Callable[[], Result], task: str, patience: Patience) -> Result:
        begun, failures = time.monotonic(), 0
        while True:
            try:
                with panics_as_errors():
                    return work()
            except IsochroneError:
                raise
            except Exception as error:
                failures += 1
                self.pause(error, task, failures, time.monotonic() - begun, patience)

    def pause(self, error: Exception, task: str, failures: int, elapsed: float, patience: Patience) -> None:
        """Wait before the call is repeated. Raise the explained error if it is not."""
        # Resistant to synchrony, not to an attacker.
        seconds = None if is_lasting(error) else patience.pause(failures, elapsed, random.random())
        if seconds is None:
            raise explained(self.url, task, error, failures, elapsed) from None
        if self._stopping.wait(seconds):
            raise Unavailable("the server is stopping")

    def check_stopping(self) -> None:
        if self._stopping.is_set():
            raise Unavailable("the server is stopping")


class RangeReader:
    """Reads ranges of one file, possibly from several threads. All of them must be of one state of the object."""

    def __init__(self, files: RemoteFiles, file: StoredFile) -> None:
        self._files = files
        self._file = file
        # The time of a change has fewer digits in an answer than in a listing.
        self._seen = "" if file.sha256 or file.identity.startswith(_MODIFIED) else file.identity

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from ``start`` to ``end``. After a failure the rest is requested.

        Of a store without ranges, the whole file is requested again, and what has arrived before is dropped; for a part
        of the file ``RangesIgnored`` is raised.
        """
        at, failures, begun = start, 0, time.monotonic()
        path, is_whole = self._file.path, (start, end) == (0, self._file.size)
        while at < end:
            try:
                with panics_as_errors():
                    answer, offset = self._files._get(path, at, end, is_whole=is_whole)
                    self._check_state(answer.meta)
                    arrived = time.monotonic()
                    for chunk in answer.stream(_CHUNK):
                        self._files.check_stopping()
                        waited, arrived = time.monotonic() - arrived, time.monotonic()
                        content = bytes(chunk)[max(0, at - offset) : max(0, end - offset)]
                        offset += len(chunk)
                        if content:
                            at, failures, begun = at + len(content), 0, arrived
                            yield content
                        else:
                            # Bytes that arrive again are no progress, but no time without a byte either.
                            begun += waited
                if at < end:
                    raise EOFError(f"the answer ended {end - at} bytes early")
            except IsochroneError:
                raise
            except Exception as error:
                if isinstance(error, FileNotFoundError) and self._file.is_of_manifest:
                    expected = f"the file that {MANIFEST} names"
                    remedy = f"upload it, or write {MANIFEST} again (isochrone repository index)"
                    where = str(self._files.url)
                    raise ConfigError(where, path, expected, f"no such object: {remedy}") from None
                failures += 1
                self._files.pause(error, f"fetch {path}", failures, time.monotonic() - begun, DOWNLOAD)

    def _check_state(self, meta: Any) -> None:
        where, identity = f"{self._files.url}/{self._file.path}", identity_of(meta)
        if meta["size"] != self._file.size:
            reason = "it was replaced since it was listed"
            if self._file.is_of_manifest:
                reason = f"{MANIFEST} disagrees: write it again (isochrone repository index) and upload it last"
            given = f"{meta['size']}: {reason}"
            raise ConfigError(where, "size", f"{self._file.size} bytes", given)
        if not self._seen:
            self._seen = identity
        if identity != self._seen and not self._file.sha256:
            raise ConfigError(where, "object", "one that stays", "it was replaced")


def identity_of(meta: Any) -> str:
    tag = meta["e_tag"]
    return str(tag).removeprefix("W/").strip('"') if tag else _MODIFIED + str(meta["last_modified"].isoformat())


def _obstore(url: RepositoryUrl) -> ModuleType:
    try:
        import obstore
        import obstore.store
    except ImportError:
        raise PackageMissing(url) from None
    return obstore


def _open(url: RepositoryUrl, timeout: str = "") -> ObjectStore:
    """``timeout``: of one call with its answer; "": the usual one."""
    store = _obstore(url).store
    check_endpoint(url, os.environ)
    retries: Any = {"max_retries": 0}
    # Options given here replace those of the environment, of which this is one.
    allow_http = os.environ.get(ALLOW_HTTP.get(url.scheme, ""), "").lower() in ("1", "true")
    options: ClientConfig = {**_CLIENT, "allow_http": allow_http or url.scheme == "http"}
    if timeout:
        options["timeout"] = timeout
    opened: Any
    try:
        with panics_as_errors():
            if url.scheme in ("https", "http"):
                opened = store.HTTPStore(str(url), client_options=options, retry_config=retries)
            else:
                kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[url.scheme]
                opened = kind(url.host, prefix=url.prefix or None, client_options=options, retry_config=retries)
    except Exception as error:
        raise explained(url, "open it", error, 1, 0.0) from None
    return cast("ObjectStore", opened)
