"""How runs of a control loop end and go on: cancelled, failed, stopped and closed, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from simulated_agents import REFUSED, SimulatedAgent
from virtual_time import VirtualLoop, run_virtually

from isochrone.client.answers import Outputs
from isochrone.errors import InvalidArgument


@pytest.mark.parametrize("ends", ["cancelled", "failed"])
def test_an_answer_to_a_run_that_ended_within_a_tick_is_late_in_the_next_run(ends: str) -> None:
    loop = VirtualLoop()
    # Asked at 0.2 s in tick 10, answered at 0.23 s.
    agent = SimulatedAgent(loop, lambda at: 0.03 if at < 0.21 else 0.2, local=None)
    observations = 0

    def sense() -> Mapping[str, Any]:
        nonlocal observations
        observations += 1
        return {"x": observations}

    def act(action: Any) -> None:
        agent.act(action)
        if ends == "failed" and action.tick == 10:
            raise RuntimeError("act")

    agent.loop._sense, agent.loop._act = sense, act

    async def main() -> None:
        async with agent.loop:
            running = asyncio.create_task(agent.loop.run())
            await asyncio.sleep(0.205 if ends == "cancelled" else 0.22)
            running.cancel()
            with pytest.raises(asyncio.CancelledError if ends == "cancelled" else RuntimeError):
                await running
            assert agent.loop.tick == 11
            await asyncio.sleep(1000.227 - loop.time())
            await agent.loop.run(3)

    run_virtually(loop, main())
    assert "remote" not in agent.sources
    assert [action.tick for action in agent.actions[-3:]] == [11, 12, 13]
    assert (10, {"y": 11}) in [(tick, answer) for tick, answer, _ in agent.late]


def test_an_answer_that_nothing_asked_for_has_no_round_trip() -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: 0.004)
    run_virtually(loop, agent.loop.run(3))
    before = agent.loop.summary().times["round_trip"]
    agent.loop._inference._answered(1, Outputs({"y": 1}))
    assert agent.loop.summary().times["round_trip"] == before


def test_a_tick_whose_sense_raises_acts_before_the_run_ends() -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: 0.004, hold_last_ticks=1)

    def sense() -> Mapping[str, Any]:
        if agent.loop.tick >= 3:
            raise RuntimeError("the camera")
        return agent.sense()

    agent.loop._sense = sense

    async def main() -> None:
        async with agent.loop:
            for _ in range(2):
                with pytest.raises(RuntimeError, match="the camera"):
                    await agent.loop.run()

    run_virtually(loop, main())
    assert agent.sources == ["local", "remote", "remote", "held", "fallback"]
    assert agent.loop.summary().ticks == 5


@pytest.mark.parametrize("at", [0.025, 0.030])
def test_close_waits_for_the_tick_under_way_and_nothing_follows(at: float) -> None:
    loop = VirtualLoop()
    # At 25 ms a tick waits for its answer; at 30 ms the loop sleeps or a local run has ended.
    agent = SimulatedAgent(loop, lambda _: None if at == 0.025 else 0.004)

    async def main() -> None:
        running = asyncio.create_task(agent.loop.run())
        await asyncio.sleep(at)
        await agent.loop.close()
        actions, requests = len(agent.actions), agent.loop.summary().requests
        # Both ticks that began have acted.
        assert actions == 2
        await running
        await asyncio.sleep(1)
        assert (len(agent.actions), agent.loop.summary().requests) == (actions, requests)
        assert agent.remote.under_way == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(loop, main())


def test_a_loop_that_is_closed_while_it_senses_asks_nothing() -> None:
    loop = VirtualLoop()

    async def sense() -> Mapping[str, Any]:
        await asyncio.sleep(0.002)
        return {"x": 0}

    agent = SimulatedAgent(loop, lambda _: None, sense=sense)

    async def main() -> None:
        running = asyncio.create_task(agent.loop.run())
        await asyncio.sleep(0.001)
        await agent.loop.close()
        await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(loop, main())
    assert agent.sources == ["local"]
    assert agent.loop.summary().requests == 0


def test_act_may_close_the_loop() -> None:
    loop = VirtualLoop()

    async def act(action: Any) -> None:
        agent.act(action)
        await agent.loop.close()

    agent = SimulatedAgent(loop, lambda _: 0.004, act=act)
    run_virtually(loop, agent.loop.run())
    assert len(agent.actions) == 1


def test_each_step_of_close_is_taken_if_another_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: 0.004)
    closed = []

    async def broken() -> None:
        raise RuntimeError("requests")

    async def close() -> None:
        closed.append("local")

    monkeypatch.setattr(agent.loop._inference._remote, "close", broken)
    monkeypatch.setattr(agent.loop._inference._local, "close", close)
    with pytest.raises(RuntimeError, match="requests"):
        run_virtually(loop, agent.loop.close())
    assert closed == ["local"]


def test_stop_before_the_first_step_of_a_run_ends_it() -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: 0.004)

    async def main() -> None:
        async with agent.loop:
            running = asyncio.create_task(agent.loop.run())
            agent.loop.stop()
            await running
            assert agent.actions == []
            await agent.loop.run(2)

    run_virtually(loop, main())
    assert len(agent.actions) == 2


def test_an_error_of_on_late_ends_one_run() -> None:
    loop = VirtualLoop()
    calls = 0

    def on_late(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("once")

    agent = SimulatedAgent(loop, lambda _: 0.03, on_late=on_late)

    async def main() -> None:
        async with agent.loop:
            with pytest.raises(RuntimeError, match="once"):
                await agent.loop.run(10)
            await agent.loop.run(10)

    run_virtually(loop, main())


def raises_late(*_: object) -> None:
    raise RuntimeError("after the last tick")


async def answers_late(*_: object) -> None:
    raise AssertionError


@pytest.mark.parametrize(
    ("on_late", "words"), [(raises_late, "after the last tick"), (lambda *_: answers_late(), "not asynchronous")]
)
def test_an_error_of_on_late_after_the_last_tick_is_raised_by_close(on_late: Any, words: str) -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: 0.03, on_late=on_late)

    async def main() -> None:
        await agent.loop.run(1)
        await asyncio.sleep(1)
        with pytest.raises(Exception, match=words):
            await agent.loop.close()
        await agent.loop.close()

    run_virtually(loop, main())


def test_the_first_failure_of_each_code_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda at: REFUSED if at < 0.5 else InvalidArgument("no input is named x"))
    run_virtually(loop, agent.loop.run(100))
    assert [record.getMessage() for record in caplog.records] == [
        "a control loop's request failed: model=policy code=unavailable error=cannot connect",
        "a control loop's request failed: model=policy code=invalid_argument error=no input is named x",
    ]


def test_answers_are_waited_for_at_least_twice_the_infer_budget_by_default() -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: 0.3, hz=2, sense_ms=50, infer_ms=400, act_ms=50)
    run_virtually(loop, agent.loop.run(40))
    assert agent.sources == ["local", *["remote"] * 39]
