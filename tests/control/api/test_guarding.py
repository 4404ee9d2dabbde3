"""Who reaches the API: callers that name it as it is known, no pages of other sites; what callers elsewhere may do."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from api_process import FLEET, KEYS, Api, with_api
from starlette.types import Message, Receive, Scope, Send

from isochrone.control.api.callers.guarding import Guard, is_known_host
from isochrone.control.state.codec import encode
from isochrone.control.state.records import FleetRecord
from isochrone.secure.loopback import is_loopback
from isochrone.store.base import Put


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8003", "10.0.0.1", "[::1]:8003", "localhost:8003", "x.localhost", "Plant.Example:1", "plant.example."],
)
def test_known_hosts(host: str) -> None:
    assert is_known_host(host, {"plant.example"})


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8003", "", ":8003", "127.0.0.1.evil.example", "[::1", "a@evil.example", "x y"],
)
def test_hosts_that_are_somebody_else(host: str) -> None:
    assert not is_known_host(host, {"plant.example"})


def test_what_is_on_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "plant.example", "")))


FOREIGN = {"Origin": "http://evil.example", "Content-Type": "text/plain"}


def test_foreign_hosts_and_pages_are_refused(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        body = {"text": FLEET, "directory": str(api.directory)}
        for headers in (
            {"Host": "evil.example:8003"},
            {"Host": "evil.example:8003", "Origin": "http://evil.example:8003"},
            FOREIGN,
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:9999"},
        ):
            for method, path in (("GET", "/v1/status"), ("PUT", "/v1/fleet"), ("GET", "/no/such/path")):
                response = await api.client.request(method, path, json=body, headers=headers)
                assert (response.status_code, response.json()["code"]) == (403, "permission_denied"), (headers, path)
        assert (await api.store.get(KEYS.fleet)) is None
        for headers in (
            {"Host": "plant.example"},
            {"Host": "localhost:8003", "Origin": "http://localhost:8003"},
            {"Origin": "https://console.example"},
        ):
            assert (await api.client.get("/v1/status", headers=headers)).status_code == 200

    with_api(tmp_path, scenario)


OWN = ("console.plant.example", "https://console.plant.example")


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("host", "origin", "is_let_in"),
    [
        (*OWN, True),
        ("Console.Plant.Example:8003", "http://console.plant.example:8003", True),
        ("console.plant.example:443", OWN[1], True),
        ("console.plant.example", "http://console.plant.example:8003", False),
        ("console.plant.example", "https://evil.example", False),
        ("console.plant.example", "null", False),
        ("console.plant.example", "ftp://console.plant.example", False),
        ("console.plant.example", "http://console.plant.example:x", False),
        ("evil.example", "https://evil.example", False),
        ("10.0.0.1", OWN[1], False),
    ],
)
def test_the_controllers_own_pages_are_let_in_under_its_name(
    kind: str, host: str, origin: str, is_let_in: bool
) -> None:
    reached, sent = [], []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope["type"])

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        sent.append(message["type"])

    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    guard = Guard(app, ("Console.Plant.Example",))
    asyncio.run(guard({"type": kind, "method": "GET", "path": "/", "headers": headers}, receive, send))
    assert reached == ([kind] if is_let_in else [])
    assert sent[:1] == ([] if is_let_in else ["websocket.close" if kind == "websocket" else "http.response.start"])


def test_a_caller_elsewhere_names_no_new_place(tmp_path: Path) -> None:
    secret = tmp_path / "secret" / "plans"
    secret.mkdir(parents=True)

    async def scenario(api: Api) -> None:
        refused = await api.apply(status=403)
        assert "controller's machine" in refused["error"]
        local = {"text": FLEET, "directory": str(api.directory)}
        # Applied on the controller's machine.
        await _apply_locally(api, local)
        # The same places: other versions, counts and rules are free.
        await api.apply(FLEET.replace("workers: 1", "workers: 2"))
        for change in (
            FLEET.replace("repository: models", f"repository: {secret.parent}"),
            FLEET.replace("repository: models", "repository: /etc"),
            FLEET.replace("pools:", "pools:\n  far: {addresses: ['10.9.8.7:80'], kind: triton}"),
            FLEET.replace("workers: 1,", "workers: 1, repository: secret,"),
            FLEET.replace("workers: 1,", "workers: 1, arguments: [--allow-file-overrides],"),
            FLEET.replace("tracker: {version: 1}", f"tracker: {{version: 1, source: {secret.parent}/tracker}}"),
        ):
            for dry_run in ("0", "1"):
                path = f"/v1/fleet?dry_run={dry_run}"
                answer = await api.ask("PUT", path, {"text": change, "directory": str(api.directory)}, 403)
                assert "plans" not in answer["error"]
        other = await api.ask("PUT", "/v1/fleet", {"text": FLEET, "directory": "/etc"}, 403)
        assert "/etc/models" in other["error"]

    with_api(tmp_path, scenario, caller="10.0.0.9")


async def _apply_locally(api: Api, body: dict[str, str]) -> None:
    from isochrone.control.fleet.reading.parsing import parse_fleet

    spec = parse_fleet(body["text"], "fleet.yaml", api.directory).model_dump(mode="json")
    record = FleetRecord(1, body["text"], spec, body["directory"])
    outcome = await api.store.transact([], [Put(KEYS.fleet, encode(record))])
    await api.mirror.catch_up(outcome.revision)


def test_the_stores_password_is_not_kept(tmp_path: Path) -> None:
    async def scenario(api: Api) -> None:
        text = FLEET + 'store: {url: "etcd:http://root:s3cr%3Dt@h1:2379,http://h2:2379"}\n'
        planned = await api.ask("PUT", "/v1/fleet?dry_run=1", {"text": text, "directory": str(api.directory)})
        await api.apply(text)
        kept = await api.store.get(KEYS.fleet)
        assert kept is not None
        reported = [
            str(planned),
            kept.value.decode(),
            str(await api.get("/v1/fleet")),
            str(await api.get("/v1/events")),
        ]
        assert not any("s3cr" in each for each in reported)
        assert "http://root@h1:2379,http://h2:2379" in reported[1]
        # Another password is the same store; another store is refused without showing either's.
        await api.apply(text.replace("s3cr%3Dt", "n3w"))
        refused = await api.apply(text.replace("h1", "h9"), status=409)
        assert "s3cr" not in refused["error"]
        assert "h9" in refused["error"]
        wrong = await api.apply(text.replace("etcd:http", "ectd:http"), status=400)
        assert "s3cr" not in wrong["error"]

    with_api(tmp_path, scenario)
