"""A provider's keys and the tokens it signs, right ones and every kind of wrong one."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from joserfc import jwk, jws

from isochrone.secure.oidc.key_set import KeySet, read_key_set
from isochrone.secure.oidc.settings import Provider
from isochrone.secure.oidc.verifier import Verifier

ISSUER = "https://issuer.example"
AUDIENCE = "https://fleet.example"
NOW = 1_800_000_000.0
PROVIDER = Provider(ISSUER, AUDIENCE)
_numbers = itertools.count()


@cache
def key(name: str, kind: str = "RSA", parameter: str | int = 2048) -> Any:
    """A private key; its kid is its name."""
    return jwk.generate_key(kind, parameter, {"kid": name}, private=True)  # type: ignore[call-overload]


def public(*keys: Any) -> dict[str, Any]:
    """Their JSON Web Key Set."""
    return {"keys": [each.as_dict(private=False) for each in keys]}


def claims(**changes: Any) -> dict[str, Any]:
    """Of a token that is accepted; a change to None leaves the claim out."""
    stated = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ada", "exp": NOW + 600, "iat": NOW, **changes}
    return {name: value for name, value in stated.items() if value is not None}


def segment(content: Mapping[str, Any] | bytes) -> str:
    given = content if isinstance(content, bytes) else json.dumps(content).encode()
    return base64.urlsafe_b64encode(given).rstrip(b"=").decode()


def signed(
    by: Any, algorithm: str, payload: Mapping[str, Any] | bytes, header: Mapping[str, Any] | bytes | None = None
) -> str:
    """A token with any header and payload, signed by ``by`` as ``algorithm``."""
    head = {"alg": algorithm, "kid": by.kid, "typ": "JWT"} if header is None else header
    text = f"{segment(head)}.{segment(payload)}"
    # One signature with two names, of which older releases of the library know one.
    known = jws.JWSRegistry.algorithms.get(algorithm) or jws.JWSRegistry.algorithms["EdDSA"]
    signature = known.sign(text.encode(), by)
    return f"{text}.{segment(signature)}"


def new_token_of(by: Any, issuer: str, **changes: Any) -> str:
    """A valid token of this moment that no server has seen yet."""
    now = time.time()
    stated = {"iss": issuer, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now, "jti": str(next(_numbers))}
    return signed(by, "ES256" if by.key_type == "EC" else "RS256", stated | changes)


def verifier(*keys: Any, provider: Provider = PROVIDER, fetched: float = NOW) -> Verifier:
    made = Verifier(provider)
    made.keys = key_set(*keys, fetched=fetched)
    return made


def key_set(*keys: Any, fetched: float = NOW) -> KeySet:
    return read_key_set(public(*keys), fetched)
