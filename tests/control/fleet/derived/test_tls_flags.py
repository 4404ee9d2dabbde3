"""security.tls on the command lines of a fleet's processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isochrone.control.fleet.derived.processes import processes
from isochrone.control.fleet.settings.spec import Fleet

FILES = {"cert": "tls/tls.crt", "key": "tls/tls.key", "ca": "/etc/ca.crt"}
OWN = ("--tls-cert", "/f/tls/tls.crt", "--tls-key", "/f/tls/tls.key")
CALLS = ("--upstream-ca", "/etc/ca.crt", "--upstream-cert", "/f/tls/tls.crt", "--upstream-key", "/f/tls/tls.key")


def flags(tls: dict[str, Any], gateway: dict[str, Any] | None = None) -> dict[str, tuple[str, ...]]:
    """By role: the words about TLS."""
    fleet = Fleet.model_validate(
        {"name": "a", "gateways": {"gw": gateway or {}}, "pools": {"cpu": {}}, "security": {"tls": tls}}
    )
    found = {}
    for spec in processes(fleet, Path("/f")).values():
        words = spec.arguments
        first = next((at for at, word in enumerate(words) if word.startswith(("--tls", "--upstream"))), len(words))
        taken: list[str] = []
        for word in words[first:]:
            if word.startswith("--") and not word.startswith(("--tls", "--upstream")):
                break
            taken.append(word)
        found[spec.role] = tuple(taken)
    return found


def test_a_plain_fleet_has_none() -> None:
    assert set(flags({}).values()) == {()}


def test_each_process_serves_and_calls_with_the_fleets_certificate() -> None:
    assert flags(FILES) == {
        "controller": (*OWN, *CALLS),
        "gateway": (*OWN, *CALLS),
        "worker": (*OWN, "--tls-client-ca", "/etc/ca.crt"),
    }


def test_callers_and_names_and_the_mode() -> None:
    found = flags({**FILES, "client_ca": "callers.crt", "server_name": "fleet.internal", "mode": "permissive"})
    named = (*CALLS, "--upstream-server-name", "fleet.internal", "--tls-permissive")
    assert found["gateway"] == (*OWN, "--tls-client-ca", "/f/callers.crt", *named)
    assert found["controller"] == (*OWN, *named)
    assert found["worker"] == (*OWN, "--tls-client-ca", "/etc/ca.crt", "--tls-permissive")


def test_a_gateway_with_plain_callers_calls_over_tls() -> None:
    assert flags({**FILES, "client_ca": "callers.crt"}, {"tls": False})["gateway"] == CALLS
