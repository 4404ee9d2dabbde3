"""A provider's last keys on disk, so that a server which starts while the provider is away accepts its tokens.

Whoever can write this file can issue tokens: a file that others may write is not read.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple

from isochrone.secure.oidc.key_set import KeySet, UnusableKeys, read_key_set
from isochrone.secure.oidc.strict_json import NotAnObject, read_object
from isochrone.whole_files import write_whole

_MOST_BYTES: Final = 1 << 20
_READ_OWN: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class NotKept(Exception):
    """No keys can be read from or written to the file; the message says why. ``absent``: there is none."""

    def __init__(self, message: str, *, absent: bool = False) -> None:
        super().__init__(message)
        self.absent = absent


class KeptKeys(NamedTuple):
    """The file, and the issuer whose keys it may have."""

    path: Path
    issuer: str

    def write(self, document: dict[str, Any], fetched: float) -> None:
        record = {"issuer": self.issuer, "fetched": fetched, "jwks": document}
        try:
            write_whole(self.path, json.dumps(record))
        except OSError as error:
            raise NotKept(f"{self.path}: {error.strerror}") from None

    def read(self, now: float) -> KeySet:
        """The keys with the time at which they were fetched. ``now``: seconds since 1970."""
        try:
            record = read_object(self._own_content())
            fetched = record["fetched"]
            if record["issuer"] != self.issuer:
                raise NotKept(f"{self.path} has keys of another issuer")
            if not isinstance(fetched, int | float) or not isinstance(record["jwks"], dict):
                raise NotKept(f"{self.path} has no keys")
            # A file of the future would be trusted for too long.
            return read_key_set(record["jwks"], min(float(fetched), now))
        except (NotAnObject, UnusableKeys) as error:
            raise NotKept(f"{self.path} {error}") from None
        except KeyError:
            raise NotKept(f"{self.path} has no keys") from None

    def _own_content(self) -> bytes:
        try:
            with os.fdopen(os.open(self.path, _READ_OWN), "rb") as file:
                found = os.fstat(file.fileno())
                if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise NotKept(f"{self.path} can be written by others; remove it")
                return file.read(_MOST_BYTES)
        except FileNotFoundError:
            raise NotKept(f"{self.path} does not exist", absent=True) from None
        except OSError as error:
            raise NotKept(f"{self.path}: {error.strerror}") from None
