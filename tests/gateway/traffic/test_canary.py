"""Canary split: its weight is accurate, agents stick, and an agent that has the canary keeps it as the weight grows."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.traffic.canary import Canary, CanaryRules

AGENTS = [f"robot-{number}".encode() for number in range(20_000)]


def split(weight: float, *, version: str = "2", model: str = "detector", sticky: bool = True, seed: int = 1) -> Canary:
    return Canary(CanaryRules(version=version, stable="1", weight=weight, sticky=sticky), model, Random(seed))


def share_of_canary(canary: Canary, agents: list[bytes]) -> float:
    return sum(canary.version(agent) == "2" for agent in agents) / len(agents)


@pytest.mark.parametrize("weight", [0.01, 0.1, 0.5, 0.93])
@pytest.mark.parametrize("who", ["agents", "nobody", "not sticky"])
def test_the_weight_is_accurate(weight: float, who: str) -> None:
    canary = split(weight, sticky=who != "not sticky")
    agents = [b""] * len(AGENTS) if who == "nobody" else AGENTS
    deviation = (weight * (1 - weight) / len(AGENTS)) ** 0.5
    assert abs(share_of_canary(canary, agents) - weight) < 4 * deviation


@given(
    agents=st.lists(st.binary(min_size=1, max_size=80), min_size=1, max_size=50),
    weights=st.lists(st.floats(0, 1), min_size=2, max_size=8).map(sorted),
)
def test_an_agent_stays_and_keeps_the_canary_as_it_grows(agents: list[bytes], weights: list[float]) -> None:
    before: set[bytes] = set()
    for weight in weights:
        here, elsewhere = split(weight, seed=1), split(weight, seed=2)
        after = {agent for agent in agents if here.version(agent) == "2"}
        assert after == {agent for agent in agents if elsewhere.version(agent) == "2"}
        assert before <= after
        before = after


def test_none_and_all() -> None:
    assert share_of_canary(split(0), AGENTS) == 0
    assert share_of_canary(split(1), [*AGENTS, b""]) == 1


def test_another_version_or_model_draws_other_agents() -> None:
    first = {agent for agent in AGENTS if split(0.5).version(agent) == "2"}
    for other in (split(0.5, version="3"), split(0.5, model="planner")):
        second = {agent for agent in AGENTS if other.version(agent) != "1"}
        assert 0.2 < len(first & second) / len(AGENTS) < 0.3


def test_a_request_may_decide_for_itself() -> None:
    canary = split(0.5)
    assert canary.header == b"x-canary"
    assert {canary.version(agent, b"always") for agent in AGENTS[:100]} == {"2"}
    assert {canary.version(agent, b"never") for agent in AGENTS[:100]} == {"1"}
    assert all(canary.version(agent, b"perhaps") == canary.version(agent) for agent in AGENTS[:100])


def test_without_a_canary_nothing_is_pinned_and_no_header_is_heard() -> None:
    canary = Canary(CanaryRules(), "detector", Random(1))
    assert canary.header == b""
    assert {canary.version(agent, b"always") for agent in AGENTS[:100]} == {""}
    deaf = Canary(CanaryRules(version="2", stable="1", header=""), "detector", Random(1))
    assert deaf.version(b"robot-1", b"always") == "1"
