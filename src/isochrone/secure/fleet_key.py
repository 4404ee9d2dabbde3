"""The key of a fleet: one secret, from which the fleet's processes derive what proves that they belong to it.

Each purpose has a key of its own: what one of them reveals says nothing about another. A file of text may have several
lines, each a secret: the first one is the fleet's key, the others are accepted while it is exchanged.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

from isochrone.secure.secret_file import read_secrets

_LABEL: Final = b"isochrone fleet key 1 "


class FleetKey:
    """Derived keys. The bytes of the secrets are never shown. ``others``: further secrets that are accepted."""

    __slots__ = ("_secrets",)

    def __init__(self, secret: bytes, *others: bytes) -> None:
        self._secrets = (secret, *others)

    def derived(self, purpose: str) -> bytes:
        """32 bytes for one purpose, such as "store records"."""
        return self.all_derived(purpose)[0]

    def all_derived(self, purpose: str) -> tuple[bytes, ...]:
        """The same of every secret that is accepted, the present one first."""
        return tuple(hmac.digest(secret, _LABEL + purpose.encode(), "sha256") for secret in self._secrets)


def read_fleet_key(file: str | Path | None, flag: str = "--fleet-key") -> FleetKey | None:
    """None: no file is named, and the fleet has no key. Raises ``FlagError``."""
    return FleetKey(*read_secrets(file, flag)) if file else None
