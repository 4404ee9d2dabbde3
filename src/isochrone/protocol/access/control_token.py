"""The control token: required to load or unload a fleet worker's models and to change its trace and log settings.

A worker that belongs to a fleet writes a random token into its record in the store. The fleet's controllers read the
token there and send it with each such call. It is checked once per head or call, before the call takes effect. Calls
that only read (index, metadata, statistics) need no token. Shared-memory calls are part of inference and need none
either; they are off unless ``--allow-shared-memory`` or ``--allow-cuda-shared-memory`` is given.
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
    """Whether a call with this head may change the server. Without a ``token`` every call may."""
    if not token:
        return True
    given = head.get(_NAME) or b""
    # In constant time: the duration must not reveal how many characters were right.
    return hmac.compare_digest(given, token.encode())


def refused() -> PermissionDenied:
    return PermissionDenied(
        "this worker belongs to a fleet, and only the fleet's controller may change it: change its models with "
        "'isochrone rollout start MODEL=VERSION', other settings with the pool's arguments in fleet.yaml"
    )
