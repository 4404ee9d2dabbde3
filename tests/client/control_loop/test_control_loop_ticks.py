"""The control loop in virtual time: every tick acts, in its phase, on its own answer."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_agents import REFUSED, Link, SimulatedAgent
from virtual_time import VirtualLoop, run_virtually

from isochrone.client.control_loop.loop import Action
from isochrone.errors import ConfigError, InvalidArgument


def run_agent(link: Link, ticks: int, **options: Any) -> SimulatedAgent:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, link, **options)

    async def main() -> None:
        async with agent.loop:
            await agent.loop.run(ticks)
        assert agent.remote.under_way == 0
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(loop, main())
    return agent


def in_phase(agent: SimulatedAgent, period: float = 0.02) -> bool:
    """Whether every action came within its own tick."""
    return all(
        action.tick * period - 1e-6 <= at - 1000.0 <= (action.tick + 1) * period + 1e-6
        for action, at in zip(agent.actions, agent.times, strict=True)
    )


def test_a_good_link_is_used_in_every_tick_after_the_first() -> None:
    agent = run_agent(lambda _: 0.004, 100)
    # The first tick runs the local model to learn how long it takes.
    assert agent.sources == ["local", *["remote"] * 99]
    assert [action.outputs["y"] for action in agent.actions] == list(range(100))
    summary = agent.loop.summary()
    assert summary.deadline_misses == 0
    assert summary.requests == 100
    assert summary.times["round_trip"].p50_ms == pytest.approx(4, rel=0.04)
    assert in_phase(agent)


def test_a_dead_link_costs_no_tick_and_is_probed_at_a_bounded_rate() -> None:
    agent = run_agent(lambda at: 0.004 if at < 0.99 else None, 200)
    assert agent.sources[50:] == ["local"] * 150
    assert agent.loop.summary().deadline_misses == 0
    # Three requests are overdue before the remote model is doubted; then ten probes a second.
    assert not agent.loop.is_remote_trusted
    assert agent.loop.summary().requests <= 50 + 4 + 31
    assert agent.loop.summary().remote_failures["no_answer"] > 10
    # In doubt the local model starts at once, and before that in time.
    for tick, start in zip(range(50, 53), agent.local_starts[-150:], strict=False):
        assert start - 1000 - tick * 0.02 <= 0.017 - 0.0005
    assert [round(start - 1000 - 0.02 * tick, 6) for tick, start in enumerate(agent.local_starts[-100:], 100)] == [
        0
    ] * 100


def test_a_link_that_returns_is_found_again() -> None:
    agent = run_agent(lambda at: None if 0.99 <= at < 1.99 else 0.004, 250)
    assert agent.loop.is_remote_trusted
    first = agent.sources.index("remote", 100)
    # A probe within 100 ms, the confirmations tick by tick, then the answers.
    assert first <= 100 + 5 + 3 + 1
    assert agent.sources[first:] == ["remote"] * (250 - first)
    assert agent.loop.summary().deadline_misses == 0


def test_refused_connections_start_the_local_model_at_once() -> None:
    agent = run_agent(lambda at: 0.004 if at < 0.49 else REFUSED, 100)
    assert agent.sources[25:] == ["local"] * 75
    assert all(start - 1000 - 0.02 * tick < 1e-6 for tick, start in enumerate(agent.local_starts[-75:], 25))
    assert set(agent.loop.summary().remote_failures) == {"unavailable"}
    assert agent.loop.summary().last_remote_error == "cannot connect"


def test_a_slow_link_is_not_waited_for_and_its_late_answers_are_reported() -> None:
    agent = run_agent(lambda at: 0.004 if at < 0.99 else 0.06, 150)
    assert agent.sources[50:] == ["local"] * 100
    summary = agent.loop.summary()
    assert summary.late_answers == len(agent.late) > 5
    assert summary.deadline_misses == 0
    for tick, answer, age in agent.late[1:]:
        assert answer["y"] == tick
        assert age == pytest.approx(0.06)


def test_links_that_flap_are_trusted_less_and_less_often() -> None:
    rng = random.Random(7)
    agent = run_agent(lambda at: 0.004 if at < 0.99 or rng.random() < 0.5 else 0.03, 1500)
    # With three confirmations whatever came before, trust would come and go more than sixty times.
    assert agent.loop.summary().doubts < 15
    assert agent.loop.summary().deadline_misses == 0


def test_without_a_local_model_late_answers_are_missed_deadlines_and_still_actions() -> None:
    agent = run_agent(lambda at: 0.004 if at < 0.99 else 0.06, 100, local=None)
    assert agent.sources == ["remote"] * 50 + ["fallback"] * 50
    assert agent.loop.summary().misses == {"unanswered": 50, "overrun": 0, "skipped": 0}
    assert agent.loop.summary().stage_overruns == {"sense": 0, "infer": 50, "act": 0}
    assert in_phase(agent)


def test_without_a_local_model_a_dead_link_is_probed_and_found_again() -> None:
    agent = run_agent(lambda at: None if 0.99 <= at < 2.99 else 0.004, 250, local=None)
    assert agent.sources[:50] == ["remote"] * 50
    assert agent.sources[160:] == ["remote"] * 90
    assert agent.loop.summary().requests < 50 + 20 + 20 + 100
    assert agent.loop.summary().probes > 10


def test_the_last_action_is_held_for_some_ticks() -> None:
    agent = run_agent(lambda at: 0.004 if at < 0.49 else None, 40, local=None, hold_last_ticks=4)
    assert agent.sources == ["remote"] * 25 + ["held"] * 4 + ["fallback"] * 11
    assert [action.outputs["y"] for action in agent.actions[25:30]] == [24, 24, 24, 24, -1]


def test_a_local_model_that_fails_leaves_the_fallback() -> None:
    def broken(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ValueError("no weights")

    agent = run_agent(lambda _: None, 10, local=broken)
    assert agent.sources == ["fallback"] * 10
    assert agent.loop.summary().local_failures == 10
    assert agent.loop.summary().last_local_error == "ValueError: no weights"


def test_a_local_model_that_returns_no_outputs_has_failed() -> None:
    agent = run_agent(lambda _: None, 3, local=lambda inputs: None)
    assert agent.sources == ["fallback"] * 3
    assert "returned NoneType, expected a dict of outputs" in agent.loop.summary().last_local_error


def test_sense_must_return_inputs() -> None:
    async def later() -> Any:
        return 3

    for sense, kind in ((lambda: None, "NoneType"), (later, "int")):
        with pytest.raises(InvalidArgument, match=f"sense: expected a dict of inputs, returned {kind}"):
            run_agent(lambda _: 0.004, 3, sense=sense)


def test_late_ticks_are_skipped_and_the_phase_is_kept() -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: 0.004)

    def slow_act(action: Action) -> None:
        agent.act(action)
        if action.tick == 5:
            loop.pass_time(0.075)

    agent.loop._act = slow_act
    run_virtually(loop, agent.loop.run(20))
    assert [action.tick for action in agent.actions] == [*range(6), *range(9, 20)]
    summary = agent.loop.summary()
    assert summary.misses == {"unanswered": 0, "overrun": 1, "skipped": 3}
    assert summary.stage_overruns == {"sense": 0, "infer": 0, "act": 1}
    assert in_phase(agent)


def test_a_sense_stage_that_does_not_end_is_cancelled_for_the_act_instant() -> None:
    async def stuck() -> Mapping[str, Any]:
        await asyncio.sleep(3600)
        raise AssertionError

    agent = run_agent(lambda _: 0.004, 5, sense=stuck)
    assert agent.sources == ["fallback"] * 5
    assert agent.loop.summary().stage_overruns["sense"] == 5
    assert in_phase(agent)


def test_asynchronous_sense_and_act() -> None:
    acted = []

    async def sense() -> Mapping[str, Any]:
        await asyncio.sleep(0.001)
        return {"x": 1}

    async def act(action: Action) -> None:
        await asyncio.sleep(0.001)
        acted.append(action.source)

    agent = run_agent(lambda _: 0.004, 5, sense=sense, act=act)
    assert acted == ["local", *["remote"] * 4]
    assert agent.loop.summary().times["sense"].p50_ms == pytest.approx(1, rel=0.04)


@pytest.mark.parametrize("stage", ["sense", "act", "on_late"])
def test_errors_of_the_users_functions_end_the_loop(stage: str) -> None:
    def broken(*_: object) -> Mapping[str, Any]:
        raise RuntimeError(stage)

    with pytest.raises(RuntimeError, match=stage):
        run_agent(lambda _: 0.03, 20, **{stage: broken})


def test_a_timeout_of_sense_itself_ends_the_loop() -> None:
    async def sense() -> Mapping[str, Any]:
        raise TimeoutError("the camera")

    with pytest.raises(TimeoutError, match="the camera"):
        run_agent(lambda _: 0.004, 3, sense=sense)


def test_runs_go_on_with_the_next_tick_and_end_by_stop_and_close() -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: 0.1)

    async def main() -> None:
        async with agent.loop:
            await agent.loop.run(3)
            running = asyncio.create_task(agent.loop.run())
            await asyncio.sleep(0.5)
            with pytest.raises(InvalidArgument, match="running already"):
                await agent.loop.run()
            agent.loop.stop()
            await running
        with pytest.raises(InvalidArgument, match="closed"):
            await agent.loop.run()
        await agent.loop.close()

    run_virtually(loop, main())
    assert [action.tick for action in agent.actions] == list(range(len(agent.actions)))
    # Answers of the first run are late in the second, whatever its ticks are.
    assert all(answer["y"] == tick for tick, answer, _ in agent.late)


def test_cancellation_leaves_no_task() -> None:
    loop = VirtualLoop()
    agent = SimulatedAgent(loop, lambda _: None)

    async def main() -> None:
        async def run() -> None:
            async with agent.loop:
                await agent.loop.run()

        task = asyncio.create_task(run())
        await asyncio.sleep(0.113)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert agent.remote.under_way == 0

    run_virtually(loop, main())


def test_fifty_loops_in_one_event_loop() -> None:
    loop = VirtualLoop()
    agents = [
        SimulatedAgent(loop, lambda at: None if 0.5 <= at < 0.99 else 0.005, local_seconds=1e-5) for _ in range(50)
    ]

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for agent in agents:
                group.create_task(agent.loop.run(100))
        for agent in agents:
            await agent.loop.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtually(loop, main())
    for agent in agents:
        assert len(agent.actions) == 100
        assert agent.loop.summary().deadline_misses == 0
        assert agent.sources[-1] == "remote"


@given(
    seed=st.integers(0, 1000),
    local_seconds=st.floats(1e-5, 0.03),
    hz=st.sampled_from([10, 33, 50, 100]),
    hangs=st.floats(0, 0.3),
)
def test_every_tick_acts_once_on_its_own_answer_whatever_link_and_local_model_do(
    seed: int, local_seconds: float, hz: float, hangs: float
) -> None:
    rng = random.Random(seed)

    def link(_: float) -> float | Exception | None:
        kind = rng.random()
        return None if kind < hangs else REFUSED if kind < hangs + 0.1 else rng.expovariate(1 / 0.01)

    budget = 1000 / hz
    agent = run_agent(
        link,
        60,
        local_seconds=local_seconds,
        hz=hz,
        sense_ms=budget * 0.1,
        infer_ms=budget * 0.75,
        act_ms=budget * 0.15,
    )
    numbers = [action.tick for action in agent.actions]
    assert numbers == sorted(set(numbers))
    summary = agent.loop.summary()
    assert summary.ticks == len(numbers) == 60 - summary.misses["skipped"]
    for action in agent.actions:
        assert action.outputs["y"] == (-1 if action.source == "fallback" else action.tick)
    if local_seconds < budget * 0.75 / 1000 - 0.001:
        # In time for the local model from the first tick on, in which it starts at once.
        assert summary.misses["unanswered"] == 0
        assert summary.misses["skipped"] == 0
        assert summary.misses["overrun"] == 0


async def answered_later(tick: int, answer: Any, age: float) -> None:
    """No ``on_late``."""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hz": 0}, "hz: expected 1 to 1,000 ticks per second, given 0"),
        ({"hz": 1001}, "hz: expected 1 to 1,000 ticks per second, given 1001"),
        ({"hz": "50"}, "given '50'"),
        ({"infer_ms": 16}, "expected at most 20 ms together, the period of 50 Hz, given 2 + 16 + 3 = 21"),
        ({"sense_ms": 0}, "sense_ms: expected milliseconds above 0, given 0"),
        ({"late_answer_ms": 14}, "late_answer_ms: expected milliseconds, at least infer_ms (15), or None, given 14"),
        ({"on_late": answered_later}, "on_late: expected a function that is not asynchronous"),
        ({"margin_ms": 15}, "margin_ms: expected 0 or more, and less than infer_ms (15), given 15"),
        ({"hold_last_ticks": -1}, "hold_last_ticks: expected a number of ticks, 0 or more"),
        ({"local": 3}, "local: expected a function from inputs to outputs, or None for a loop without a local model"),
        ({"sense": None}, "sense: expected a function that returns the model's inputs, given None"),
        ({"act": None}, "act: expected a function that takes an action"),
        ({"on_late": 1}, "on_late: expected a function of tick, answer and age, or None"),
        ({"fallback": {}}, "fallback: expected a dict of outputs to act on"),
    ],
)
def test_invalid_settings(options: dict[str, Any], words: str) -> None:
    with contextlib.closing(VirtualLoop()) as loop, pytest.raises(ConfigError) as caught:
        SimulatedAgent(loop, lambda _: 0.004, **options)
    assert words in str(caught.value)
