"""What a control API says about logins, and what it cannot make a client do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.resource_metadata import read_metadata, write_metadata
from isochrone.secure.oidc.settings import Provider

API = "https://api.example:8003"
PROVIDER = Provider(
    "https://login.example",
    "fleet",
    "cli",
    ("ES256",),
    name_claim="email",
    scopes=("openid", "infer"),
    login_parameters={"resource": "https://fleet.example"},
)


def written(**changes: Any) -> bytes:
    return json.dumps({**write_metadata(PROVIDER, API), **changes}).encode()


def test_a_provider_is_read_as_it_was_written() -> None:
    assert read_metadata(written(), API) == PROVIDER
    assert read_metadata(written(), API + "/") == PROVIDER


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (written(resource="https://other.example:8003"), "describes another API"),
        (written(resource="http://api.example:8003"), "describes another API"),
        (written(authorization_servers=["http://login.example"]), "issuer: expected https"),
        (written(authorization_servers=["https://a.example", "https://b.example"]), "or several"),
        (written(authorization_servers=[]), "or several"),
        (written(isochrone={"client_id": "cli", "audience": ""}), "audience: expected a name"),
        (written(isochrone={"client_id": "cli", "audience": "a", "algorithms": ["HS256"]}), "given 'HS256'"),
        (written(isochrone=None), "is no metadata of a control API"),
        (b"{", "is no metadata of a control API"),
        (b"<html>", "is no metadata of a control API"),
    ],
)
def test_metadata_that_is_refused(content: bytes, error: str) -> None:
    with pytest.raises(LoginFailed, match=error):
        read_metadata(content, API)
