"""Makes a store from its URL. Does not connect: the first call does, and reports errors."""

from __future__ import annotations

from pathlib import Path

from isochrone.errors import ConfigError
from isochrone.store.base import Store
from isochrone.store.etcd.address import split_password
from isochrone.store.sqlite.store import SqliteStore

ACCEPTED = "sqlite:PATH, or etcd:http://HOST:2379 with several endpoints separated by commas"


def open_store(url: str, directory: Path | None = None) -> Store:
    """``sqlite:path/to/file.db``, relative to ``directory`` or the working directory, or ``etcd:http://h1:2379,…``."""
    kind, _, rest = url.partition(":")
    if kind == "sqlite" and rest:
        return SqliteStore(url, sqlite_path(rest, directory))
    if kind == "etcd" and rest:
        # Imported here: httpx takes a tenth of a second to import, and a fleet on one machine does not need it.
        from isochrone.store.etcd.store import EtcdStore

        return EtcdStore(url)
    raise ConfigError("store", "url", ACCEPTED, repr(split_password(url)[0]))


def sqlite_path(rest: str, directory: Path | None = None) -> Path:
    """The file of a URL without its ``sqlite:``."""
    # Other programs write sqlite:///absolute.
    path = Path(rest[2:] if rest.startswith("///") else rest)
    return (directory or Path.cwd()) / path.expanduser()
