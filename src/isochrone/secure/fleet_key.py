"""The key of a fleet: one secret, from which the fleet's processes derive what proves that they belong to it.

Each purpose has a key of its own: what one of them reveals says nothing about another.
"""

from __future__ import annotations

import hmac
from pathlib import Path
from typing import Final

from isochrone.secure.secret_file import read_secret

_LABEL: Final = b"isochrone fleet key 1 "


class FleetKey:
    """Derived keys. The bytes of the secret are never shown."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def derived(self, purpose: str) -> bytes:
        """32 bytes for one purpose, such as "store records"."""
        return hmac.digest(self._secret, _LABEL + purpose.encode(), "sha256")


def read_fleet_key(file: str | Path | None, flag: str = "--fleet-key") -> FleetKey | None:
    """None: no file is named, and the fleet has no key. Raises ``FlagError``."""
    return FleetKey(read_secret(file, flag)) if file else None
