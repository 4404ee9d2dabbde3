"""Which control API gets a token, and what a login that cannot be renewed says."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from isochrone.secure.oidc.login.failures import LoginFailed
from isochrone.secure.oidc.login.kept_logins import KeptLogin, KeptLogins
from isochrone.secure.oidc.login.renewal import current_token, origin_of, read_secret


def kept(tmp_path: Path, expires_in: float, refresh_token: str = "") -> KeptLogins:
    logins = KeptLogins(tmp_path / "logins.json")
    # An issuer that answers nothing: port 1 of this machine.
    login = KeptLogin(
        "http://127.0.0.1:1", "cli", "fleet", "ada", "Ada", "token", time.time() + expires_in, refresh_token
    )
    with logins.locked():
        logins.put("https://api.example:8003", login)
    return logins


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://api.example:8003", "https://api.example:8003"),
        ("https://API.example:8003/path", "https://api.example:8003"),
        ("https://api.example", "https://api.example:443"),
        ("http://127.0.0.1:8003", "http://127.0.0.1:8003"),
        ("http://localhost", "http://localhost:80"),
        ("http://[::1]:8003", "http://[::1]:8003"),
        ("http://api.example:8003", ""),
        ("http://127.0.0.1.evil.example:8003", ""),
        ("ftp://127.0.0.1", ""),
        ("https://api.example:port", ""),
        ("https://[::1", ""),
        ("api", ""),
        ("", ""),
    ],
)
def test_a_token_goes_over_tls_or_stays_on_this_machine(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def test_a_token_goes_to_its_control_api_alone(tmp_path: Path) -> None:
    logins = kept(tmp_path, 600)
    assert current_token("https://api.example:8003", logins) == "token"
    for other in (
        "https://api.example",
        "https://api.example:8004",
        "http://api.example:8003",
        "https://evil.example:8003",
        "https://api.example:8003@evil.example",
        "https://api.example.evil.example:8003",
    ):
        assert current_token(other, logins) == ""


def test_a_login_that_has_expired(tmp_path: Path) -> None:
    with pytest.raises(LoginFailed, match="has expired; run 'isochrone login --api https://api"):
        current_token("https://api.example:8003", kept(tmp_path, -1))


def test_a_provider_that_is_away(tmp_path: Path) -> None:
    """While the token is valid, it is sent."""
    assert current_token("https://api.example:8003", kept(tmp_path, 20, "refresh")) == "token"
    with pytest.raises(LoginFailed, match="cannot be renewed now"):
        current_token("https://api.example:8003", kept(tmp_path, -1, "refresh"))


def test_secrets(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text("of a client\n")
    assert read_secret(path) == "of a client"
    for content in ("", "\n", "two\nlines", "é", "x" * 5000):
        path.write_text(content)
        with pytest.raises(LoginFailed, match="expected a client's secret, one line"):
            read_secret(path)
    path.chmod(0o604)
    with pytest.raises(LoginFailed, match="every user can read the secret; run chmod 600"):
        read_secret(path)
    with pytest.raises(LoginFailed, match="No such file"):
        read_secret(tmp_path / "missing")
