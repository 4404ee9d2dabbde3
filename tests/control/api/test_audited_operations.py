"""Operations of the control API in the audit log: recorded before they take effect, refused where they cannot be."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from api_process import FLEET, KEYS

from isochrone.control.api.application import create_app
from isochrone.control.api.callers.access_rights import AccessRights
from isochrone.control.api.callers.rights import Rights
from isochrone.control.api.routes import OPERATIONS
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.access.tokens import digest_of, new_token
from isochrone.secure.audit.actor import anonymous
from isochrone.secure.audit.audit import Audit
from isochrone.secure.audit.reading import merged
from isochrone.secure.audit.records import Record
from isochrone.secure.audit.settings import AuditSettings
from isochrone.secure.audit.verification import verify
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store

TOKEN = "correct-horse-battery"
Client = httpx.AsyncClient


def recorded(log: Path) -> list[Record]:
    return [record for _, record in merged([log]) if not record.action.startswith("audit.")]


def play(
    directory: Path,
    scenario: Callable[[Client], Awaitable[None]],
    token: str = "",
    redact: tuple[Any, ...] = (),
    access: Path | None = None,
) -> Path:
    """Run a scenario against an API with an audit log; the log's directory. ``access``: an access file."""
    settings = AuditSettings(directory / "audit", "c1", redact=redact)

    async def run() -> None:
        audit = Audit(settings)
        audit.start()
        store = open_store(f"sqlite:{directory / 'fleet.db'}")
        mirror = Mirror(store, KEYS.prefix)
        await mirror.start()
        rights = Rights(token) if access is None else AccessRights(AccessKeeper(access))
        app = create_app(store, mirror, KEYS, rights=rights, audit=audit)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("10.9.8.7", 4321))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8003") as client:
                await scenario(client)
        finally:
            await mirror.stop()
            await store.close()
            await asyncio.to_thread(audit.stop)

    asyncio.run(asyncio.wait_for(run(), 60))
    return settings.log_directory


def test_every_operation_that_changes_has_a_name_and_others_have_none() -> None:
    named = {each.action for each in OPERATIONS if each.changes}
    assert "" not in named
    assert len(named) == sum(each.changes for each in OPERATIONS)
    assert not any(each.action for each in OPERATIONS if not each.changes)


def test_every_change_is_recorded_before_and_after(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        for each in OPERATIONS:
            if each.changes:
                path = each.path.replace("{", "").replace("}", "")
                await client.request(each.method, path, headers={"x-isochrone-user": "ada"})

    log = play(tmp_path, scenario)
    found = recorded(log)
    actions = [each.action for each in OPERATIONS if each.changes]
    assert [record.action for record in found] == [action for action in actions for _ in range(2)]
    for attempt, outcome in zip(found[::2], found[1::2], strict=True):
        assert attempt.outcome == "attempt"
        assert attempt.actor == {"name": "anonymous", "kind": "anonymous", "address": "10.9.8.7"}
        assert attempt.details["user"] == "ada"
        assert outcome.details["attempt"] == attempt.sequence
        assert outcome.outcome in ("done", "failed", "refused")
    assert verify(log).is_intact


def test_what_is_recorded_of_an_operation(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        rollout = {"changes": {"detector": "2"}, "by": "ada"}
        assert (await client.post("/v1/rollouts", json=rollout)).status_code >= 400
        body = {"text": FLEET + "# secret-password", "directory": "/nowhere", "file": "fleet.yaml"}
        assert (await client.put("/v1/fleet", params={"dry_run": "1"}, json=body)).status_code >= 400
        assert (await client.post("/v1/pools/cpu/scale", content=b"{not json")).status_code == 400
        assert (await client.post("/v1/rollouts/r7/abort", json={"reason": "x" * 3000})).status_code >= 400

    log = play(tmp_path, scenario)
    started, _, applied, _, scaled, ended, aborted, _ = recorded(log)
    assert started.details["changes"] == {"detector": "2"}
    # A stated author, by the name that redaction knows.
    assert started.details["user"] == "ada"
    assert len(applied.details["text_sha256"]) == 64
    assert applied.details["query"] == "dry_run=1"
    assert "secret-password" not in str(recorded(log))
    assert (scaled.object, ended.outcome, ended.details["error"]) == ("cpu", "failed", "malformed")
    assert len(scaled.details["body_sha256"]) == 64
    assert (aborted.object, len(aborted.details["reason_sha256"])) == ("r7", 64)


def test_who_has_no_right_is_refused_and_recorded(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        assert (await client.post("/v1/drains/cpu-1")).status_code == 403
        wrong = {"authorization": "Bearer wrong-token-here"}
        assert (await client.post("/v1/drains/cpu-1", headers=wrong)).status_code == 403
        assert (await client.post("/v1/drains/cpu-1", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 404

    log = play(tmp_path, scenario, TOKEN)
    found = {(each.actor["kind"], each.action, each.outcome) for each in recorded(log)}
    assert found == {
        ("anonymous", "process.drain", "refused"),
        ("token", "process.drain", "attempt"),
        ("token", "process.drain", "failed"),
    }
    assert sum(each.outcome == "refused" for each in recorded(log)) == 2
    assert TOKEN not in "".join(path.read_text() for path in log.glob("*.jsonl"))
    assert verify(log).is_intact


def test_who_may_not_read_is_refused_and_counted(tmp_path: Path) -> None:
    tokens = {name: new_token() for name in ("reader", "nothing")}
    lines = (f"  {name}: {{sha256: {digest_of(token)}}}" for name, token in tokens.items())
    assign = "assign: [{to: ['token:reader'], roles: [reader]}]"
    (tmp_path / "access.yaml").write_text("\n".join(("tokens:", *lines, assign, "")))

    def bearer(token: str) -> dict[str, str]:
        return {"authorization": f"Bearer {token}"}

    async def scenario(client: Client) -> None:
        for _ in range(300):
            assert (await client.get("/v1/status")).status_code == 401
        assert (await client.get("/v1/status", headers=bearer("iso_wrong"))).status_code == 401
        assert (await client.get("/v1/events", headers=bearer(tokens["nothing"]))).status_code == 403
        assert (await client.get("/v1/status", headers=bearer(tokens["reader"]))).status_code == 200
        # It refuses nobody, and says whether a token is right.
        for credential in ({}, bearer("iso_wrong"), bearer(tokens["nothing"])):
            assert (await client.get("/v1/rights", headers=credential)).json()["may_change"] is False
        assert (await client.post("/v1/drains/cpu-1", headers=bearer(tokens["reader"]))).status_code == 403
        # Neither is about a right.
        assert (await client.get("/v1/nothing")).status_code == 404
        assert (await client.get("/v1/status", headers={"host": "evil.example"})).status_code == 403

    log = play(tmp_path, scenario, access=tmp_path / "access.yaml")
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for each in recorded(log):
        assert each.outcome == "refused"
        assert each.actor["address"] == "10.9.8.7"
        key = each.action, each.object, each.actor["name"], each.details["error"]
        counts[key] += each.details.get("times", 1)
    assert counts == {
        ("access.refuse", "fleet-read", "anonymous", "unauthenticated"): 301,
        ("access.refuse", "fleet-read", "token:nothing", "permission_denied"): 1,
        ("access.refuse", "fleet-change", "anonymous", "unauthenticated"): 1,
        # A change keeps a record of its own.
        ("process.drain", "cpu-1", "token:reader", "permission_denied"): 1,
    }
    assert len(recorded(log)) <= 5
    text = "".join(path.read_text() for path in log.glob("*.jsonl"))
    assert not any(token in text for token in (*tokens.values(), "iso_wrong"))
    assert verify(log).is_intact


def test_many_refused_changes_of_strangers_are_counted(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        for _ in range(250):
            assert (await client.post("/v1/drains/cpu-1")).status_code == 403

    log = play(tmp_path, scenario, TOKEN)
    found = recorded(log)
    own = [each for each in found if each.action == "process.drain"]
    counted = [each for each in found if each.action == "access.refuse"]
    # Periods of a minute may end between two of them.
    assert 100 <= len(own) < 250
    assert {each.details["change"] for each in counted} == {"process.drain"}
    assert len(own) + sum(each.details["times"] for each in counted) == 250
    assert verify(log).is_intact


def test_an_operation_that_cannot_be_recorded_does_not_happen(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        body = {"text": FLEET, "directory": str(tmp_path), "file": "fleet.yaml"}
        segment = tmp_path / "audit" / "c1" / "segment-00000001.jsonl"
        segment.rename(tmp_path / "aside")
        answer = await client.put("/v1/fleet", json=body)
        assert (answer.status_code, answer.json()["code"]) == (503, "audit_unavailable")
        assert "audit log cannot be written" in answer.json()["error"]
        # Reading needs no record.
        assert (await client.get("/v1/status")).json()["generation"] == 0
        assert (await client.get("/v1/fleet")).status_code == 404
        (tmp_path / "aside").rename(segment)
        assert (await client.post("/v1/drains/cpu-1")).status_code == 404

    assert [each.action for each in recorded(play(tmp_path, scenario))] == ["process.drain"] * 2


def test_stated_users_and_reasons_are_redacted_by_rule(tmp_path: Path) -> None:
    async def scenario(client: Client) -> None:
        user = {"x-isochrone-user": "ada lovelace"}
        await client.post("/v1/rollouts/r7/abort", json={"reason": "ada was ill"}, headers=user)
        await client.post("/v1/rollouts", json={"changes": {"m": "2"}, "by": "ada lovelace"})

    log = play(tmp_path, scenario, redact=(("user", "truncate"), ("reason", "drop"), ("address", "truncate")))
    aborted, _, started, _ = recorded(log)
    assert (aborted.details["user"], aborted.details.get("reason")) == ("ada…", None)
    assert started.details["user"] == "ada…"
    assert {each.actor["address"] for each in recorded(log)} == {"10.9.8.0"}
    assert not any("lovelace" in path.read_text() for path in log.glob("*.jsonl"))


def test_an_outcome_that_cannot_be_written_comes_later(tmp_path: Path) -> None:
    """The change has happened; its outcome must not be lost, nor fail the caller."""
    settings = AuditSettings(tmp_path / "audit", "c1")

    async def run() -> None:
        audit = Audit(settings)
        audit.start()
        attempt = await audit.begin(anonymous(), "pool.scale", "cpu", {})
        settings.log_directory.rename(tmp_path / "aside")
        await attempt.ended()
        (tmp_path / "aside").rename(settings.log_directory)
        await asyncio.to_thread(audit.stop)

    asyncio.run(asyncio.wait_for(run(), 60))
    assert [each.outcome for each in recorded(settings.log_directory)] == ["attempt", "done"]
    assert verify(settings.log_directory).is_intact
