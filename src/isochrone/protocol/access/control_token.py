"""The secret without which a fleet's worker changes nothing: model loads and unloads, trace and log settings.

A worker that belongs to a fleet writes a random token into its record in the store. The fleet's controllers read it
there and send it with each such call. Checked once per head or call, before anything is done. Reading (the index,
metadata, statistics) needs no token: gateways and people do it. Shared-memory regions are part of inference and need
none either; they are off unless ``--allow-shared-memory`` is given.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from isochrone.errors import PermissionDenied

if TYPE_CHECKING:
    from isochrone.wire.exchange import Head

HEADER = "x-isochrone-control"
_NAME = HEADER.encode()


def may_change(head: Head, token: str) -> bool:
    """Whether a call with this head may change the server; no ``token``: every call may."""
    if not token:
        return True
    given = head.get(_NAME) or b""
    # In constant time: how long it takes must not tell how many characters were right.
    return hmac.compare_digest(given, token.encode())


def refused() -> PermissionDenied:
    return PermissionDenied(
        "this worker belongs to a fleet and is changed by the fleet's controller alone: change what is loaded with "
        "'isochrone rollout start MODEL=VERSION', other settings with the pool's arguments in fleet.yaml"
    )
