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

from isochrone.errors import ConfigError, IsochroneError, NotFound, Unavailable
from isochrone.models.sources.failures import ALLOW_HTTP, explained
from isochrone.models.sources.files import StoredFile, usable
from isochrone.models.sources.locations import RepositoryUrl
from isochrone.models.sources.manifest import MANIFEST, parse_manifest
from isochrone.models.sources.retries import Patience, is_lasting

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

Result = TypeVar("Result")

#: Calls that a person or the control plane waits for: longer than one that hangs, shorter than the command line's 30 s.
LISTING = Patience(12.0)
#: May outlast a restart of the store.
DOWNLOAD = Patience(60.0)
_CLIENT: ClientConfig = {"connect_timeout": "5s", "read_timeout": "10s", "timeout": "120s"}
_CHUNK = 1 << 20
#: Of files that are read as a whole: configurations, manifests, checksums.
_LARGEST_SMALL_FILE = 64 << 20
#: Begins the identity of a file without an ETag.
_MODIFIED = "modified "


class RemoteFiles:
    """The files of one repository. ``stopping`` ends every wait."""

    def __init__(self, url: RepositoryUrl, stopping: threading.Event | None = None) -> None:
        self.url = url
        self._stopping = stopping or threading.Event()
        self._store: ObjectStore | None = None

    def list(self, model: str = "") -> list[StoredFile]:
        """All files, or those of one model's folder: by the manifest if there is one, else by the store's listing.

        Raises ``StrayKey`` if a key in the listing cannot be a path: then none of the keys are known.
        """
        try:
            content = self.read(MANIFEST)
        except NotFound:
            if not self.url.has_listing:
                expected = f"{MANIFEST} there, since a web server lists no files (isochrone repository index writes it)"
                raise ConfigError("model repository", str(self.url), expected, "nothing there") from None
        else:
            files = parse_manifest(content, f"{self.url}/{MANIFEST}")
            return [file for file in files if not model or file.path.startswith(f"{model}/")]
        return self._repeat(lambda: usable(self._listed(model)), "list its files", LISTING)

    def folders(self) -> tuple[str, ...]:
        """The names of the folders at the root, of a store that has a listing."""

        def listed() -> tuple[str, ...]:
            found = _obstore(self.url).list_with_delimiter(self._opened())
            return tuple(sorted(found["common_prefixes"]))

        return self._repeat(listed, "list its folders", LISTING)

    def read(self, path: str) -> bytes:
        """A small file. Raises ``NotFound`` if it does not exist."""

        def read() -> bytes:
            answer = _obstore(self.url).get(self._opened(), path)
            if answer.meta["size"] > _LARGEST_SMALL_FILE:
                expected = f"at most {_LARGEST_SMALL_FILE >> 20} MiB"
                raise ConfigError(f"{self.url}/{path}", "size", expected, f"{answer.meta['size']} bytes")
            return bytes(answer.bytes())

        return self._repeat(read, f"read {path}", LISTING)

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

    def _repeat(self, work: Callable[[], Result], task: str, patience: Patience) -> Result:
        begun, failures = time.monotonic(), 0
        while True:
            try:
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
        """The bytes from ``start`` to ``end``. After a failure the rest is requested."""
        obstore = _obstore(self._files.url)
        at, failures, begun = start, 0, time.monotonic()
        path = self._file.path
        while at < end:
            try:
                answer = obstore.get(self._files._opened(), path, options={"range": (at, end)})
                self._check_state(answer.meta)
                for chunk in answer.stream(_CHUNK):
                    self._files.check_stopping()
                    content = bytes(chunk[: end - at])
                    at, failures, begun = at + len(content), 0, time.monotonic()
                    yield content
                if at < end:
                    raise EOFError(f"the answer ended {end - at} bytes early")
            except IsochroneError:
                raise
            except Exception as error:
                failures += 1
                self._files.pause(error, f"fetch {path}", failures, time.monotonic() - begun, DOWNLOAD)

    def _check_state(self, meta: Any) -> None:
        where, identity = f"{self._files.url}/{self._file.path}", identity_of(meta)
        if meta["size"] != self._file.size:
            given = f"{meta['size']}: it was replaced since it was listed"
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
        given = f"{url}, and the package obstore is not installed (pip install 'isochrone[object-stores]')"
        raise ConfigError("model repository", "URL", "a path", given) from None
    return obstore


def _open(url: RepositoryUrl) -> ObjectStore:
    store = _obstore(url).store
    retries: Any = {"max_retries": 0}
    # Options given here replace those of the environment, of which this is one.
    allow_http = os.environ.get(ALLOW_HTTP.get(url.scheme, ""), "").lower() in ("1", "true")
    options: ClientConfig = {**_CLIENT, "allow_http": allow_http or url.scheme == "http"}
    opened: Any
    try:
        if url.scheme in ("https", "http"):
            opened = store.HTTPStore(str(url), client_options=options, retry_config=retries)
        else:
            kind = {"s3": store.S3Store, "gs": store.GCSStore, "az": store.AzureStore}[url.scheme]
            opened = kind(url.host, prefix=url.prefix or None, client_options=options, retry_config=retries)
    except Exception as error:
        raise explained(url, "open it", error, 1, 0.0) from None
    return cast("ObjectStore", opened)
