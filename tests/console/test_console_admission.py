"""Pages cost a controller memory and time: how many of them it builds, and what hung repositories take from it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount
from starlette.types import Message

from isochrone.console import mounting
from isochrone.console.admission import BURST, MOST_PAGES, RATE, Kind, PageLimit, kind_of
from isochrone.console.pages.far_calls import FarCalls
from isochrone.errors import Unavailable


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", Kind.PAGE),
        ("/what-if", Kind.PAGE),
        ("/latency/", Kind.PAGE),
        ("/_nicegui/3.18.0/static/nicegui.js", Kind.FILE),
        ("/favicon.ico", Kind.FILE),
        ("/_nicegui_ws/socket.io/", Kind.SOCKET),
        ("/nothing", Kind.UNKNOWN),
        ("/latency/x", Kind.UNKNOWN),
        ("/_nicegui", Kind.UNKNOWN),
    ],
)
def test_what_is_asked_for(path: str, kind: Kind) -> None:
    assert kind_of(path) is kind


@given(st.lists(st.floats(0, 5), max_size=300))
def test_never_more_pages_than_the_rate_and_the_burst(pauses: list[float]) -> None:
    limit, now, admitted = PageLimit(), 1000.0, 0
    for pause in pauses:
        now += pause
        admitted += limit.admits(now, 0)
    assert admitted <= BURST + (now - 1000.0) * RATE + 1e-6
    assert admitted >= min(len(pauses), BURST)
    assert not limit.admits(now + 1000, MOST_PAGES)
    assert limit.admits(now + 1000, MOST_PAGES - 1)


def test_unknown_paths_and_too_many_pages_never_reach_nicegui() -> None:
    async def scenario() -> None:
        pages = mounting._Pages(SimpleNamespace())  # type: ignore[arg-type]
        asked: list[str] = []

        async def nicegui(scope: object, receive: object, send: object) -> None:
            asked.append(scope["path"])  # type: ignore[index]
            await PlainTextResponse("page")(scope, receive, send)  # type: ignore[arg-type]

        transport = httpx.ASGITransport(app=Starlette(routes=[Mount("/console", pages)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            for path in ("/console/nothing", "/console/latency/x", "/console/_niceguy/x"):
                assert (await client.get(path)).status_code == 404
            assert pages._app is None, "NiceGUI is not imported for them"
            pages._app = nicegui
            answers = [(await client.get("/console/latency")).status_code for _ in range(BURST + 20)]
            assert answers[:BURST] == [200] * BURST
            assert answers[-1] == 503
            # Files of the pages that are open are served.
            assert (await client.get("/console/_nicegui/3/x.js")).status_code == 200
            asked.clear()
            refused = await client.get("/console/_nicegui_ws/socket.io/?EIO=4&transport=polling")
            assert (refused.status_code, refused.headers["retry-after"], asked) == (503, "5", [])

    asyncio.run(scenario())


def test_sockets_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounting, "MOST_PAGES", 1)

    async def scenario() -> None:
        pages = mounting._Pages(SimpleNamespace())  # type: ignore[arg-type]
        ends, opened = asyncio.Event(), list[int]()

        async def nicegui(scope: object, receive: object, send: object) -> None:
            opened.append(1)
            await ends.wait()

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        sent: list[str] = []

        async def send(message: Message) -> None:
            sent.append(message["type"])

        pages._app = nicegui
        scope = {"type": "websocket", "path": "/console/_nicegui_ws/socket.io/", "root_path": "/console"}
        first = asyncio.create_task(pages(dict(scope), receive, send))
        await asyncio.sleep(0)
        await pages(dict(scope), receive, send)
        assert (len(opened), sent) == (1, ["websocket.close"])
        ends.set()
        await first
        await pages(dict(scope), receive, send)
        assert len(opened) == 2

    asyncio.run(scenario())


def test_hung_calls_take_two_threads_and_no_more() -> None:
    async def scenario() -> None:
        hangs, calls = threading.Event(), FarCalls()
        try:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await calls.call(hangs.wait)
            with pytest.raises(Unavailable, match="have not ended"):
                await calls.call(int, "5")
            # Other threads are free.
            assert await asyncio.to_thread(int, "5") == 5
        finally:
            hangs.set()
        while calls._running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await calls.call(int, "5") == 5
        with pytest.raises(ValueError, match="invalid literal"):
            await calls.call(int, "x")
        assert calls._running == 0

    asyncio.run(asyncio.wait_for(scenario(), 30))


#: NiceGUI has one application in a process.
_PAGES = """
import asyncio
from types import SimpleNamespace as N
import httpx
from nicegui import Client, ui
from starlette.applications import Starlette
from starlette.routing import Mount
from isochrone.console.pages import catalog, frame, rollouts
from isochrone.console.pages.frame import _asked

fleets, slow = [N(spec={}, directory="/old")], asyncio.Event()

async def versions(calls, record, model):
    if model == "a":
        await slow.wait()
    return [model + "-2", record.directory], "slow" if model == "a" else ""

rollouts._versions = versions
service = N(view=lambda: N(fleet=fleets[-1], assignments={"a": N(version="1"), "b": N(version="1")}))

async def main():
    async with catalog.running_pages(service) as pages:
        transport = httpx.ASGITransport(app=Starlette(routes=[Mount("/console", pages)]))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            assert (await client.get("/console/rollouts")).status_code == 200
            assert catalog.kept_pages() == 1
            assert (await client.get("/console/_nicegui/x")).status_code == 404
            assert catalog.kept_pages() == 1, "a page for a wrong path"
        page = next(iter(Client.instances.values()))
        with page:
            before = len(page.elements)
            for number in range(20):
                _asked(N(args={"kind": "abort", "about": f"r{number}"}))
            one = len(page.elements) - before
            dialogs = [each for each in page.elements.values() if isinstance(each, ui.dialog)]
            assert len(dialogs) == 3, "those of rights and keys, and one question"
            assert one < 20, one
        model, version = [each for each in page.elements.values() if isinstance(each, ui.select)][:2]
        fleets.append(N(spec={}, directory="/new"))
        model.set_value("a")
        await asyncio.sleep(0.05)
        model.set_value("b")
        await asyncio.sleep(0.05)
        assert version.options == ["b-2", "/new"], version.options
        slow.set()
        await asyncio.sleep(0.05)
        assert (version.options, version.value) == (["b-2", "/new"], "b-2"), version.options
        page.delete()
        await asyncio.sleep(0.05)
        assert not frame._questions, "questions of a page that has gone"

asyncio.run(main())
"""


def test_a_page_has_one_question_and_the_versions_of_the_chosen_model(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    done = subprocess.run([sys.executable, "-c", _PAGES], cwd=tmp_path, check=False, timeout=60, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
