"""A fleet under load changes from plain to TLS and back, by applies: no request fails."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from secure_fleet import Callers, SecureFleet
from up_process import Up
from watching import wait_for

pytestmark = pytest.mark.long


def test_a_plain_fleet_gets_tls_and_gives_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    fleet = SecureFleet(tmp_path)
    fleet.write("none")
    # Their callers speak plain HTTP all along, as behind a load balancer that ends TLS.
    of_gateways = ", tls: false"
    with fleet.run() as up, Callers([fleet.front, fleet.front + 1]) as callers:
        for tls, has_tls, is_permissive in (
            ("mode: permissive", True, True),
            ("", True, False),
            ("mode: permissive", True, True),
            ("none", False, False),
        ):
            fleet.write(tls, "" if tls == "none" else of_gateways)
            code, said = fleet.command("apply", str(fleet.file), "--yes")
            assert code == 0, said
            assert "requests fail until" not in said
            wait_for(lambda: runs_by(up, has_tls, is_permissive), 120)  # noqa: B023
            wait_for(lambda: serves(fleet, has_tls), 120)  # noqa: B023
            callers.wait(30)
            assert callers.failed == [], tls
    assert callers.failed == []


def test_a_step_is_left_out_only_by_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    fleet = SecureFleet(tmp_path, workers=1, gateways=1)
    fleet.write("none")
    with fleet.run():
        fleet.write()
        code, said = fleet.command("apply", str(fleet.file))
        assert code == 1
        assert "apply security.tls.mode: permissive first" in said


def runs_by(up: Up, has_tls: bool, is_permissive: bool) -> bool:
    """Whether every process has been replaced by one of the present file."""
    try:
        lines = [line for line in (child.cmdline() for child in up.children()) if "--store" in line]
    except psutil.NoSuchProcess:
        return False
    own = ["--upstream-cert" in line or "--tls-cert" in line for line in lines]
    loose = ["--tls-permissive" in line for line in lines]
    return len(lines) == 5 and own == [has_tls] * 5 and loose == [is_permissive] * 5


def serves(fleet: SecureFleet, has_tls: bool) -> bool:
    # By the address that `isochrone up` remembers.
    code, said = fleet.command("status", "--json")
    if code:
        return False
    status = json.loads(said)
    workers, gateways = status["workers"], status["gateways"]
    return (
        len(workers) == len(gateways) == 2
        and all(each["tls"] == has_tls and not each["fault"] and not each["draining"] for each in workers)
        and all(each["tls"] == has_tls and each["registered"] for each in gateways)
    )
