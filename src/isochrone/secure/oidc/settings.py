"""An OpenID provider whose tokens a server accepts, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from isochrone.errors import ConfigError
from isochrone.secure.oidc.addresses import is_allowed
from isochrone.settings.documents import Document, as_mapping
from isochrone.settings.ranges import Range
from isochrone.settings.records import read_over, section_of
from isochrone.settings.sections import read_section

#: Signatures by a private key. A shared secret (HS256) would let every server issue tokens; "none" is no signature.
SIGNATURES: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
DEFAULT_SIGNATURES: Final = ("RS256", "PS256", "ES256", "EdDSA", "Ed25519")
#: Who the user is, and a token that renews the login.
DEFAULT_SCOPES: Final = ("openid", "offline_access")


@dataclass(frozen=True, slots=True)
class Provider:
    """Times in seconds."""

    #: URL of the provider, exactly as its tokens state it in ``iss``.
    issuer: str
    #: What ``aud`` of a token must contain: the name of this fleet at the provider.
    audience: str
    #: The client that people log in with. "": the provider is used for service accounts alone.
    client_id: str = ""
    #: Signatures that are accepted, some of ``SIGNATURES``.
    algorithms: tuple[str, ...] = DEFAULT_SIGNATURES
    #: How far the clocks of the provider and of this machine may differ.
    leeway: Annotated[float, Range(0, 300)] = 30.0
    #: The claim that names the caller.
    name_claim: str = "sub"
    #: The claim that lists the groups of the caller, a list of strings or one string. A token may lack it.
    groups_claim: str = "groups"
    #: PEM file of the certificate authorities of the provider's TLS. "": those of the system.
    ca: str = ""
    #: Scopes that a login asks for.
    scopes: tuple[str, ...] = DEFAULT_SCOPES
    #: Further parameters of a login, as ``resource`` of RFC 8707 or ``audience`` of some providers.
    login_parameters: Mapping[str, str] | None = None
    #: Accept ``http://`` for a provider that is not on this machine. Whoever is on its network can then forge tokens.
    allow_http: bool = False
    #: Time between two fetches of the provider's keys.
    refresh_seconds: Annotated[float, Range(10, 86_400)] = 300.0
    #: How long keys are trusted while the provider does not answer.
    max_age_seconds: Annotated[float, Range(60, 30 * 86_400)] = 86_400.0


def read_provider(document: Document) -> Provider:
    """The provider that a mapping describes. Raises ``ConfigError`` for all errors of types, or the first of values."""
    as_mapping(document, "the settings of an OpenID provider: issuer and audience")
    given = read_over(Provider("", ""), read_section(section_of(Provider), document))
    return checked(given, document.where)


def provider_of(settings: Mapping[str, Any], where: str) -> Provider:
    """The same of data without a file of its own. ``where`` names it in errors."""
    return read_provider(Document(where, dict(settings), None))


def checked(provider: Provider, where: str) -> Provider:
    """The provider, or ``ConfigError``: its values fit together."""
    if not provider.issuer:
        raise ConfigError(where, "issuer", "the URL of the provider", "nothing")
    if not is_allowed(provider.issuer, allow_http=provider.allow_http):
        raise ConfigError(
            where, "issuer", "https://HOST without query, or http://127.0.0.1:PORT", repr(provider.issuer)
        )
    for name in ("audience", "name_claim", "groups_claim"):
        if not getattr(provider, name):
            raise ConfigError(where, name, "a name", "nothing")
    unknown = [name for name in provider.algorithms if name not in SIGNATURES]
    if unknown or not provider.algorithms:
        given = repr(unknown[0]) if unknown else "none"
        raise ConfigError(where, "algorithms", f"some of {', '.join(SIGNATURES)}", given)
    return provider
