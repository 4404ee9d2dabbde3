"""Decides whether a token is one of the provider's, with the keys at hand. Pure: no I/O, no clock.

Everything that costs little is checked first, so that forged tokens rarely reach a signature, and a token of another
issuer is never a reason to fetch keys. Nothing that the token says is used before its signature is verified, except to
reject it.
"""

from __future__ import annotations

from typing import Any

from isochrone.errors import Unauthenticated
from isochrone.secure.oidc.claims import Claims, check_addressee, check_times, read_claims
from isochrone.secure.oidc.key_set import KeySet, UnknownKey, libraries
from isochrone.secure.oidc.settings import Provider
from isochrone.secure.oidc.tokens import Token, read_token

__all__ = ["UnknownKey", "Verifier"]


class Verifier:
    """``KeySource`` gives it keys. Before the first ones, every token is rejected."""

    __slots__ = ("_algorithms", "keys", "provider")

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        #: None: not fetched yet. Replaced as a whole if the provider has other keys.
        self.keys: KeySet | None = None
        _, jws = libraries()
        known = jws.JWSRegistry.algorithms
        # Two names of one signature; the library is about to drop one, and its earlier releases lack the other.
        edwards = known.get("Ed25519") or known["EdDSA"]
        self._algorithms = {
            name: edwards if name in ("EdDSA", "Ed25519") else known[name] for name in provider.algorithms
        }

    def verify(self, token: str, now: float) -> Claims:
        """The caller; ``now`` in seconds since 1970.

        Raises ``Unauthenticated``; ``UnknownKey`` if fetching the keys may help. Callers may keep the answer for the
        same text of a token while ``now`` is below ``Claims.expires`` and ``keys`` is the same object: a key that the
        provider has withdrawn verifies nothing any more.
        """
        claims, expires = self._verified(token, now)
        return read_claims(self.provider, claims, expires)

    def verify_login(self, token: str, nonce: str | None, now: float) -> Claims:
        """The same of an ID token that a login got, whose audience is the client: it must have the login's nonce."""
        claims, expires = self._verified(token, now)
        if nonce is not None and claims.get("nonce") != nonce:
            raise Unauthenticated("the ID token is not of this login: it has another nonce")
        audience, party = claims.get("aud"), claims.get("azp")
        # OpenID Connect Core, section 3.1.3.7.
        is_for_several = isinstance(audience, list) and len(audience) > 1
        if party != self.provider.audience and (party is not None or is_for_several):
            raise Unauthenticated("the ID token was issued to another client")
        return read_claims(self.provider, claims, expires)

    def _verified(self, token: str, now: float) -> tuple[dict[str, Any], float]:
        """What a token of this provider says, and when it expires."""
        read = read_token(token)
        if read.algorithm not in self._algorithms:
            raise Unauthenticated(f"the token's alg is none of {', '.join(self._algorithms)}")
        check_addressee(self.provider, read.claims)
        expires = check_times(self.provider, read.claims, now)
        self._check_signature(read, now)
        return read.claims, expires

    def _check_signature(self, token: Token, now: float) -> None:
        keys = self.keys
        if keys is None:
            raise UnknownKey(f"the keys of {self.provider.issuer} have not been fetched yet")
        if now - keys.fetched > self.provider.max_age_seconds:
            hours = (now - keys.fetched) / 3600
            raise UnknownKey(f"{self.provider.issuer} has not answered for {hours:.0f} h; its keys are too old")
        key = keys.find(token.key_id, token.algorithm)
        if not self._algorithms[token.algorithm].verify(token.signed, token.signature, key):
            raise Unauthenticated("the token's signature is not one of the provider's key")
