"""How runs of a control loop end and go on: cancelled, failed, stopped and closed, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from simulated_agents import SimulatedAgent
from virtual_time import VirtualLoop, run_virtually

from isochrone.client.answers import Outputs


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
    agent.loop._answered(1, Outputs({"y": 1}))
    assert agent.loop.summary().times["round_trip"] == before
