"""Makes a store from its URL. Does not connect: the first call does, and reports errors.

Values are sealed and checked with the fleet's key. Without one, seals are taken off and not checked.
"""

from __future__ import annotations

from pathlib import Path

from isochrone.errors import ConfigError, FlagError
from isochrone.secure.fleet_key import FleetKey
from isochrone.store.base import Store
from isochrone.store.etcd.address import split_password
from isochrone.store.sealed import SealedStore
from isochrone.store.seals import Seal
from isochrone.store.sqlite.store import SqliteStore

ACCEPTED = "sqlite:PATH, or etcd:http://HOST:2379 with several endpoints separated by commas"


#: The purpose of the key that seals records.
_PURPOSE = "store records"


def seal_of(key: FleetKey | None, *, accepts_unsealed: bool = False) -> Seal:
    """``key``: the fleet's; None: nothing is sealed or checked. Raises ``FlagError``."""
    if key is None and accepts_unsealed:
        raise FlagError("--accept-unsealed", "--fleet-key beside it", "none")
    return Seal(key.all_derived(_PURPOSE) if key is not None else (), accepts_unsealed=accepts_unsealed)


def open_store(url: str, directory: Path | None = None, seal: Seal | None = None) -> SealedStore:
    """``sqlite:path/to/file.db``, relative to ``directory`` or the working directory, or ``etcd:http://h1:2379,…``."""
    return SealedStore(_plain_store(url, directory), seal if seal is not None else Seal())


def _plain_store(url: str, directory: Path | None) -> Store:
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
