"""Discovery documents: a provider speaks for itself alone, and over HTTPS."""

from __future__ import annotations

from typing import Any

import pytest

from isochrone.secure.oidc.discovery import NotAProvider, discovery_url, read_discovery
from isochrone.secure.oidc.settings import Provider

PROVIDER = Provider("https://login.example/a/", "fleet")
RIGHT: dict[str, Any] = {
    "issuer": PROVIDER.issuer,
    "jwks_uri": "https://keys.example/a",
    "token_endpoint": "https://login.example/token?policy=a",
}


def test_a_document() -> None:
    found = read_discovery(PROVIDER, RIGHT)
    assert (found.jwks_uri, found.token_endpoint) == ("https://keys.example/a", "https://login.example/token?policy=a")
    assert (found.device_authorization_endpoint, found.client_methods) == ("", ("client_secret_basic",))
    assert not found.states_issuer
    assert discovery_url(PROVIDER) == "https://login.example/a/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"issuer": "https://login.example/a"}, "states the issuer 'https://login.example/a'; write issuer so"),
        ({"issuer": None}, "states the issuer none"),
        ({"jwks_uri": ""}, "no jwks_uri"),
        ({"jwks_uri": 7}, "jwks_uri of https://login.example/a/ is no string"),
        ({"jwks_uri": "http://keys.example"}, "is not https"),
        ({"jwks_uri": "file:///etc/passwd"}, "is not https"),
        ({"token_endpoint": "http://login.example/token"}, "token_endpoint of .* is not https"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint of .* is not https"),
    ],
)
def test_documents_that_are_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(NotAProvider, match=error):
        read_discovery(PROVIDER, {**RIGHT, **changes})
