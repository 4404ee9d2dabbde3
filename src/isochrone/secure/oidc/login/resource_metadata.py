"""What a control API tells a client that wants to log in: protected resource metadata (RFC 9728). Pure.

The standard names the issuer. The client and the audience are ours, below ``isochrone``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from isochrone.errors import ConfigError
from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.renewal import origin_of
from isochrone.secure.oidc.settings import DEFAULT_SCOPES, DEFAULT_SIGNATURES, Provider, checked

PATH: Final = "/.well-known/oauth-protected-resource"


class _Own(msgspec.Struct, frozen=True):
    client_id: str
    audience: str
    login_parameters: Mapping[str, str] = {}
    algorithms: tuple[str, ...] = ()
    name_claim: str = "sub"


class _Metadata(msgspec.Struct, frozen=True):
    resource: str
    authorization_servers: tuple[str, ...]
    isochrone: _Own
    scopes_supported: tuple[str, ...] = ()


def write_metadata(provider: Provider, resource: str) -> dict[str, Any]:
    """``resource``: the URL of the control API as the client wrote it."""
    return {
        "resource": resource,
        "authorization_servers": [provider.issuer],
        "scopes_supported": list(provider.scopes),
        "bearer_methods_supported": ["header"],
        "isochrone": {
            "client_id": provider.client_id,
            "audience": provider.audience,
            "login_parameters": dict(provider.login_parameters or {}),
            "algorithms": list(provider.algorithms),
            "name_claim": provider.name_claim,
        },
    }


def read_metadata(content: bytes, api: str) -> Provider:
    """The provider of a control API. Raises ``LoginFailed``."""
    try:
        found = msgspec.json.decode(content, type=_Metadata)
    except msgspec.DecodeError as error:
        raise LoginFailed(
            f"{api}{PATH} is no metadata of a control API: {error}; name the provider with --issuer"
        ) from None
    if origin_of(found.resource) != origin_of(api):
        # RFC 9728, section 3.3: one API could send its users to log in for another.
        raise LoginFailed(f"{api}{PATH} describes another API: {found.resource[:200]!r}")
    if len(found.authorization_servers) != 1:
        raise LoginFailed(f"{api} has no provider, or several; name one with --issuer")
    own = found.isochrone
    provider = Provider(
        found.authorization_servers[0],
        own.audience,
        own.client_id,
        own.algorithms or DEFAULT_SIGNATURES,
        name_claim=own.name_claim,
        scopes=found.scopes_supported or DEFAULT_SCOPES,
        login_parameters=own.login_parameters,
    )
    try:
        return checked(provider, f"{api}{PATH}")
    except ConfigError as error:
        raise LoginFailed(str(error)) from None
