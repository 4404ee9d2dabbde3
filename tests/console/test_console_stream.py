"""The live stream: the same bytes for all, computed once a second; a reader that takes nothing holds up nobody."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import httpx
import msgspec
import pytest

from bench.synthetic_fleet import SyntheticFleet
from isochrone.console.live import aggregation as aggregations
from isochrone.console.live.aggregation import Aggregation
from isochrone.console.mounting import Console, running
from isochrone.control.api import serving
from isochrone.control.api.application import create_app
from isochrone.control.api.service import ControlService
from isochrone.control.api.serving import serve_api
from isochrone.control.figures.frames import Frame, ModelFigures
from isochrone.control.figures.history import History
from isochrone.control.state.codec import encode
from isochrone.control.state.process_records import GatewayRecord
from isochrone.errors import NotFound, Unavailable
from isochrone.store.base import Put, Store
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store


def with_fleet(
    directory: Path, scenario: Callable[[SyntheticFleet, Store, Mirror, History], Awaitable[None]], workers: int = 10
) -> None:
    async def play() -> None:
        fleet, history = SyntheticFleet(workers), History()
        history.add(fleet.frame(1000))
        store = open_store(f"sqlite:{directory / 'fleet.db'}")
        await fleet.write(store)
        mirror = Mirror(store, fleet.keys.prefix)
        await mirror.start()
        try:
            await scenario(fleet, store, mirror, history)
        finally:
            await mirror.stop()
            await store.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_views_are_computed_once_and_the_fleet_only_when_the_store_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregations, "PERIOD", 0.02)

    async def scenario(fleet: SyntheticFleet, store: Store, mirror: Mirror, history: History) -> None:
        aggregation = Aggregation(ControlService(store, mirror, fleet.keys, history=history))
        task = asyncio.create_task(aggregation.run())
        await asyncio.sleep(0.1)
        assert aggregation.number == 0, "nobody looks"
        with aggregation.reading(), aggregation.reading():
            await asyncio.gather(aggregation.published(), aggregation.published())
            first = aggregation.number
            await aggregation.published()
            assert aggregation.number == first + 1
            assert aggregation.fleet_number == 1
            kind, data = aggregation.fleet.split(b"\n")[:2]
            assert kind == b"event: fleet"
            assert msgspec.json.decode(data.removeprefix(b"data: "))["epoch"] == 7
            late = GatewayRecord("gw-1", "h", 1, incarnation="a", epoch=6)
            outcome = await store.transact([], [Put(fleet.keys.gateway("gw-1"), encode(late))])
            await mirror.catch_up(outcome.revision)
            await aggregation.published()
            await aggregation.published()
            assert aggregation.fleet_number == 2
            assert b'"is_behind":true' in aggregation.fleet
        await asyncio.sleep(0.1)
        seen = aggregation.number
        await asyncio.sleep(0.1)
        assert aggregation.number == seen, "nobody looks any more"
        task.cancel()

    with_fleet(tmp_path, scenario)


def test_histories_are_encoded_once_a_second_and_few_are_kept(tmp_path: Path) -> None:
    async def scenario(fleet: SyntheticFleet, store: Store, mirror: Mirror, history: History) -> None:
        aggregation = Aggregation(ControlService(store, mirror, fleet.keys, history=history))
        first = await aggregation.model_history("detector", 300)
        assert await aggregation.model_history("detector", 300) is first
        history.add(fleet.frame(1001))
        assert await aggregation.model_history("detector", 300) is not first
        kept = dict(aggregation._histories)
        for name in ("attack", "detector" * 100, "detector "):
            with pytest.raises(NotFound):
                await aggregation.model_history(name, 300)
        assert aggregation._histories == kept
        # Names that begin alike for long have histories of their own.
        names = [f"{'m' * 300}-{number}" for number in range(100)]
        history.add(Frame(1002, {(name, "1"): ModelFigures(name, "1", answered=1) for name in names}))
        bodies = [await aggregation.model_history(name, 300) for name in names]
        assert [msgspec.json.decode(body)["model"] for body in bodies] == names
        assert len(aggregation._histories) <= 64

    with_fleet(tmp_path, scenario)


def test_a_history_is_computed_beside_the_loop_and_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, computed, at_once = threading.Event(), list[str](), list[int]()
    monkeypatch.setattr(aggregations, "_MOST_WAITING", 3)

    def slow(frames: Sequence[Frame], model: str, seconds: int) -> bytes:
        computed.append(model)
        at_once.append(len(computed) - finished[0])
        assert go_on.wait(30)
        finished[0] += 1
        return model.encode()

    finished = [0]
    monkeypatch.setattr(aggregations, "_encoded", slow)

    async def scenario(fleet: SyntheticFleet, store: Store, mirror: Mirror, history: History) -> None:
        aggregation = Aggregation(ControlService(store, mirror, fleet.keys, history=history))
        asked = [
            asyncio.create_task(aggregation.model_history(name, 300)) for name in ("detector", "tracker", "tracker")
        ]
        try:
            while not computed:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # The loop goes on, and one more is too many.
            with pytest.raises(Unavailable):
                await aggregation.model_history("", 300)
        finally:
            go_on.set()
        assert await asyncio.gather(*asked) == [b"detector", b"tracker", b"tracker"]
        assert (computed, at_once) == (["detector", "tracker"], [1, 1])

    with_fleet(tmp_path, scenario)


async def served(
    app_of: Console, fleet: SyntheticFleet, store: Store, mirror: Mirror, history: History
) -> tuple[asyncio.Task[None], int]:
    app = create_app(store, mirror, fleet.keys, history=history, further_routes=app_of.routes)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_api(app, "127.0.0.1", 0, listening.set_result))
    return task, await listening


def test_readers_get_the_same_bytes_and_one_that_sleeps_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregations, "PERIOD", 0.01)

    async def scenario(fleet: SyntheticFleet, store: Store, mirror: Mirror, history: History) -> None:
        console = Console()
        task, port = await served(console, fleet, store, mirror, history)
        async with running(console):
            # It asks, and never reads: its buffers fill, and its stream waits.
            sleeper = socket.create_connection(("127.0.0.1", port))
            sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sleeper.sendall(b"GET /console/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            timeouts = sleeper.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert timeouts == 0, "only the server's side has a limit"
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                seen = [await lines(client, 20) for _ in range(2)]
                for events in seen:
                    assert events[0] == "fleet"
                    assert events.count("second") >= 15
                sent = await sent_while(client, 200)
                assert sent == 200
            sleeper.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with_fleet(tmp_path, scenario, workers=100)


def test_the_kernel_drops_a_reader_that_takes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregations, "PERIOD", 0.002)
    monkeypatch.setattr(serving, "_UNREAD_MILLISECONDS", 300)

    async def scenario(fleet: SyntheticFleet, store: Store, mirror: Mirror, history: History) -> None:
        console = Console()
        task, port = await served(console, fleet, store, mirror, history)
        aggregation = console._aggregation
        assert aggregation is not None
        async with running(console):
            with socket.socket() as sleeper:
                # Before it connects: the window that it announces is small from the start.
                sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sleeper.connect(("127.0.0.1", port))
                sleeper.sendall(b"GET /console/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                while not aggregation._readers:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                # Ends by the limit of the scenario if the connection is kept.
                while aggregation._readers:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with_fleet(tmp_path, scenario, workers=100)


async def lines(client: httpx.AsyncClient, count: int) -> list[str]:
    found: list[str] = []
    async with client.stream("GET", "/console/live") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                found.append(line[7:])
            if len(found) == count:
                break
    return found


async def sent_while(client: httpx.AsyncClient, count: int) -> int:
    return len(await lines(client, count))


def test_too_many_readers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregations, "MOST_READERS", 1)

    async def scenario(fleet: SyntheticFleet, store: Store, mirror: Mirror, history: History) -> None:
        console = Console()
        task, port = await served(console, fleet, store, mirror, history)
        async with running(console), httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            async with client.stream("GET", "/console/live") as response:
                assert response.status_code == 200
                refused = await client.get("/console/live")
                assert refused.status_code == 503
                assert "use another controller" in refused.json()["error"]
            wrong = await client.get("/console/history", params={"seconds": "7"})
            assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_argument")
            assert (await client.get("/console/assets/console.js")).status_code == 200
            assert (await client.get("/console/assets/%2e%2e/mounting.py")).status_code == 404
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with_fleet(tmp_path, scenario)


def test_a_controller_imports_nicegui_for_nobody() -> None:
    code = "import sys, isochrone.cli.processes.control; sys.exit('nicegui' in sys.modules or 'fastapi' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
