"""Local models that run on a thread, raise, or take too long: what still answers in time is used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_agents import REFUSED, Link, SimulatedAgent
from virtual_time import VirtualLoop, run_virtually

from isochrone.client.answers import Outputs
from isochrone.client.control_loop.local_fitness import LocalFitness
from isochrone.client.control_loop.local_runs import LocalRuns
from isochrone.client.control_loop.loop import Action, ControlLoop
from isochrone.clock import MILLISECOND as MS
from isochrone.clock import SECOND
from isochrone.errors import Unavailable

Inputs = Mapping[str, Any]
#: Budgets so large that a busy machine does not decide the outcome.
LONG = {"hz": 1, "sense_ms": 10, "infer_ms": 980, "act_ms": 10}


class Remote:
    """Answers or fails after the given wait."""

    def __init__(self, wait: Callable[[], Any], error: Exception | None = None) -> None:
        self._wait = wait
        self._error = error

    async def infer(self, model: str, inputs: Inputs, *_: Any, **__: Any) -> Outputs:
        await self._wait()
        if self._error is not None:
            raise self._error
        return Outputs({"y": -2})


def acted_with_thread(remote: Any, local: Callable[[Inputs], Inputs]) -> list[Action]:
    """The actions of one tick in real time; which one it is does not depend on the time."""
    acted: list[Action] = []

    async def main() -> None:
        loop = ControlLoop(
            remote,
            "policy",
            sense=lambda: {"x": loop.tick},
            act=acted.append,
            local=local,
            local_in_thread=True,
            fallback={"y": -1},
            **LONG,  # type: ignore[arg-type]
        )
        async with loop:
            await loop.run(1)

    asyncio.run(main())
    return acted


def test_a_remote_failure_does_not_end_the_wait_for_a_local_run_on_a_thread() -> None:
    failed = threading.Event()

    async def fails() -> None:
        # The local run ends only after the event loop has seen the failure.
        asyncio.get_running_loop().call_later(0.01, failed.set)

    def local(inputs: Inputs) -> Inputs:
        assert failed.wait(5)
        return {"y": inputs["x"]}

    acted = acted_with_thread(Remote(fails, Unavailable("cannot connect")), local)
    assert [(action.source, action.outputs["y"]) for action in acted] == [("local", 0)]


def test_a_local_run_that_raises_on_a_thread_leaves_the_remote_answer() -> None:
    ended = threading.Event()

    async def waits() -> None:
        await asyncio.to_thread(ended.wait, 5)
        await asyncio.sleep(0.01)

    def local(inputs: Inputs) -> Inputs:
        ended.set()
        raise ValueError("no weights")

    acted = acted_with_thread(Remote(waits), local)
    assert [(action.source, action.outputs["y"]) for action in acted] == [("remote", -2)]


async def closed_after(agent: SimulatedAgent, ticks: int) -> None:
    async with agent.loop:
        await agent.loop.run(ticks)


def run_virtual_agent(link: Link, ticks: int, **options: Any) -> SimulatedAgent:
    agent = SimulatedAgent(VirtualLoop(), link, **options)
    run_virtually(agent.virtual, closed_after(agent, ticks))
    return agent


def test_a_local_model_that_raises_leaves_a_good_remote_model_in_use() -> None:
    def broken(inputs: Inputs) -> Inputs:
        raise ValueError("no weights")

    agent = run_virtual_agent(lambda _: 0.004, 100, local=broken)
    assert agent.sources == ["remote"] * 100
    summary = agent.loop.summary()
    assert summary.local_unfit == "failed"
    # Three in a row; then one trial after a second.
    assert summary.local_failures == 4
    assert summary.deadline_misses == 0


def test_a_local_model_that_works_again_is_the_backstop_again() -> None:
    agent = SimulatedAgent(VirtualLoop(), lambda at: 0.004 if at < 2.99 else None)

    def local(inputs: Inputs) -> Inputs:
        if agent.virtual.time() < 1000.5:
            raise ValueError("no weights")
        return agent.local(inputs)

    agent.loop._inference._local = LocalRuns(local, in_thread=False)
    run_virtually(agent.virtual, closed_after(agent, 200))
    assert agent.sources[150:] == ["local"] * 50
    assert agent.loop.summary().local_unfit == ""


@pytest.mark.parametrize("seconds", [0.0145, 0.025])
def test_a_local_model_slower_than_the_budget_leaves_a_good_remote_model_in_use(seconds: float) -> None:
    agent = run_virtual_agent(lambda _: 0.004, 200, local_seconds=seconds)
    summary = agent.loop.summary()
    assert agent.loop.is_remote_trusted
    assert summary.local_unfit == "too slow"
    assert "isochrone_control_loop_local_unfit 1" in agent.loop.times.prometheus()
    # Until a doubt from its slow runs has ended, then trials after one second and more.
    assert summary.sources["local"] == len(agent.local_starts) <= 20
    assert summary.sources["fallback"] <= 1


@pytest.mark.parametrize("link", [None, 0.06])
def test_a_slow_local_model_that_can_be_in_time_runs_while_the_remote_one_is_in_doubt(link: float | None) -> None:
    agent = run_virtual_agent(lambda at: 0.004 if at < 0.99 else link, 200, local_seconds=0.0145)
    assert set(agent.sources[60:]) == {"local"}
    assert agent.loop.summary().misses["overrun"] == 0


def test_a_local_model_slower_than_the_budget_runs_where_the_remote_one_is_gone() -> None:
    agent = run_virtual_agent(lambda at: 0.004 if not 0.99 <= at < 5.99 else REFUSED, 500, local_seconds=0.025)
    assert "local" in agent.sources[150:200]
    assert set(agent.sources[-50:]) <= {"remote", "local"}
    assert agent.sources[-50:].count("local") <= 1


runs = st.lists(st.one_of(st.none(), st.integers(0, 20 * MS)), max_size=30)


@given(runs=runs)
def test_a_local_model_is_unfit_after_three_unfit_runs_and_until_a_fit_one(runs: list[int | None]) -> None:
    fitness = LocalFitness(14 * MS)
    for now, took in enumerate(runs):
        if took is None:
            fitness.failed(now)
        else:
            fitness.took(took, now)
    last = runs[-3:]
    expected = len(last) == 3 and all(took is None or took > 14 * MS for took in last)
    assert bool(fitness.unfit) == expected
    if expected:
        assert fitness.unfit == ("failed" if runs[-1] is None else "too slow")
        assert not fitness.may_try(len(runs) - 1 + SECOND - 1)
        assert fitness.may_try(len(runs) + 60 * SECOND)


def test_the_text_for_prometheus_counts_doubts_while_the_loop_runs() -> None:
    agent = SimulatedAgent(VirtualLoop(), lambda _: None)

    async def main() -> None:
        async with agent.loop:
            running = asyncio.create_task(agent.loop.run())
            await asyncio.sleep(1)
            assert "isochrone_control_loop_doubts_total 1\n" in agent.loop.times.prometheus()
            agent.loop.stop()
            await running

    run_virtually(agent.virtual, main())
