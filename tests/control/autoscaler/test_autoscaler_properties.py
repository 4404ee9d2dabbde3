"""What holds for the autoscaler whatever it reads."""

from __future__ import annotations

from copy import deepcopy
from math import inf, isfinite, nan

from hypothesis import given, settings
from hypothesis import strategies as st
from readings import CAPACITY

from isochrone.control.autoscaler.autoscaler import Autoscaler
from isochrone.control.autoscaler.decision import Reason
from isochrone.control.autoscaler.observation import Observation
from isochrone.control.autoscaler.settings import AutoscalerSettings

capacities = st.lists(st.floats(1, 400), max_size=8).map(tuple)
amounts = st.one_of(st.floats(0, 5000), st.sampled_from([0.0, nan, inf, -1.0, 1e300]))
pools = st.builds(
    AutoscalerSettings,
    min_workers=st.integers(1, 4),
    max_workers=st.integers(4, 30),
    cost_cap=st.none() | st.floats(1, 40),
    zero_after_seconds=st.none() | st.floats(1, 60),
    start_up_seconds=st.floats(1, 300),
)
readings = st.builds(
    Observation,
    instant=st.just(0.0),
    offered=st.none() | amounts,
    refused=amounts,
    queue_wait=st.one_of(st.floats(0, 1), st.sampled_from([nan, inf])),
    ready=capacities,
    pending=capacities,
    standby=st.lists(st.floats(1, 400), max_size=3).map(tuple),
    draining=st.lists(st.floats(1, 400), max_size=3).map(tuple),
    age=st.sampled_from([0.0, 1.0, 14.0, 16.0, nan]),
    cost_per_worker=st.floats(0.5, 3),
    time_of_day=st.none() | st.floats(0, 90_000),
)
steps = st.one_of(st.floats(1, 20), st.sampled_from([-100.0, 0.0, 1e6, nan]))
histories = st.lists(st.tuples(steps, readings), min_size=1, max_size=25)


def at(observation: Observation, instant: float, **others: object) -> Observation:
    fields = {name: getattr(observation, name) for name in Observation.__slots__}
    return Observation(**(fields | {"instant": instant} | others))  # type: ignore[arg-type]


@given(pools, histories)
def test_bounds_and_the_cost_cap_hold_whatever_is_read(
    pool: AutoscalerSettings, history: list[tuple[float, Observation]]
) -> None:
    autoscaler, now = Autoscaler(pool), 100.0
    for step, given_reading in history:
        now = now + step if isfinite(now + step) else 100.0
        instant = now if isfinite(step) else step
        observation = at(given_reading, instant)
        decision = autoscaler.decide(observation)
        assert 0 <= decision.desired <= pool.max_workers
        paid = decision.desired + len(observation.standby) + len(observation.draining)
        if pool.cost_cap is not None and decision.desired:
            assert paid * observation.cost_per_worker <= pool.cost_cap + 1e-6
        if pool.zero_after_seconds is None and decision.reason is not Reason.COST:
            assert decision.desired >= pool.min_workers


@settings(max_examples=100)
@given(pools, histories, st.floats(0, 4000), st.floats(0, 4000), st.integers(0, 8), st.integers(0, 8))
def test_more_offered_load_never_wants_fewer_workers(
    pool: AutoscalerSettings,
    history: list[tuple[float, Observation]],
    one: float,
    other: float,
    ready: int,
    pending: int,
) -> None:
    autoscaler, now = Autoscaler(pool), 100.0
    for step, given_reading in history:
        now += step if isfinite(step) and 0 < step < 60 else 5.0
        autoscaler.decide(at(given_reading, now))
    low, high = sorted((one, other))
    twin = deepcopy(autoscaler)
    base = Observation(now + 5, low, ready=(CAPACITY,) * ready, pending=(CAPACITY,) * pending)
    assert autoscaler.decide(base).desired <= twin.decide(at(base, now + 5, offered=high)).desired


@given(st.floats(0, 4000), st.integers(0, 12), st.integers(0, 12))
def test_workers_that_start_count_as_if_they_served(offered: float, ready: int, pending: int) -> None:
    pool = AutoscalerSettings(max_workers=100)
    all_ready = Observation(1.0, offered, ready=(CAPACITY,) * (ready + pending))
    some_start = Observation(1.0, offered, ready=(CAPACITY,) * ready, pending=(CAPACITY,) * pending)
    assert Autoscaler(pool).decide(all_ready).desired == Autoscaler(pool).decide(some_start).desired


@given(histories, st.integers(1, 30))
def test_a_reading_that_holds_changes_nothing(history: list[tuple[float, Observation]], silent: int) -> None:
    autoscaler, now = Autoscaler(AutoscalerSettings(max_workers=1000)), 100.0
    for step, given_reading in history:
        now += step if isfinite(step) and 0 < step < 60 else 5.0
        last = autoscaler.decide(at(given_reading, now))
    for _ in range(silent):
        now += 5
        decision = autoscaler.decide(at(given_reading, now, offered=None))
        assert decision.reason is Reason.STALE
        assert decision.desired == last.desired
