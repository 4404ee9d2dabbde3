"""The alarm on a real loop: only the order of things is looked at, never how long they take."""

from __future__ import annotations

import asyncio
import os

from isochrone.clock import MILLISECOND, SECOND, now_ns
from isochrone.worker.scheduling.alarm import Alarm


def test_rings_not_before_its_time() -> None:
    async def scenario() -> None:
        rang: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        alarm = Alarm(asyncio.get_running_loop(), lambda: rang.set_result(now_ns()))
        at = now_ns() + 300_000
        alarm.set(at)
        assert await rang >= at
        alarm.close()

    asyncio.run(scenario())


def test_the_past_rings_at_once() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        for at in (1, now_ns() - SECOND, now_ns()):
            rang = loop.create_future()
            alarm = Alarm(loop, lambda rang=rang: rang.set_result(None))  # type: ignore[misc]
            alarm.set(at)
            await rang
            alarm.close()

    asyncio.run(scenario())


def test_the_last_setting_counts() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        times: list[int] = []
        rang = loop.create_future()

        def ring() -> None:
            times.append(now_ns())
            rang.set_result(None)

        alarm = Alarm(loop, ring)
        later = now_ns() + 5 * MILLISECOND
        alarm.set(now_ns() + 3600 * SECOND)
        alarm.set(later)
        await rang
        assert len(times) == 1
        assert times[0] >= later
        alarm.close()

    asyncio.run(scenario())


def test_rings_once_per_setting_and_can_be_set_again_to_the_same_instant() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        ringing: asyncio.Queue[None] = asyncio.Queue()
        alarm = Alarm(loop, lambda: ringing.put_nowait(None))
        at = now_ns()
        for _ in range(3):
            alarm.set(at)
            alarm.set(at)
            await ringing.get()
        assert ringing.empty()
        alarm.close()

    asyncio.run(scenario())


def test_close_gives_the_descriptor_back() -> None:
    async def scenario() -> None:
        before = set(os.listdir("/proc/self/fd"))
        alarm = Alarm(asyncio.get_running_loop(), lambda: None)
        alarm.set(now_ns() + SECOND)
        assert set(os.listdir("/proc/self/fd")) != before
        alarm.close()
        alarm.close()
        assert set(os.listdir("/proc/self/fd")) == before

    asyncio.run(scenario())
