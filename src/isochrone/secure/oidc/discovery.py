"""The discovery document of a provider: where its keys are and where tokens are asked for. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from isochrone.secure.oidc.addresses import is_allowed
from isochrone.secure.oidc.settings import Provider

_PATH: Final = "/.well-known/openid-configuration"


class NotAProvider(Exception):
    """A document that this provider cannot have meant; the message says what to correct."""


class Discovery(NamedTuple):
    """ "" for an endpoint that the provider does not have."""

    jwks_uri: str
    token_endpoint: str
    authorization_endpoint: str
    device_authorization_endpoint: str
    revocation_endpoint: str
    #: How clients authenticate at the token endpoint.
    client_methods: tuple[str, ...]
    #: The answer of a login states the issuer (RFC 9207).
    states_issuer: bool


def discovery_url(provider: Provider) -> str:
    return provider.issuer.rstrip("/") + _PATH


def read_discovery(provider: Provider, document: Mapping[str, Any]) -> Discovery:
    stated = document.get("issuer")
    if stated != provider.issuer:
        # A provider may speak for itself alone (OpenID Connect Discovery, section 4.3).
        shown = repr(stated[:200]) if isinstance(stated, str) else "none"
        raise NotAProvider(f"the provider states the issuer {shown}; write issuer so, given {provider.issuer!r}")
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    found = Discovery(
        jwks_uri=_endpoint(provider, document, "jwks_uri"),
        token_endpoint=_endpoint(provider, document, "token_endpoint"),
        authorization_endpoint=_endpoint(provider, document, "authorization_endpoint"),
        device_authorization_endpoint=_endpoint(provider, document, "device_authorization_endpoint"),
        revocation_endpoint=_endpoint(provider, document, "revocation_endpoint"),
        client_methods=tuple(str(each) for each in methods) if isinstance(methods, list) else (),
        states_issuer=document.get("authorization_response_iss_parameter_supported") is True,
    )
    if not found.jwks_uri:
        raise NotAProvider(f"the discovery document of {provider.issuer} has no jwks_uri")
    return found


def _endpoint(provider: Provider, document: Mapping[str, Any], name: str) -> str:
    given = document.get(name, "")
    if not isinstance(given, str):
        raise NotAProvider(f"{name} of {provider.issuer} is no string")
    # Some providers have endpoints with a query, which names a policy or a tenant.
    if given and not is_allowed(given.partition("?")[0], allow_http=provider.allow_http):
        raise NotAProvider(f"{name} of {provider.issuer} is not https: {given[:200]!r}")
    return given
