"""Collecting the gateways' figures: one that hangs, is away or answers nonsense delays nobody and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest

from fleet_records import KEYS, Records
from isochrone.control.figures import collecting
from isochrone.control.figures.collecting import FiguresCollector
from isochrone.control.figures.frames import Frame
from isochrone.control.figures.history import History
from isochrone.control.state.process_records import GatewayRecord, WorkerRecord
from isochrone.gateway.figures.page import MOST_BYTES, FiguresPage, ModelCounts, VersionCounts, WorkerLoad, encode


class Gateways:
    """Gateways by port: what each has answered so far, and how it answers now."""

    def __init__(self) -> None:
        self.answered: dict[int, int] = {}
        #: By port: what happens instead of an answer.
        self.faults: dict[int, Callable[[], Coroutine[Any, Any, httpx.Response]]] = {}
        self.asked: list[int] = []
        self.uptime_ms = 10_000

    async def handle(self, request: httpx.Request) -> httpx.Response:
        port = request.url.port or 0
        assert request.url.path == "/figures"
        self.asked.append(port)
        if port in self.faults:
            return await self.faults[port]()
        count = self.answered.get(port, 0)
        models = (ModelCounts("m", count, versions=(VersionCounts("1", (count, 0, 0, 0, 0), {2: count}),)),)
        workers = (WorkerLoad("10.0.0.1:8000", "edge", own_in_flight=port),)
        page = FiguresPage(f"i{port}", self.uptime_ms, 1, models if count else (), workers)
        return httpx.Response(200, content=encode(page))


async def hang() -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def refuse() -> httpx.Response:
    raise httpx.ConnectError("refused")


def saying(status: int, content: bytes) -> Callable[[], Coroutine[Any, Any, httpx.Response]]:
    async def answer() -> httpx.Response:
        return httpx.Response(status, content=content)

    return answer


class Scene:
    """A fleet of two gateways and one worker."""

    def __init__(self) -> None:
        self.records = Records(None)
        for name, port in (("a", 1), ("b", 2)):
            self.records.put(KEYS.gateway(name), GatewayRecord(name, "127.0.0.1", port, port))
        self.records.put(KEYS.worker("w"), WorkerRecord("w", "10.0.0.1", 8000, 8001))
        self.gateways = Gateways()
        self.client = httpx.AsyncClient(transport=httpx.MockTransport(self.gateways.handle))
        self.now = 0.0
        self.collector = FiguresCollector(lambda: self.records.view, client=self.client, clock=lambda: self.now)
        self.at = 1000

    async def frame(self) -> Frame:
        self.at += 1
        self.now += 1.0
        return await self.collector.collect(self.client, self.at)


def play(scenario: Callable[[Scene], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_SECONDS", 0.2)

    async def course() -> None:
        scene = Scene()
        try:
            await scenario(scene)
        finally:
            await scene.collector._tasks.end()
            await scene.client.aclose()

    asyncio.run(asyncio.wait_for(course(), 60))


def test_gateways_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.frame()
        scene.gateways.answered = {1: 3, 2: 4}
        frame = await scene.frame()
        assert (frame.at, frame.models["m", "1"].answered, frame.models["m", "1"].durations) == (1002, 7, {2: 7})
        assert {name: each.requests for name, each in frame.gateways.items()} == {"a": 3, "b": 4}
        assert (frame.workers["w"].in_flight, frame.workers["w"].tier) == (3, "edge")
        assert (await scene.frame()).models == {}

    play(scenario, monkeypatch)


@pytest.mark.parametrize(
    "fault",
    [
        hang,
        refuse,
        saying(404, b""),
        saying(200, b"{}"),
        saying(200, b'{"incarnation":"x","uptime_ms":-1}'),
        saying(200, b"[" * 10_000),
        saying(200, b" " * (MOST_BYTES + 1)),
    ],
    ids=["hangs", "refuses", "has no page", "nothing", "negative", "nested", "too large"],
)
def test_a_gateway_that_does_not_answer_delays_nobody_and_loses_nothing(
    fault: Callable[[], Coroutine[Any, Any, httpx.Response]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.frame()
        scene.gateways.faults[1] = fault
        scene.gateways.answered = {1: 5, 2: 1}
        frame = await scene.frame()
        assert (frame.gateways["a"].is_reachable, frame.gateways["b"].is_reachable) == (False, True)
        assert frame.models["m", "1"].answered == 1
        assert frame.workers["w"].in_flight == 2
        # From now on, frames do not wait for it.
        scene.gateways.answered[2] += 1
        monkeypatch.setattr(collecting, "_SECONDS", 50)
        frame = await scene.frame()
        assert frame.models["m", "1"].answered == 1
        monkeypatch.setattr(collecting, "_SECONDS", 0.2)
        del scene.gateways.faults[1]
        counted = 0
        while not counted:
            frame = await scene.frame()
            counted = sum(each.answered for each in frame.models.values())
            if fault is hang and not counted:
                # The question that hangs was asked with a deadline of its own.
                for gateway in scene.collector._gateways.values():
                    if gateway.asking is not None and not gateway.asking.done():
                        gateway.asking.cancel()
            await asyncio.sleep(0)
        assert counted == 5
        assert frame.gateways["a"].is_reachable

    play(scenario, monkeypatch)


def test_a_gateway_without_a_metrics_port_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        scene.records.put(KEYS.gateway("a"), GatewayRecord("a", "127.0.0.1", 1))
        frame = await scene.frame()
        assert not frame.gateways["a"].is_reachable
        assert scene.gateways.asked == [2]

    play(scenario, monkeypatch)


def test_a_gateway_that_leaves_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.frame()
        del scene.records.entries[KEYS.gateway("a")]
        assert set((await scene.frame()).gateways) == {"b"}
        assert set(scene.collector._gateways) == {"b"}

    play(scenario, monkeypatch)


@pytest.mark.parametrize("seconds_away", [1, 1000, 4000])
def test_a_gateway_that_registers_again_counts_nothing_twice(
    seconds_away: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(scene: Scene) -> None:
        scene.now = 86_400.0
        scene.gateways.answered = {1: 100}
        assert (await scene.frame()).models["m", "1"].answered == 100, "it started after the controller"
        record = scene.records.entries.pop(KEYS.gateway("a"))
        for _ in range(3):
            assert not (await scene.frame()).models
        scene.now += seconds_away
        scene.gateways.uptime_ms += seconds_away * 1000
        scene.gateways.answered[1] += 7
        await scene.frame()
        scene.records.entries[KEYS.gateway("a")] = record
        frame = await scene.frame()
        # What is kept is bounded: after an hour, what it counted meanwhile is lost.
        assert sum(each.answered for each in frame.models.values()) == (7 if seconds_away < 3600 else 0)
        assert not (await scene.frame()).models
        scene.gateways.answered[1] += 1
        assert (await scene.frame()).models["m", "1"].answered == 1

    play(scenario, monkeypatch)


def test_what_is_kept_of_gateways_that_left_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(scene: Scene) -> None:
        monkeypatch.setattr(collecting, "_MOST_AWAY", 1)
        scene.now = 86_400.0
        scene.gateways.answered = {1: 100, 2: 10}
        await scene.frame()
        kept = dict(scene.records.entries)
        for name in "ab":
            del scene.records.entries[KEYS.gateway(name)]
        await scene.frame()
        assert set(scene.collector._away) == {"b"}
        scene.records.entries.update(kept)
        assert not (await scene.frame()).models

    play(scenario, monkeypatch)


def test_frames_go_on_in_order_and_leave_nothing_behind() -> None:
    async def course() -> None:
        records, gateways, history = Records(None), Gateways(), History()
        records.put(KEYS.gateway("a"), GatewayRecord("a", "127.0.0.1", 1, 1))
        times = iter(range(10**6))
        client = httpx.AsyncClient(transport=httpx.MockTransport(gateways.handle))
        # Every look at the clock takes seconds: no frame waits for its time.
        collector = FiguresCollector(
            lambda: records.view, history, client=client, clock=lambda: float(next(times)), unix_time=lambda: 5e8
        )
        running = asyncio.ensure_future(collector.run())
        for _ in range(10_000):
            await asyncio.sleep(0)
            if len(history.frames(300)) >= 5:
                break
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.aclose()
        seconds = [frame.at for frame in history.frames(300)]
        assert len(seconds) >= 5
        assert seconds == sorted(set(seconds))
        assert not len(collector._tasks)

    asyncio.run(asyncio.wait_for(course(), 60))
