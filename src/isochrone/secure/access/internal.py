"""The fleet's own callers: controllers and gateways prove who they are by what they derive from the fleet's key.

What they may do stands here: an access file can neither name them nor change it. A gateway also vouches for callers
that have no token to pass on: it signs the names that it found in a caller's certificate, or that there were none.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, unquote

from isochrone.secure.access.identity import ANONYMOUS, Identity
from isochrone.secure.access.permissions import (
    BUILT_IN,
    HEALTH,
    INFERENCE,
    LOGGING,
    METADATA,
    METRICS,
    MODEL_CONFIG,
    MODEL_REPOSITORY,
    RECORDS,
    STATISTICS,
    TRACE,
)
from isochrone.secure.access.policy import Assignment, Policy, Rule
from isochrone.secure.access.tokens import digest_of

if TYPE_CHECKING:
    from isochrone.secure.fleet_key import FleetKey

CONTROLLER: Final = Identity("fleet:controller")
GATEWAY: Final = Identity("fleet:gateway")
#: The header of requests that a gateway sends for a caller without a token.
ON_BEHALF: Final = b"x-isochrone-on-behalf-of"

#: What each of them may do; inference is what a controller compares two versions by.
_MAY: Final = {
    GATEWAY: BUILT_IN["gateway"],
    CONTROLLER: (
        HEALTH,
        METADATA,
        INFERENCE,
        MODEL_CONFIG,
        MODEL_REPOSITORY,
        STATISTICS,
        METRICS,
        RECORDS,
        TRACE,
        LOGGING,
    ),
}
#: The whole policy of these callers: that of the access file does not apply to them.
POLICY: Final = Policy(
    {identity.name: (Rule(frozenset(may)),) for identity, may in _MAY.items()},
    tuple(Assignment((identity.name,), (identity.name,)) for identity in _MAY),
)
_CERTIFICATE: Final = "certificate:"
#: Characters of names that stay as they are; a comma separates names.
_PLAIN: Final = ":/@=+ "


class InternalCallers:
    """What one fleet's key proves. Its secrets are never shown."""

    __slots__ = ("_identities", "_signing_keys", "controller_token", "gateway_token")

    def __init__(self, key: FleetKey) -> None:
        # The first secret proves who this process is; while the key is exchanged, others may have another one first.
        controllers = [each.hex() for each in key.all_derived("calls of controllers")]
        gateways = [each.hex() for each in key.all_derived("calls of gateways")]
        self.controller_token, self.gateway_token = controllers[0], gateways[0]
        self._signing_keys = key.all_derived("identities that gateways have proved")
        #: By the digest of the token: the time that a lookup takes says nothing about a token.
        self._identities = dict.fromkeys(map(digest_of, controllers), CONTROLLER) | dict.fromkeys(
            map(digest_of, gateways), GATEWAY
        )

    def identify(self, token_digest: str) -> Identity | None:
        """None: the token is none of theirs."""
        return self._identities.get(token_digest)

    def attest(self, peer: tuple[str, ...]) -> bytes:
        """The value of the header for a caller without a token. ``peer``: the names in its certificate."""
        names = ",".join(_CERTIFICATE + quote(name, safe=_PLAIN) for name in peer) or ANONYMOUS.name
        return f"{names};{_signature(self._signing_keys[0], names)}".encode()

    def attested(self, value: bytes) -> Identity | None:
        """The identity in such a value; None: no gateway of the fleet made it."""
        names, _, signature = value.decode("latin-1").rpartition(";")
        made = (_signature(key, names) for key in self._signing_keys)
        if not any(hmac.compare_digest(signature.encode(), each.encode()) for each in made):
            return None
        if names == ANONYMOUS.name:
            return ANONYMOUS
        first, *others = (unquote(name) for name in names.split(","))
        return Identity(first, aliases=tuple(others))


def _signature(key: bytes, names: str) -> str:
    return hmac.digest(key, names.encode(), "sha256").hex()


def internal_callers(key: FleetKey | None) -> InternalCallers | None:
    """None: the fleet has no key, and its processes prove nothing."""
    return None if key is None else InternalCallers(key)
