"""The search finds what a full sweep finds, with a tenth of its measurements."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_costs import Cost, searched, swept

from isochrone.optimize.profiling.search.search import Point, Search
from isochrone.optimize.profiling.search.space import Configuration, doublings, make_space

MICROSECOND = 1e3

costs = st.builds(
    Cost,
    cores=st.sampled_from([2, 4, 8, 16, 32]),
    fixed=st.floats(5 * MICROSECOND, 5000 * MICROSECOND),
    row=st.floats(0.5 * MICROSECOND, 3000 * MICROSECOND),
    serial=st.floats(0.0, 1.0),
    contention=st.floats(0.0, 1.5),
    cached_rows=st.sampled_from([1 << 30, 64]),
    exclusive=st.sampled_from([False, False, False, True]),
)


@pytest.mark.long
@settings(max_examples=100)
@given(costs, st.sampled_from([32, 64, 128]), st.floats(1.3, 40.0), st.integers(0, 1000))
def test_with_an_slo_it_is_within_a_tenth_of_a_full_sweep(
    cost: Cost, max_batch_size: int, slack: float, seed: int
) -> None:
    """The grid: batches 1, 2, 4, … to 32, 64 or 128; threads 1, 2, 4, … to the cores; instances 1, 2, 3, … to the cores
    and at least to 5. That is 60 to 1,536 points. The SLO is some multiple of the lowest latency."""
    space = make_space(max_batch_size, cost.cores, has_threads=True, most_instances=1000)
    slo = slack * min(cost.point(each).value.latency_ns for each in space.sweep())
    found, taken = searched(Search(space, slo), cost, random.Random(seed))
    wanted = swept(space, cost, slo)
    assert taken <= max(8, len(space.sweep()) // 10)
    assert found.value.latency_ns <= slo * 1.03  # the noise of one measurement
    assert found.rows_per_second >= 0.9 * wanted.rows_per_second


@pytest.mark.long
@settings(max_examples=100)
@given(costs, st.sampled_from([32, 64, 128]), st.integers(0, 1000))
def test_without_an_slo_it_finds_nearly_the_highest_throughput(cost: Cost, max_batch_size: int, seed: int) -> None:
    space = make_space(max_batch_size, cost.cores, has_threads=True, most_instances=1000)
    found, taken = searched(Search(space), cost, random.Random(seed))
    highest = max(cost.point(each).rows_per_second for each in space.sweep())
    assert taken <= max(8, len(space.sweep()) // 10)
    assert found.rows_per_second >= 0.9 * highest


early_caches = st.builds(
    Cost,
    cores=st.sampled_from([2, 4, 8, 16]),
    fixed=st.floats(5 * MICROSECOND, 5000 * MICROSECOND),
    row=st.floats(0.5 * MICROSECOND, 3000 * MICROSECOND),
    serial=st.floats(0.0, 1.0),
    contention=st.floats(0.0, 1.5),
    cached_rows=st.just(16),
    exclusive=st.sampled_from([False, False, False, True]),
)


@pytest.mark.long
@settings(max_examples=100)
@given(early_caches, st.sampled_from([32, 64, 128]), st.integers(0, 1000))
def test_where_rows_cost_more_from_16_on_the_aim_is_missed_by_little(
    cost: Cost, max_batch_size: int, seed: int
) -> None:
    """A known weakness (docs/critique.md): 8 of 500 such searches ended below 0.9 of the best, the worst at 0.877."""
    space = make_space(max_batch_size, cost.cores, has_threads=True, most_instances=1000)
    found, _ = searched(Search(space), cost, random.Random(seed))
    highest = max(cost.point(each).rows_per_second for each in space.sweep())
    assert found.rows_per_second >= 0.8 * highest


def test_a_machine_with_one_core_and_no_batches_needs_one_measurement() -> None:
    space = make_space(0, 1, has_threads=True, most_instances=10)
    cost = Cost(1, 1e6, 1e5, 0.1, 0.0)
    found, taken = searched(Search(space), cost, random.Random(1))
    assert (found.configuration, taken) == (Configuration(1, 1, 1), 1)


def test_an_slo_that_nothing_keeps_gives_the_fastest() -> None:
    space = make_space(64, 4, has_threads=True, most_instances=10)
    cost = Cost(4, 1e6, 1e5, 0.0, 0.0)
    found, _ = searched(Search(space, 1000.0), cost, random.Random(1))
    assert found.configuration == Configuration(1, 4, 1)


def test_ties_go_to_the_smaller_configuration() -> None:
    """Runs of Python code exclude each other: a second instance adds nothing but memory."""
    space = make_space(64, 8, has_threads=False, most_instances=10)
    cost = Cost(8, 1e6, 1e4, 0.0, 0.0, exclusive=True)
    found, _ = searched(Search(space, 1e9), cost, random.Random(1))
    assert found.configuration.instances == 1


def test_memory_limits_the_instances() -> None:
    space = make_space(8, 16, has_threads=True, most_instances=2)
    assert {each.instances for each in space} == {1, 2}


def test_a_space_never_has_more_threads_than_cores() -> None:
    space = make_space(100, 6, has_threads=True, most_instances=10)
    assert space.batches == (1, 2, 4, 8, 16, 32, 64, 100)
    assert space.threads == (1, 2, 4, 6)
    assert all(each.cores <= 6 for each in space)


def test_beyond_a_failure_nothing_is_proposed() -> None:
    space = make_space(64, 2, has_threads=True, most_instances=10)
    search, cost = Search(space), Cost(2, 1e5, 1e4, 0.5, 0.1)
    proposed = []
    while (configuration := search.propose()) is not None:
        proposed.append(configuration)
        if configuration.batch >= 8:
            search.fail(configuration)
        else:
            search.add(cost.point(configuration))
    found = search.found()
    assert found is not None
    assert found.configuration.batch < 8
    assert proposed.count(Configuration(8, 1, 1)) == 1
    assert not any(each.batch > 8 for each in proposed)


def test_a_stall_is_measured_again_and_the_better_measurement_counts() -> None:
    space = make_space(32, 1, has_threads=False, most_instances=1)
    cost, slo = Cost(1, 1e5, 1e4, 0.0, 0.0), 2e6
    search = Search(space, slo)
    stalled: list[Configuration] = []
    while (configuration := search.propose()) is not None:
        point = cost.point(configuration)
        if configuration.batch == 32 and not stalled:
            stalled.append(configuration)
            point = Point(configuration, point.run_ns, 50 * point.run_ns, point.rows_per_second)
        search.add(point)
    found = search.found()
    assert found is not None
    assert stalled == [found.configuration]
    assert found.value.latency_ns <= slo


def test_without_measurements_there_is_no_result() -> None:
    search = Search(make_space(8, 2, has_threads=True, most_instances=2))
    assert search.found() is None
    search.fail(Configuration(1, 1, 1))
    assert search.propose() is None


@pytest.mark.parametrize(
    ("most", "sizes"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_doublings(most: int, sizes: tuple[int, ...]) -> None:
    assert doublings(most) == sizes
