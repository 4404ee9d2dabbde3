"""Settings of a provider: errors name what to change, and no setting weakens a check unseen."""

from __future__ import annotations

from typing import Any

import pytest

from isochrone.errors import ConfigError
from isochrone.secure.oidc.addresses import is_allowed
from isochrone.secure.oidc.settings import SIGNATURES, Provider, provider_of, read_provider
from isochrone.settings.documents import parse_document

RIGHT = {"issuer": "https://login.example", "audience": "fleet"}


def test_a_provider_of_a_file() -> None:
    text = """
issuer: https://login.example/realms/robots
audience: fleet
client_id: cli
algorithms: [ES256]
leeway: 5
name_claim: preferred_username
login_parameters: {resource: "https://fleet.example"}
"""
    found = read_provider(parse_document(text, "security.yaml"))
    assert found == Provider(
        "https://login.example/realms/robots",
        "fleet",
        "cli",
        ("ES256",),
        5.0,
        "preferred_username",
        login_parameters={"resource": "https://fleet.example"},
    )


def test_defaults_have_no_shared_secret() -> None:
    found = provider_of(RIGHT, "security.yaml")
    assert set(found.algorithms) <= set(SIGNATURES)
    assert not any(name.startswith("HS") or name.lower() == "none" for name in SIGNATURES)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"issuer": None}, "issuer"),
        ({"issuer": "login.example"}, "issuer: expected https://HOST"),
        ({"issuer": "http://login.example"}, "issuer: expected https://HOST"),
        ({"issuer": ""}, "issuer: expected the URL of the provider, given nothing"),
        ({"audience": ""}, "audience: expected a name, given nothing"),
        ({"algorithms": ["HS256"]}, "algorithms: expected some of RS256, .*given 'HS256'"),
        ({"algorithms": ["none"]}, "given 'none'"),
        ({"algorithms": []}, "given none"),
        ({"algorithms": "RS256"}, "algorithms"),
        ({"leeway": 3600}, "leeway: expected .*from 0 to 300"),
        ({"leeway": -1}, "leeway"),
        ({"leeway": "30"}, "leeway"),
        ({"refresh_seconds": 0}, "refresh_seconds"),
        ({"max_age_seconds": 0}, "max_age_seconds"),
        ({"audiences": ["a"]}, "audiences"),
        ({"name_claim": ""}, "name_claim"),
        ({"allow_http": "yes"}, "allow_http"),
    ],
)
def test_settings_that_are_refused(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        provider_of({**RIGHT, **changes}, "security.yaml")


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="audience: expected a name, given nothing"):
        provider_of({"issuer": "https://login.example"}, "security.yaml")


@pytest.mark.parametrize(
    "url",
    [
        "https://login.example",
        "https://login.example:8443/realms/a",
        "http://127.0.0.1:8080",
        "http://127.9.9.9",
        "http://localhost:1/x",
        "http://[::1]:80",
    ],
)
def test_urls_that_are_used(url: str) -> None:
    assert is_allowed(url, allow_http=False)


@pytest.mark.parametrize(
    "url",
    [
        "http://login.example",
        "http://127.0.0.1.evil.example",
        "http://localhost.evil.example",
        "http://localhost@evil.example",
        "https://user:password@login.example",
        "https://login.example?x=1",
        "https://login.example#x",
        "https://",
        "https:///path",
        "ftp://login.example",
        "file:///etc/passwd",
        "//login.example",
        "https://login.example\\@evil.example",
        "https://login.example\\.evil.example",
        "https://login.example\n",
        "https://login .example",
        "https://lögin.example",
        "https://login.example:port",
        "https://[::1",
        "http://10.0.0.1",
        "http://[::ffff:10.0.0.1]",
        "",
    ],
)
def test_urls_that_are_not_used(url: str) -> None:
    assert not is_allowed(url, allow_http=False)


def test_plain_http_if_it_is_allowed() -> None:
    assert is_allowed("http://login.example", allow_http=True)
    assert provider_of({**RIGHT, "issuer": "http://login.example", "allow_http": True}, "security.yaml").allow_http
