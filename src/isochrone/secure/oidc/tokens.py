"""The form of a token: three segments of base64url, a strict header, JSON claims. Pure, and before any signature.

Limits come first, so that a stranger's token costs microseconds. Headers that bring a key of their own (``jwk``,
``jku``, ``x5u``, ``x5c``) are not read: ``verifier`` takes keys from the provider's key set alone.
"""

from __future__ import annotations

import binascii
import re
from typing import Any, Final, NamedTuple

from isochrone.errors import Unauthenticated
from isochrone.secure.oidc.strict_json import NotAnObject, read_object

#: Bytes of a token. Those of providers with many groups have two or three KiB.
MOST_BYTES: Final = 8192
_MOST_KID: Final = 256
#: RFC 7519 and RFC 9068. Logout tokens and security events are also signed by the provider, and are no credentials.
_TYPES: Final = frozenset({"jwt", "at+jwt", "application/jwt", "application/at+jwt"})
_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
#: For bytes: translating a str takes twenty times as long.
_TO_STANDARD: Final = bytes.maketrans(b"-_", b"+/")


class Token(NamedTuple):
    """A token that has the right form. Nothing of it is true before its signature is verified."""

    algorithm: str
    #: None: the header has none.
    key_id: str | None
    claims: dict[str, Any]
    signed: bytes
    signature: bytes


def read_token(token: str) -> Token:
    if len(token) > MOST_BYTES:
        raise Unauthenticated(f"the token is longer than {MOST_BYTES} bytes")
    if not _FORM.fullmatch(token):
        raise Unauthenticated("the token is not a signed JWT: three segments of base64url with dots between them")
    signed, _, signature = token.rpartition(".")
    header, _, claims = signed.partition(".")
    algorithm, key_id = _read_header(_object(header, "header"))
    return Token(algorithm, key_id, _object(claims, "payload"), signed.encode("ascii"), _decoded(signature))


def _read_header(header: dict[str, Any]) -> tuple[str, str | None]:
    """The algorithm and the key's id."""
    if "crit" in header or "b64" in header:
        raise Unauthenticated("the token's header has an extension (crit, b64) that this server does not know")
    kind = header.get("typ", "JWT")
    if not isinstance(kind, str) or kind.lower() not in _TYPES:
        raise Unauthenticated("the token's header has another typ than JWT or at+jwt; send an access token")
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str):
        raise Unauthenticated("the token's header has no alg")
    if key_id is not None and not (isinstance(key_id, str) and 0 < len(key_id) <= _MOST_KID):
        raise Unauthenticated(f"the token's kid is not a string of 1 to {_MOST_KID} characters")
    return algorithm, key_id


def _object(segment: str, name: str) -> dict[str, Any]:
    try:
        return read_object(_decoded(segment))
    except NotAnObject as error:
        raise Unauthenticated(f"the token's {name} {error}") from None


def _decoded(segment: str) -> bytes:
    """base64url without padding. Spare bits must be 0: each token has one spelling."""
    padded = segment.encode("ascii").translate(_TO_STANDARD) + b"=" * (-len(segment) % 4)
    try:
        content = binascii.a2b_base64(padded, strict_mode=True)
    except binascii.Error:
        raise Unauthenticated("a segment of the token is not base64url") from None
    if binascii.b2a_base64(content, newline=False) != padded:
        raise Unauthenticated("a segment of the token is not base64url")
    return content
