"""docs/hardening.md on a real fleet under load: step by step from open to secured, and no request fails."""

from __future__ import annotations

import json
import ssl
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.secure.signing.signer import Signer
from secure_fleet import MODEL, Callers, SecureFleet, request
from signed_models import sign_version
from signing_keys import make_key
from up_process import Up
from watching import wait_for

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

#: Callers of the gateways speak plain HTTP, as behind a load balancer that ends TLS.
OF_GATEWAYS = ", tls: false"
ALL = ("control", "gateway", "serve")


def test_an_open_fleet_is_secured_without_a_failed_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    robot, operator = new_token(), new_token()
    monkeypatch.setenv("ISOCHRONE_API_TOKEN", operator)
    (tmp_path / "access.yaml").write_text(
        f"tokens: {{robot: {{sha256: {digest_of(robot)}}}, operator: {{sha256: {digest_of(operator)}}}}}\n"
        "assign: [{to: ['token:robot'], roles: [caller]}, {to: ['token:operator'], roles: [admin]}]\n"
    )
    for name in ("fleet.key", "audit.key"):
        (tmp_path / name).write_text(new_token())
    release = make_key(tmp_path)
    fleet = SecureFleet(tmp_path)
    sign_version(Signer(release.private), fleet.directory / "models" / MODEL)
    logs = tmp_path / "audit"
    key, access = "key: fleet.key", "access: access.yaml"
    audit = f"audit: {{directory: {logs}, key: audit.key, requests: true}}"
    signatures = f"signatures: {{trust: [{release.public}]}}"
    fleet.write("none")
    tokens = {"authorization": f"Bearer {robot}"}
    with fleet.run() as up, Callers([fleet.front, fleet.front + 1], headers=tokens) as callers:
        for roles, tls, more in (
            (ALL, "none", [key, "key_required: false"]),
            (ALL, "none", [key]),
            (ALL, "mode: permissive", [key]),
            (ALL, "", [key]),
            (ALL, "", [key, access]),
            (("serve",), "", [key, access, signatures]),
            (ALL, "", [key, access, signatures, audit]),
        ):
            fleet.write(tls, "" if tls == "none" else OF_GATEWAYS, more=more)
            apply(fleet, up, roles)
            callers.wait(30)
            assert callers.failed == [], more[-1]
        assert request(fleet.front, None)[0] == 401
        assert request(fleet.front, None, headers={"authorization": "Bearer x"})[0] == 401
        for port in (fleet.first_worker, fleet.first_worker + 1, fleet.first_worker + 2):
            # A worker asks for a certificate first, then for a token.
            with pytest.raises((ssl.SSLError, ConnectionError)):
                request(port, fleet.ca.context(), headers=tokens)
            with pytest.raises(ConnectionError):
                request(port, None, headers=tokens)
        code, said = fleet.command("status", ISOCHRONE_API_TOKEN="")
        assert code == 1
        assert "needs a credential" in said
        code, said = fleet.command("status")
        assert code == 0, said
        assert "signed by" in said
        # A quota of every identity restarts nothing.
        text = fleet.file.read_text()
        fleet.file.write_text(
            text.replace("{version: 1}", "{version: 1, traffic: {quota: {rate: 100000, burst: 100000}}}")
        )
        apply(fleet, up, ())
        callers.wait(30)
    assert callers.failed == []
    code, said = fleet.command("audit", "verify", str(logs), "--key", str(tmp_path / "audit.key"))
    assert code == 0, said
    code, said = fleet.command("audit", "show", str(logs), "--action", "fleet.apply", "--json")
    assert "token:operator" in said, said


def apply(fleet: SecureFleet, up: Up, roles: Sequence[str]) -> None:
    """And wait until the processes of these roles have been replaced, and the fleet is whole again."""
    before = processes(up)
    code, said = fleet.command("apply", str(fleet.file), "--yes")
    assert code == 0, said
    assert "requests fail until" not in said

    def is_replaced() -> bool:
        now = processes(up)
        return len(now) == len(before) and all(
            now[name] != before[name] for name in now if name in before and role_of(name) in roles
        )

    wait_for(is_replaced, 180)
    wait_for(lambda: is_whole(fleet), 180)


def processes(up: Up) -> dict[str, int]:
    """Process ids by role and name."""
    found = {}
    for child in up.children():
        try:
            line = child.cmdline()
        except psutil.NoSuchProcess:
            continue
        if "--store" in line and "--name" in line:
            role = next(word for word in line if word in ALL)
            found[f"{role} {line[line.index('--name') + 1]}"] = child.pid
    return found


def role_of(name: str) -> str:
    return name.partition(" ")[0]


def is_whole(fleet: SecureFleet) -> bool:
    code, said = fleet.command("status", "--json")
    if code:
        return False
    status = json.loads(said)
    return (
        bool(status["leader"])
        and not status.get("faults")
        and len(status["workers"]) == len(status["gateways"]) == 2
        and not any(each["fault"] or each["draining"] for each in status["workers"])
        and all(each["registered"] for each in status["gateways"])
    )
