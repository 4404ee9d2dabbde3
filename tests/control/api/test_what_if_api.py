"""What-if questions through the API: a caller that goes ends its simulation, and readings of the fleet are shared."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvicorn
from api_process import KEYS

from isochrone.control.api.application import create_app
from isochrone.control.what_if.answers import WhatIfAnswer
from isochrone.control.what_if.asking import ReadSituation, SharedSituation
from isochrone.control.what_if.situation import Situation
from isochrone.errors import NotFound
from isochrone.store.mirror import Mirror
from isochrone.store.opening import open_store

REQUEST = b'POST /v1/what-if HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-length: 24\r\n\r\n{"questions":["load=2"]}'


class EndlessSimulator:
    def __init__(self) -> None:
        self.started, self.cancelled = asyncio.Event(), asyncio.Event()

    async def answer(
        self, situation: ReadSituation, questions: Sequence[str], seed: int = 1, seconds: float | None = None
    ) -> WhatIfAnswer:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        raise AssertionError


def test_a_caller_that_goes_ends_its_simulation(tmp_path: Path) -> None:
    async def play() -> None:
        store = open_store(f"sqlite:{tmp_path / 'fleet.db'}")
        mirror = Mirror(store, KEYS.prefix)
        await mirror.start()
        simulator = EndlessSimulator()
        app = create_app(store, mirror, KEYS, simulator=simulator)
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
            serving = asyncio.ensure_future(server.serve(sockets=[listening]))
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(REQUEST)
            await simulator.started.wait()
            assert not simulator.cancelled.is_set()
            writer.close()
            await simulator.cancelled.wait()
            server.should_exit = True
            await serving
        await mirror.stop()
        await store.close()

    asyncio.run(asyncio.wait_for(play(), 60))


def test_callers_share_a_situation_for_two_seconds_but_no_failure() -> None:
    now = 0.0
    readings: list[str] = []

    async def read() -> Situation:
        readings.append("read")
        await asyncio.sleep(0)
        if len(readings) == 1:
            raise NotFound("no fleet.yaml")
        return Situation((), (), str(len(readings)))

    async def play() -> None:
        nonlocal now
        shared = SharedSituation(read, lambda: now)
        with pytest.raises(NotFound):
            await shared()
        found = await asyncio.gather(*(shared() for _ in range(20)))
        assert {each.fleet for each in found} == {"2"}
        now = 1.9
        assert (await shared()).fleet == "2"
        now = 2.0
        assert (await shared()).fleet == "3"
        # A caller that gives up while it reads keeps nobody from reading.
        now = 4.0
        first, second = asyncio.ensure_future(shared()), asyncio.ensure_future(shared())
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).fleet == "5"

    asyncio.run(asyncio.wait_for(play(), 60))
