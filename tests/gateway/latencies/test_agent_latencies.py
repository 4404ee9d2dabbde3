"""Latencies per agent against exact ones: totals are exact, memory is bounded, heavy agents are found."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import MILLISECOND, SECOND
from isochrone.gateway.latencies.agent_report import agent_report
from isochrone.gateway.latencies.agents import HALF_LIFE_NS, AgentLatencies, AgentRules, agent_name
from isochrone.gateway.latencies.durations import bucket_of

NAMES = st.sampled_from([f"agent-{number}" for number in range(15)])
#: Name, duration, whether the deadline was missed; None: a half-life passes.
STEPS = st.lists(
    st.one_of(st.tuples(NAMES, st.integers(0, 20 * SECOND), st.booleans()), st.none()),
    max_size=150,
)


def record(agents: AgentLatencies, name: str, duration: int = MILLISECOND, *, is_miss: bool = False) -> None:
    agents.record(name, bucket_of(duration), duration, is_miss)


@given(st.integers(1, 5), STEPS)
def test_everything_adds_up(most: int, steps: list[tuple[str, int, bool] | None]) -> None:
    agents, now = AgentLatencies(AgentRules(most)), 0
    counts: Counter[int] = Counter()
    requests: Counter[str] = Counter()
    misses: Counter[str] = Counter()
    for step in steps:
        if step is None:
            now += HALF_LIFE_NS
            agents.age(now)
            continue
        name, duration, is_miss = step
        record(agents, name, duration, is_miss=is_miss)
        counts[bucket_of(duration)] += 1
        requests[name] += 1
        misses[name] += is_miss
    given = [step for step in steps if step is not None]
    everybody = [agents.rest, agents.replaced, *agents.tracked.values()]
    assert agents.total == len(given)
    assert sum(agent.durations.sum_ns for agent in everybody) == sum(duration for _, duration, _ in given)
    assert sum(agent.misses for agent in everybody) == sum(misses.values())
    for bucket in range(len(agents.rest.durations.counts)):
        assert sum(agent.durations.counts[bucket] for agent in everybody) == counts[bucket]
    assert len(agents.tracked) <= 2 * most
    for name, agent in agents.tracked.items():
        assert agent.name == name
        assert agent.durations.total <= requests[name], "figures of its own are its own"
        assert agent.misses <= misses[name]
    report = agent_report(agents)
    assert report.requests == sum(each.requests for each in (*report.agents, report.rest, report.replaced))
    assert all(one.requests >= other.requests for one, other in pairwise(report.agents))


@given(STEPS)
def test_as_many_agents_as_may_be_tracked_are_exact(steps: list[tuple[str, int, bool] | None]) -> None:
    agents = AgentLatencies(AgentRules(15))
    exact: dict[str, list[int]] = {}
    misses: Counter[str] = Counter()
    for now, step in enumerate(steps):
        if step is None:
            agents.age(now * HALF_LIFE_NS)
            continue
        name, duration, is_miss = step
        record(agents, name, duration, is_miss=is_miss)
        exact.setdefault(name, []).append(duration)
        misses[name] += is_miss
    assert {name: agent.durations.total for name, agent in agents.tracked.items()} == {
        name: len(durations) for name, durations in exact.items()
    }
    assert all(agent.durations.sum_ns == sum(exact[name]) for name, agent in agents.tracked.items())
    assert all(agent.misses == misses[name] for name, agent in agents.tracked.items())
    assert agents.rest.durations.total == agents.replacements == 0


def test_invented_names_cost_no_memory_and_hide_no_heavy_agent() -> None:
    random, most = Random(3), 10
    agents = AgentLatencies(AgentRules(most))
    heavy = Counter[str]()
    for number in range(50_000):
        if number % 5 < 2:
            name = f"heavy-{random.randrange(3)}"
            heavy[name] += 1
        else:
            name = f"invented-{number}"
        record(agents, name)
        if number % 10_000 == 0:
            agents.age(number * SECOND)
    assert set(heavy) <= set(agents.tracked)
    # Each has more than one request in ten. Until most of its count is its own, it may be one of the invented ones.
    assert all(0.9 * heavy[name] <= agents.tracked[name].durations.total <= heavy[name] for name in heavy)
    assert len(agents.tracked) <= 2 * most
    # Names that came before all counters were taken; none that comes once is shown after that.
    assert agents.replacements <= most


def test_an_agent_with_few_requests_and_many_misses_is_found() -> None:
    agents = AgentLatencies(AgentRules(2))
    for number in range(1000):
        record(agents, f"busy-{number % 2}")
        if number % 20 == 0:
            record(agents, "late", is_miss=True)
            record(agents, f"seldom-{number}")
    assert "late" in agents.tracked
    assert agents.tracked["late"].misses >= 45


def test_who_was_heavy_makes_room() -> None:
    agents = AgentLatencies(AgentRules(2))
    for _ in range(100_000):
        record(agents, "yesterday")
        record(agents, "before")
    for minute in range(1, 30):
        agents.age(minute * HALF_LIFE_NS)
        for name in ("today", "now"):
            for _ in range(10):
                record(agents, name)
    assert set(agents.tracked) == {"today", "now"}
    assert agents.replacements == 2
    assert agents.total == 200_000 + 29 * 20


def test_a_clock_that_is_read_often_halves_once_per_half_life() -> None:
    agents = AgentLatencies(AgentRules(2))
    agents.age(HALF_LIFE_NS)
    for _ in range(8):
        record(agents, "a")
    for step in range(10):
        agents.age(HALF_LIFE_NS + step * SECOND)
    counter = agents.tracked["a"].counter
    assert counter is not None
    assert counter.count == 8


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, ""),
        (b"", ""),
        (b"robot-7", "robot-7"),
        ("förderer 3".encode(), "förderer 3"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\u202eb".encode(), "a\\u202eb"),
        (b'quote"\\', 'quote"\\'),
    ],
)
def test_names(value: bytes | None, name: str) -> None:
    assert agent_name(value) == name


@given(st.binary(max_size=300))
def test_names_are_printable_and_short(value: bytes) -> None:
    name = agent_name(value)
    assert len(name) <= 64
    assert name.isprintable()
    assert bool(name) == bool(value)


def test_long_names_stay_apart() -> None:
    names = {agent_name(b"x" * 100 + b"%d" % number) for number in range(100)}
    assert len(names) == 100
    assert {len(name) for name in names} == {64}
