"""Changes need the controller's token where it has one; reading needs none; WebSockets of other sites are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_process import KEYS

from isochrone.control.api.application import create_app
from isochrone.control.api.callers.access_rights import AccessRights
from isochrone.control.api.callers.guarding import Guard
from isochrone.control.api.callers.rights import Rights, read_rights
from isochrone.control.api.routes import OPERATIONS
from isochrone.errors import FlagError
from isochrone.secure.access.keeper import AccessKeeper
from isochrone.secure.oidc.login.resource_metadata import PATH, read_metadata
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store

TOKEN = "correct-horse-battery"


def test_every_change_needs_the_token_and_reading_does_not(tmp_path: Path) -> None:
    async def play() -> None:
        store = open_store(f"sqlite:{tmp_path / 'fleet.db'}")
        mirror = Mirror(store, KEYS.prefix)
        await mirror.start()
        app = create_app(store, mirror, KEYS, rights=Rights(TOKEN))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8003") as client:
            for each in OPERATIONS:
                path = each.path.replace("{", "").replace("}", "")
                if not each.changes:
                    continue
                for headers in ({}, {"authorization": "Bearer wrong-token"}, {"authorization": f"Basic {TOKEN}"}):
                    answer = await client.request(each.method, path, headers=headers)
                    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied"), path
                allowed = await client.request(each.method, path, headers={"authorization": f"bearer {TOKEN}"})
                assert allowed.status_code != 403, path
            assert (await client.get("/v1/status")).status_code == 200
            asked = (await client.get("/v1/rights")).json()
            assert asked == {"needs_token": True, "may_change": False}
            known = (await client.get("/v1/rights", headers={"authorization": f"Bearer {TOKEN}"})).json()
            assert known == {"needs_token": True, "may_change": True}
        await mirror.stop()
        await store.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_what_changes_is_every_operation_that_is_no_get_but_the_simulators() -> None:
    harmless = {each.path for each in OPERATIONS if each.method != "GET" and not each.changes}
    assert harmless <= {"/v1/what-if"}
    assert not any(each.changes for each in OPERATIONS if each.method == "GET")


@pytest.mark.parametrize("content", [b"", b"short", b"two words here", b"\xff" * 20, b"x" * 5000])
def test_files_that_hold_no_token(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(FlagError, match="one word of 8 to 4096"):
        read_rights(str(tmp_path / "token"))


def test_the_token_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    rights = read_rights(str(tmp_path / "token"))
    assert rights.token == TOKEN
    assert TOKEN not in repr(rights)
    assert not read_rights("").needs_token
    with pytest.raises(FlagError, match="a file that can be read"):
        read_rights(str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("origin", "host", "is_open"),
    [
        ("http://127.0.0.1:8003", "127.0.0.1:8003", True),
        (None, "127.0.0.1:8003", True),
        ("http://evil.example", "127.0.0.1:8003", False),
        ("null", "127.0.0.1:8003", False),
        ("http://evil.example", "evil.example", False),
    ],
)
def test_websockets_of_other_sites_are_closed_before_they_open(origin: str | None, host: str, is_open: bool) -> None:
    reached: list[str] = []
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["type"])

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin else [])
    scope = {"type": "websocket", "headers": headers, "path": "/console/_nicegui_ws/socket.io/"}
    asyncio.run(Guard(inner)(scope, receive, send))
    assert reached == (["websocket"] if is_open else [])
    assert [message["type"] for message in sent] == ([] if is_open else ["websocket.close"])


def test_a_controller_names_the_provider_that_people_log_in_with(tmp_path: Path) -> None:
    plant = '{issuer: "https://login.example/a", audience: fleet, client_id: isochrone}'
    services = '{issuer: "https://login.example/b", audience: fleet}'
    for providers, status in ((f"plant: {plant}, services: {services}", 200), (f"services: {services}", 404)):
        (tmp_path / "access.yaml").write_text(f"providers: {{{providers}}}\n")

        async def play() -> tuple[int, bytes]:
            store = open_store(f"sqlite:{tmp_path / 'fleet.db'}")
            mirror = Mirror(store, KEYS.prefix)
            await mirror.start()
            app = create_app(store, mirror, KEYS, rights=AccessRights(AccessKeeper(tmp_path / "access.yaml")))
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8003") as client:
                found = await client.get(PATH)
            await mirror.stop()
            await store.close()
            return found.status_code, found.content

        code, content = asyncio.run(asyncio.wait_for(play(), 60))
        assert code == status
        if status == 200:
            provider = read_metadata(content, "http://127.0.0.1:8003")
            assert (provider.issuer, provider.client_id) == ("https://login.example/a", "isochrone")
