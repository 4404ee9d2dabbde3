"""What the engine does when actors die, hang or have another owner just when it acts on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from fake_ray import FakeActor, FakeCluster

from isochrone.cli.fleet.changing.engine_choice import RAY
from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.state.needs import Needs
from isochrone.engines.base import Exit
from isochrone.engines.ray import asking
from isochrone.engines.ray.engine import RayEngine
from isochrone.engines.ray.reports import encode_spec

SECONDS = 100.0
SPEC = ProcessSpec("w1", "worker", ("serve", "--name", "w1"), "cpu", Needs(1.0))


class Trial:
    """An engine over a fake cluster."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.engine = RayEngine(self.cluster)
        self.ends: list[Exit] = []
        self.engine.on_exit(self.ends.append)

    def leave(self, name: str, encoded: bytes, *, answers: bool = True) -> FakeActor:
        """An actor of an earlier supervisor."""
        actor = self.cluster.actors[name] = FakeActor(encoded, answers=answers)
        return actor

    def pid(self, name: str = "w1") -> int:
        running = self.engine.running().get(name)
        return running.pid if running is not None else 0


@asynccontextmanager
async def trial() -> AsyncIterator[Trial]:
    made = Trial()
    try:
        yield made
    finally:
        made.cluster.creates.set()
        await made.engine.close()


async def until(condition: Callable[[], object]) -> None:
    ends = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < ends
        await asyncio.sleep(0.005)


def test_the_name_of_the_engine_is_that_of_the_option() -> None:
    assert RayEngine.name == RAY


def test_an_adopted_process_whose_actor_died_is_stopped_and_not_made_again() -> None:
    async def run() -> None:
        async with trial() as it:
            actor = it.leave("w1", encode_spec(SPEC))
            await it.engine.open()
            await until(it.pid)
            actor.die()
            await until(lambda: it.ends)
            await it.engine.stop("w1", 1.0)
            assert it.engine.running() == {}
            assert [each.again_in is None for each in it.ends] == [False, True]
            assert it.cluster.made == []

    asyncio.run(run())


def test_an_actor_that_dies_while_its_process_is_stopped_is_not_made_again() -> None:
    async def run() -> None:
        async with trial() as it:
            await it.engine.start(SPEC)
            await until(it.pid)
            it.cluster.actors["w1"].answers = False
            stopping = asyncio.create_task(it.engine.stop("w1", 30.0))
            await until(lambda: it.engine.running()["w1"].stopping)
            it.cluster.made[0].answers = True
            it.cluster.made[0].die()
            # Also if the call that stops it is cancelled.
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            assert it.engine.running() == {}
            assert len(it.cluster.made) == 1

    asyncio.run(run())


def test_a_process_that_is_stopped_while_its_actor_is_made_leaves_no_actor() -> None:
    async def run() -> None:
        async with trial() as it:
            it.cluster.creates.clear()
            await it.engine.start(SPEC)
            await asyncio.sleep(0.01)
            stopping = asyncio.create_task(it.engine.stop("w1", 1.0))
            await until(lambda: it.engine.running()["w1"].stopping)
            it.cluster.creates.set()
            await stopping
            assert (it.engine.running(), it.cluster.actors) == ({}, {})
            assert len(it.cluster.made) == 1
            await it.engine.start(SPEC)
            await until(it.pid)

    asyncio.run(run())


def test_a_process_stays_known_if_ray_fails_to_end_its_actor() -> None:
    async def run() -> None:
        async with trial() as it:
            await it.engine.start(SPEC)
            await until(it.pid)
            it.cluster.failing_kills = 1
            await it.engine.stop("w1", 1.0)
            running = it.engine.running()["w1"]
            assert (running.stopping, it.ends) == (False, [])
            await it.engine.stop("w1", 1.0)
            assert (it.engine.running(), it.cluster.actors) == ({}, {})

    asyncio.run(run())


def test_an_actor_of_the_same_process_that_has_the_name_is_adopted() -> None:
    async def run() -> None:
        async with trial() as it:
            it.leave("w1", encode_spec(SPEC))
            await it.engine.start(SPEC)
            await until(it.pid)
            assert it.cluster.made == []
            assert it.engine.running()["w1"].waits == ""

    asyncio.run(run())


def test_an_actor_of_another_process_that_has_the_name_is_ended() -> None:
    async def run() -> None:
        async with trial() as it:
            other = it.leave("w1", encode_spec(ProcessSpec("w1", "worker", ("serve",), "old", Needs(2.0))))
            await it.engine.start(SPEC)
            await until(it.pid)
            assert other.dead
            assert len(it.cluster.made) == 1

    asyncio.run(run())


def test_a_process_that_is_stopped_while_it_is_replaced_is_not_started_again() -> None:
    async def run() -> None:
        async with trial() as it:
            it.cluster.creates.clear()
            await it.engine.start(SPEC)
            await asyncio.sleep(0.01)
            replacing = asyncio.create_task(it.engine.replace("w1"))
            await asyncio.sleep(0.01)
            stopping = asyncio.create_task(it.engine.stop("w1", 1.0))
            await asyncio.sleep(0.01)
            it.cluster.creates.set()
            await asyncio.gather(replacing, stopping)
            assert (it.engine.running(), it.cluster.actors) == ({}, {})
            assert [each.again_in for each in it.ends] == [None]

    asyncio.run(run())


def test_the_process_of_an_actor_that_does_not_answer_may_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_SPEC_SECONDS", 0.05)
    gateway = ProcessSpec("gw", "gateway", ("gateway",), needs=Needs(1.0))

    async def run() -> None:
        async with trial() as it:
            actor = it.leave("gw", encode_spec(gateway), answers=False)
            it.cluster.failing_kills = 1
            await it.engine.open()
            assert it.engine.running() == {}
            assert it.engine.may_run("gw", 7)
            assert not it.engine.may_run("gw-2", 7)
            # Its successor takes its place, although Ray failed to end it before.
            await it.engine.start(gateway)
            await until(lambda: it.pid("gw"))
            assert actor.dead
            await it.engine.stop("gw", 1.0)
            assert not it.engine.may_run("gw", 7)

    asyncio.run(run())


def test_an_actor_of_another_release_is_adopted_as_a_process_to_replace() -> None:
    async def run() -> None:
        async with trial() as it:
            actor = it.leave("w1", b'{"role":"worker","pool":"cpu","arguments":["serve"],"needs":"many"}')
            await it.engine.open()
            await until(it.pid)
            assert it.engine.running()["w1"].spec == ProcessSpec("w1", "worker", ("serve",), "cpu")
            await it.engine.stop("w1", 1.0)
            assert actor.stopped
            assert it.engine.running() == {}

    asyncio.run(run())
