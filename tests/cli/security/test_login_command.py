"""isochrone login and logout: errors that name the option, before anything is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from isochrone.cli.main import app
from isochrone.cli.security.login import merged
from isochrone.errors import FlagError
from isochrone.secure.oidc.login.kept_logins import KeptLogin, KeptLogins
from isochrone.secure.oidc.settings import Provider


@pytest.fixture(autouse=True)
def _own_logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--api", "http://api.example:8003"], "--api: expected https://HOST:PORT, or http:// on this machine"),
        (["--issuer", "https://a.example"], "--client-id: expected a name, because --issuer is given, given nothing"),
        (["--issuer", "https://a.example", "--client-id", "cli"], "--audience: expected a name"),
        (
            ["--issuer", "http://a.example", "--client-id", "cli", "--audience", "fleet"],
            "issuer: expected https://HOST",
        ),
        (["--parameter", "resource"], "--parameter: expected NAME=VALUE, given 'resource'"),
        (["--parameter", "=x"], "--parameter: expected NAME=VALUE, given '=x'"),
        (["--api", "http://127.0.0.1:1"], "no control API answers at http://127.0.0.1:1"),
    ],
)
def test_logins_that_are_refused(words: list[str], error: str) -> None:
    result = CliRunner().invoke(app, ["login", *(() if "--api" in words else ("--api", "https://api.example")), *words])
    assert result.exit_code == 1
    assert result.output.startswith("isochrone login: ")
    assert error in result.output


def test_no_login() -> None:
    result = CliRunner().invoke(app, ["login", "status"])
    assert (result.exit_code, result.output) == (1, f"no login is kept in {KeptLogins().path}\n")
    assert CliRunner().invoke(app, ["logout"]).output == "no login to end\n"


def test_logins_are_listed_and_ended_without_their_provider() -> None:
    kept = KeptLogins()
    with kept.locked():
        for port in (1, 2):
            issuer = "http://127.0.0.1:1"
            login = KeptLogin(issuer, "cli", "fleet", "ada", "Ada", "the-token", 1.0, "the-refresh-token")
            kept.put(f"http://127.0.0.1:{port}", login)
    listed = CliRunner().invoke(app, ["login", "status"]).output
    assert "http://127.0.0.1:2  Ada of http://127.0.0.1:1, expired, renewed when needed\n" in listed
    ended = CliRunner().invoke(app, ["logout", "--api", "http://127.0.0.1:2"]).output
    assert ended.startswith("logged out at http://127.0.0.1:2; the provider has not revoked the refresh token: ")
    assert list(kept.read()) == ["http://127.0.0.1:1"]
    assert "logged out at http://127.0.0.1:1" in CliRunner().invoke(app, ["logout", "--all"]).output
    assert kept.read() == {}
    assert "the-" not in listed + ended


@pytest.mark.parametrize("given", [{"issuer": "https://a.example"}, {}])
def test_a_client_is_named_by_the_control_api_or_by_the_user(given: dict[str, str]) -> None:
    """A provider that is used for services alone names no client."""
    stated = Provider("https://login.example", "fleet") if not given else None
    with pytest.raises(FlagError, match="--client-id: expected"):
        merged(stated, given)
    changes = {**given, "client_id": "robot", "audience": "own"}
    found = merged(stated, changes)
    assert (found.client_id, found.audience) == ("robot", "own")
    assert found.issuer == given.get("issuer", "https://login.example")
