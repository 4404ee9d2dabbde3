"""Capacities of workers: curves follow what workers do now, and those without measurements are usual ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scaling_readings import Pool, added, gateway, version, worker

from isochrone.control.scaling.measured.pool_observation import PoolMembers
from isochrone.control.scaling.reading.fleet_counters import ModelConfiguration, WorkerStatistics

CURVE = {1: 0.01, 8: 0.04, 32: 0.12}


def test_the_capacity_is_the_rate_at_the_slo_times_the_instances() -> None:
    pool = Pool()
    assert pool.observe({}, {"a": worker(version(CURVE, configuration=ModelConfiguration(2)))}).ready == pytest.approx(
        (400.0,)
    )


def test_lifetime_totals_weigh_less_than_what_a_worker_does_now() -> None:
    pool = Pool()
    total = version({1: 0.01}, executions=1_000_000)
    assert pool.observe({}, {"a": worker(total)}).ready == pytest.approx((100.0,))
    total = added(total, version({1: 0.02}, executions=100))
    (rate,) = pool.observe({}, {"a": worker(total)}).ready
    assert 50 < rate < 52


@pytest.mark.parametrize("rows", [(1, 8, 32), (1,)])
def test_a_slower_worker_shows_it_within_a_minute_also_for_batches_that_do_not_run_now(rows: tuple[int, ...]) -> None:
    pool = Pool()
    total = version(CURVE, executions=1000)
    before = pool.observe({}, {"a": worker(total)}).ready[0]
    for _ in range(24):
        total = added(total, version(CURVE))
        assert pool.observe({}, {"a": worker(total)}).ready == pytest.approx((before,))
    for _ in range(12):
        total = added(total, version({each: CURVE[each] * 1.5 for each in rows}))
        seen = pool.observe({}, {"a": worker(total)})
    assert seen.ready[0] == pytest.approx(before / 1.5, rel=0.08)


def test_a_single_slow_execution_changes_little() -> None:
    pool = Pool()
    total = version({1: 0.01}, executions=1000)
    pool.observe({}, {"a": worker(total)})
    pool.observe({}, {"a": worker(total)}, after=600)
    slow = added(total, version({1: 0.1}, executions=1))
    assert pool.observe({}, {"a": worker(slow)}).ready[0] > 30


def test_a_model_too_slow_for_the_slo_still_takes_its_time() -> None:
    assert Pool().observe({}, {"a": worker(version({1: 0.5, 4: 0.6}))}).ready == (2.0,)


def test_requests_with_many_rows_are_fewer() -> None:
    eight = version({8: 0.04}, executions=10, successes=10)
    assert Pool().observe({}, {"a": worker(eight)}).ready == pytest.approx((25.0,))


def test_batches_of_sizes_that_make_no_sense_do_no_harm() -> None:
    odd = version({0: 0.01, 1: 0.01, 10**9: 0.02})
    assert Pool().observe({}, {"a": worker(odd)}).ready == pytest.approx((100.0,))


def test_models_are_mixed_by_the_time_that_their_requests_take() -> None:
    members = PoolMembers(frozenset("mno"), ("a",))
    pool = Pool(members)
    both = WorkerStatistics("1", {"m": {"1": version({1: 0.01})}, "n": {"1": version({1: 0.05})}})
    assert pool.observe({}, {"a": both}).ready == pytest.approx((2 / (0.01 + 0.05),)), "no mix is known"
    one = gateway(0)
    pool.observe({"x": replace(one, models={})}, {"a": both})
    counts = {model: one.models["m"]._replace(received=count) for model, count in (("m", 90), ("n", 10), ("o", 50))}
    seen = pool.observe({"x": replace(one, models=counts)}, {"a": both})
    assert seen.ready == pytest.approx((1 / (0.9 * 0.01 + 0.1 * 0.05),)), "model o has not been measured"


def test_workers_without_measurements_count_as_usual_ones() -> None:
    members = PoolMembers(frozenset("m"), ("a", "b", "c", "new"), 2, ("warm",), ("old",))
    pool = Pool(members)
    own = {
        "a": worker(version({1: 0.01})),
        "b": worker(version({1: 0.02})),
        "c": worker(version({1: 0.04})),
        "new": WorkerStatistics("1", {}),
        "warm": None,
        "old": worker(version({1: 0.05})),
    }
    seen = pool.observe({}, own)
    assert seen.ready == pytest.approx((100.0, 50.0, 25.0, 50.0))
    assert (seen.pending, seen.standby) == (pytest.approx((50.0, 50.0)), pytest.approx((50.0,)))
    assert seen.draining == pytest.approx((20.0,))
    pool.members = PoolMembers(frozenset("m"), pending=1)
    assert pool.observe({}, {}).pending == pytest.approx((50.0,)), "the last known"


def test_a_pool_whose_workers_were_never_measured_has_no_capacity() -> None:
    pool = Pool(PoolMembers(frozenset("m"), ("a",), 1))
    seen = pool.observe({}, {"a": None})
    assert (seen.ready, seen.pending) == ((0.0,), (0.0,))


def test_a_worker_that_does_not_answer_keeps_its_capacity_and_a_new_process_is_measured_anew() -> None:
    pool = Pool(PoolMembers(frozenset("m"), ("a", "b")))
    fast, slow = worker(version({1: 0.01})), worker(version({1: 0.02}))
    pool.observe({}, {"a": slow, "b": fast})
    assert pool.observe({}, {"a": None, "b": fast}).ready == pytest.approx((50.0, 100.0))
    restarted = WorkerStatistics("2", {"m": {"1": version({})}})
    assert pool.observe({}, {"a": restarted, "b": fast}).ready == pytest.approx((100.0, 100.0))
    restarted = WorkerStatistics("2", {"m": {"1": version({1: 0.005})}})
    assert pool.observe({}, {"a": restarted, "b": fast}).ready == pytest.approx((200.0, 100.0))


def test_a_version_that_was_loaded_again_counts_from_zero() -> None:
    pool = Pool()
    pool.observe({}, {"a": worker(version({1: 0.01}, executions=100))})
    seen = pool.observe({}, {"a": worker(version({1: 0.02}, executions=50, queue_ns=10**9))})
    assert 50 < seen.ready[0] < 60
    assert seen.queue_wait == pytest.approx(1 / 50)


@given(st.lists(st.integers(1, 64), min_size=2, max_size=6))
def test_the_capacity_of_an_ensemble_does_not_fall_with_its_concurrency(course: list[int]) -> None:
    """Its own times grow with the requests beside it; those of the batches of its stages do not."""
    ensemble = ModelConfiguration(steps=("s", "t", "t"))
    pool = Pool(PoolMembers(frozenset("m"), ("a",)))
    totals = {"m": version({}, configuration=ensemble), "s": version({}), "t": version({})}
    for concurrency in course:
        executed = {
            "m": version({1: 0.04 * concurrency}, configuration=ensemble),
            "s": version({1: 0.01}),
            "t": version({1: 0.015}, executions=20),
        }
        totals = {model: added(totals[model], executed[model]) for model in totals}
        page = WorkerStatistics("1", {model: {"1": each} for model, each in totals.items()})
        assert pool.observe({}, {"a": page}).ready == pytest.approx((25.0,))


def test_an_ensemble_with_a_stage_that_is_not_measured_is_not_measured() -> None:
    ensemble = version({1: 0.01}, configuration=ModelConfiguration(steps=("s", "t")))
    page = WorkerStatistics("1", {"m": {"1": ensemble}, "s": {"1": version({1: 0.01})}, "t": {"1": version({})}})
    assert Pool().observe({}, {"a": page}).ready == (0.0,)
    itself = version({1: 0.01}, configuration=ModelConfiguration(steps=("m",)))
    assert Pool().observe({}, {"a": worker(itself)}).ready == (0.0,), "nor is one that names itself"


def test_times_of_streams_are_no_capacity() -> None:
    streams = ModelConfiguration(has_batch_times=False)
    assert Pool().observe({}, {"a": worker(version({1: 3.0}, configuration=streams))}).ready == (0.0,)
    pool = Pool(PoolMembers(frozenset("mn"), ("a",)))
    both = {"m": {"1": version({1: 3.0}, configuration=streams)}, "n": {"1": version({1: 0.01})}}
    assert pool.observe({}, {"a": WorkerStatistics("1", both)}).ready == pytest.approx((100.0,))


@given(st.lists(st.booleans(), min_size=1, max_size=8))
def test_a_new_leader_never_sees_less_than_the_capacity(models: list[bool]) -> None:
    """Models of equal times: those whose instances are not known yet are left out of the mix."""
    page = {
        str(number): {"1": version({1: 0.01}, configuration=ModelConfiguration(8) if is_known else None)}
        for number, is_known in enumerate(models)
    }
    (rate,) = Pool(PoolMembers(frozenset(page), ("a",))).observe({}, {"a": WorkerStatistics("1", page)}).ready
    assert rate == pytest.approx(800.0 if any(models) else 0.0)


def test_instances_that_become_known_count_from_then_on() -> None:
    pool = Pool()
    unknown = version({1: 0.01}, configuration=None)
    assert pool.observe({}, {"a": worker(unknown)}).ready == (0.0,)
    known = unknown._replace(configuration=ModelConfiguration(4))
    assert pool.observe({}, {"a": worker(known)}).ready == pytest.approx((400.0,)), "though nothing has run since"


def test_the_queue_wait_is_that_of_requests_answered_since_the_last_reading_on_ready_workers() -> None:
    pool = Pool(PoolMembers(frozenset("m"), ("a", "b"), draining=("old",)))
    total = version({1: 0.01}, queue_ns=10**12)
    assert pool.observe({}, {"a": worker(total), "b": None}).queue_wait == 0
    total = added(total, version({1: 0.01}, executions=10, queue_ns=2 * 10**9))
    assert pool.observe({}, {"a": worker(total), "b": None, "old": worker(total)}).queue_wait == pytest.approx(0.2)
    waits = {"x": gateway(5, waiting=5)}
    assert pool.observe(waits, {"a": worker(total), "b": None}).queue_wait == pytest.approx(0.2), "requests wait"
    assert pool.observe({"x": gateway(5)}, {"a": worker(total), "b": None}).queue_wait == 0
