"""What a token says, checked: issuer, audience, times and names. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from isochrone.errors import Unauthenticated
from isochrone.secure.oidc.settings import Provider

#: Characters of a subject (OpenID Connect Core, section 2), a name or a group.
_MOST_CHARACTERS: Final = 255
#: Seconds since 1970. Larger numbers lose digits as a float.
_LARGEST_TIME: Final = float(1 << 53)


@dataclass(frozen=True, slots=True)
class Claims:
    """The caller, as the provider states it."""

    issuer: str
    #: Names the caller at the issuer, for good: a name may pass to another person.
    subject: str
    name: str
    groups: tuple[str, ...]
    #: Seconds since 1970. The token is accepted until ``Provider.leeway`` later.
    expires: float


def check_addressee(provider: Provider, claims: Mapping[str, Any]) -> None:
    """The token is of this provider and for this audience."""
    if claims.get("iss") != provider.issuer:
        raise Unauthenticated(f"the token is not of issuer {provider.issuer}")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if not all(isinstance(each, str) for each in audiences) or provider.audience not in audiences:
        raise Unauthenticated(f"the token's aud does not contain {provider.audience}; ask the provider for it")


def check_times(provider: Provider, claims: Mapping[str, Any], now: float) -> float:
    """When the token expires. ``now``: seconds since 1970."""
    expires = _time(claims, "exp")
    if expires is None:
        raise Unauthenticated("the token has no exp; tokens that never expire are not accepted")
    if now >= expires + provider.leeway:
        raise Unauthenticated("the token has expired")
    for name in ("nbf", "iat"):
        begins = _time(claims, name)
        if begins is not None and begins > now + provider.leeway:
            raise Unauthenticated(
                f"the token's {name} is in the future; compare this machine's clock with the issuer's"
            )
    return expires


def read_claims(provider: Provider, claims: Mapping[str, Any], expires: float) -> Claims:
    subject = _text(claims, "sub")
    name = subject if provider.name_claim == "sub" else _text(claims, provider.name_claim)
    if provider.name_claim == "email" and claims.get("email_verified", True) is not True:
        # Some providers let people enter any address.
        raise Unauthenticated("the provider has not verified the token's email")
    return Claims(provider.issuer, subject, name, _groups(claims, provider.groups_claim), expires)


def _groups(claims: Mapping[str, Any], name: str) -> tuple[str, ...]:
    given = claims.get(name)
    if given is None:
        return ()
    groups = given if isinstance(given, list) else [given]
    if not all(_is_name(each) for each in groups):
        raise Unauthenticated(f"the token's {name} is not a list of names")
    return tuple(dict.fromkeys(groups))


def _text(claims: Mapping[str, Any], name: str) -> str:
    given = claims.get(name)
    if not _is_name(given):
        raise Unauthenticated(f"the token's {name} is not a name of 1 to {_MOST_CHARACTERS} printable characters")
    assert isinstance(given, str)
    return given


def _is_name(given: Any) -> bool:
    """Printable: a name is shown in terminals and logs."""
    return isinstance(given, str) and 0 < len(given) <= _MOST_CHARACTERS and given.isprintable()


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    given = claims.get(name)
    if given is None and name not in claims:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < _LARGEST_TIME:
        raise Unauthenticated(f"the token's {name} is not a time in seconds since 1970")
    return float(given)
