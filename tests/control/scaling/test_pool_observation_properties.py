"""What holds for the observation of a pool, whatever gateways and workers say."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.autoscaler.observation import Observation
from isochrone.control.scaling.measured.pool_observation import PoolMembers, PoolObserver, Shared
from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    FleetReading,
    GatewayCounts,
    ModelConfiguration,
    RequestCounts,
    VersionStatistics,
    WorkerStatistics,
)

MODELS, GATEWAYS, WORKERS = ("m", "n"), ("x", "y"), ("a", "b", "c")

counts = st.integers(0, 10**6)
incarnations = st.sampled_from("12")
requests = st.builds(RequestCounts, counts, counts, counts, st.integers(0, 100))
gateways = st.none() | st.builds(GatewayCounts, incarnations, st.dictionaries(st.sampled_from(MODELS), requests))
batches = st.dictionaries(st.integers(0, 64), st.builds(BatchCounts, counts, st.integers(0, 10**15)), max_size=4)
configurations = st.none() | st.builds(
    ModelConfiguration, st.integers(1, 8), st.sampled_from([(), ("m",), ("n", "n")]), st.booleans()
)
versions = st.builds(VersionStatistics, batches, counts, counts, counts, configurations, counts)
loaded = st.dictionaries(st.sampled_from(MODELS), st.dictionaries(st.sampled_from("12"), versions))
workers = st.none() | st.builds(WorkerStatistics, incarnations, loaded)
steps = st.tuples(
    st.floats(0.001, 100),
    st.dictionaries(st.sampled_from(GATEWAYS), gateways),
    st.dictionaries(st.sampled_from(WORKERS), workers),
)
members = st.builds(
    PoolMembers,
    st.frozensets(st.sampled_from(MODELS)),
    st.lists(st.sampled_from(WORKERS), unique=True).map(tuple),
    st.integers(0, 3),
    st.sampled_from([(), ("spare",)]),
    st.sampled_from([(), ("old",)]),
    st.dictionaries(
        st.sampled_from(MODELS),
        st.builds(Shared, st.lists(st.sampled_from(WORKERS), unique=True).map(tuple), st.integers(2, 4)),
    ),
)
Step = tuple[float, Mapping[str, GatewayCounts | None], Mapping[str, WorkerStatistics | None]]


def observed(course: list[Step], pools: list[PoolMembers], *, is_reversed: bool = False) -> list[Observation]:
    observer, instant, found = PoolObserver(0.2), 0.0, []
    for (elapsed, of_gateways, of_workers), pool in zip(course, pools, strict=False):
        instant += elapsed
        if is_reversed:
            of_gateways = dict(reversed(of_gateways.items()))
            of_workers = dict(reversed(of_workers.items()))
        reading = FleetReading(instant, of_gateways, of_workers)
        found.append(observer.observe(reading, pool, instant + 1, None))
    return found


def figures(observation: Observation) -> list[float]:
    return [
        *(observation.offered or 0.0, observation.refused, observation.queue_wait, observation.age),
        *(*observation.ready, *observation.pending, *observation.standby, *observation.draining),
    ]


@given(st.lists(steps, max_size=6), st.lists(members, min_size=6, max_size=6))
def test_no_figure_is_negative_or_no_number_and_each_worker_has_a_capacity(
    course: list[Step], pools: list[PoolMembers]
) -> None:
    for seen, pool in zip(observed(course, pools), pools, strict=False):
        assert all(isfinite(each) and each >= 0 for each in figures(seen))
        sizes = [len(each) for each in (seen.ready, seen.pending, seen.standby, seen.draining)]
        assert sizes == [len(pool.ready), pool.pending, len(pool.standby), len(pool.draining)]


@given(st.lists(steps, max_size=5), members)
def test_the_order_of_gateways_and_workers_does_not_matter(course: list[Step], pool: PoolMembers) -> None:
    one = observed(course, [pool] * 5)
    other = observed(course, [pool] * 5, is_reversed=True)
    for first, second in zip(one, other, strict=True):
        assert (first.offered is None) == (second.offered is None)
        assert figures(first) == pytest.approx(figures(second))


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=12),
    st.integers(0, 12),
    st.integers(0, 10),
    st.integers(501, 10**9),
)
def test_a_restart_never_gives_a_spike(course: list[int], restart: int, lag: int, start: int) -> None:
    """The load is what arrived, whether the record or the counters show the restart first."""
    observer, pool = PoolObserver(0.2), PoolMembers(frozenset("m"), ("a",))
    total = start
    observer.observe(reading_of(0.0, total, 0), pool, 0.0, None)
    for number, received in enumerate(course):
        total = received if number == restart else total + received
        reading = reading_of(number + 1.0, total, int(number >= restart + lag))
        seen = observer.observe(reading, pool, reading.instant, None)
        assert seen.offered == received


def reading_of(instant: float, received: int, incarnation: int) -> FleetReading:
    return FleetReading(instant, {"x": GatewayCounts(str(incarnation), {"m": RequestCounts(received)})}, {})


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20), st.floats(0.5, 20))
def test_a_missing_page_never_lowers_the_load(course: list[tuple[bool, bool]], interval: float) -> None:
    """Two gateways receive ten requests per second each: the load is twenty, or it is not known."""
    observer, pool = PoolObserver(0.2), PoolMembers(frozenset("m"), ("a",))
    for number, answers in enumerate([(True, True), *course]):
        instant = number * interval
        received = GatewayCounts("1", {"m": RequestCounts(round(1e9 * instant))})
        pages = {name: received if is_read else None for name, is_read in zip(GATEWAYS, answers, strict=True)}
        offered = observer.observe(FleetReading(instant, pages, {}), pool, instant, None).offered
        assert offered is None or offered == pytest.approx(2e9)


@given(st.lists(steps, max_size=5))
def test_the_loads_of_pools_that_share_a_model_add_up_to_no_less(course: list[Step]) -> None:
    """Either pool sees the refusals and the requests that wait of one that cannot serve them."""
    models = frozenset(MODELS)
    whole = observed(course, [PoolMembers(models, ("a", "b"))] * 5)
    first = observed(course, [PoolMembers(models, ("a",), shared=dict.fromkeys(MODELS, Shared(("b",))))] * 5)
    second = observed(course, [PoolMembers(models, ("b",), shared=dict.fromkeys(MODELS, Shared(("a",))))] * 5)
    for all_of_it, part, rest in zip(whole, first, second, strict=True):
        assert (part.refused + rest.refused) >= all_of_it.refused * (1 - 1e-9)
        if all_of_it.offered is None:
            assert part.offered is None
            assert rest.offered is None


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=8))
def test_shares_follow_what_the_workers_of_each_pool_answer(course: list[tuple[int, int]]) -> None:
    """All requests are answered by one pool or the other: the two loads add up to what gateways received."""
    one, other = PoolObserver(0.2), PoolObserver(0.2)
    totals = [0, 0]
    for number, answered in enumerate([(0, 0), *course]):
        totals = [total + each for total, each in zip(totals, answered, strict=True)]
        pages = {name: answers(total) for name, total in zip("ab", totals, strict=True)}
        reading = FleetReading(2.0 * number, {"x": GatewayCounts("1", {"m": RequestCounts(sum(totals))})}, pages)
        seen = one.observe(reading, PoolMembers(frozenset("m"), ("a",), shared={"m": Shared(("b",))}), 0.0, None)
        rest = other.observe(reading, PoolMembers(frozenset("m"), ("b",), shared={"m": Shared(("a",))}), 0.0, None)
        if number:
            assert seen.offered is not None
            assert rest.offered is not None
            assert seen.offered + rest.offered >= sum(answered) / 2 * (1 - 1e-9)
            assert seen.offered >= answered[0] / 2, "what its own workers answer"
            assert rest.offered >= answered[1] / 2


def answers(successes: int) -> WorkerStatistics:
    version = VersionStatistics({1: BatchCounts(successes, 10**6 * successes)}, 0, 0, successes, ModelConfiguration())
    return WorkerStatistics("1", {"m": {"1": version}})
