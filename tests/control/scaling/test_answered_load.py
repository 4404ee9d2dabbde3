"""What workers answer is load, too: streams, shadows and clients that pass no gateway; stages of ensembles are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scaling_readings import Pool, gateway, version, worker

from isochrone.control.scaling.measured.model_shares import ModelShares
from isochrone.control.scaling.measured.pool_observation import PoolMembers, Shared
from isochrone.control.scaling.reading.fleet_counters import (
    GatewayCounts,
    ModelConfiguration,
    RequestCounts,
    WorkerStatistics,
)


def answered(successes: int, failures: int = 0, incarnation: str = "1") -> WorkerStatistics:
    return worker(version({1: 0.001}, executions=successes, failures=failures), incarnation)


def test_requests_within_a_stream_are_load() -> None:
    pool = Pool()
    pool.observe({"x": gateway(0)}, {"a": answered(0)})
    assert pool.observe({"x": gateway(1)}, {"a": answered(200)}).offered == 40
    assert pool.observe({"x": gateway(1001)}, {"a": answered(300)}).offered == 200, "most of them are under way"


def test_refusals_of_gateways_are_added_to_what_workers_answer() -> None:
    pool = Pool()
    pool.observe({"x": gateway(0)}, {"a": answered(0)})
    seen = pool.observe({"x": gateway(10, refused=5)}, {"a": answered(100, failures=50)})
    assert seen.offered == 21, "a failure on a worker may be an attempt that another worker answered"


def test_requests_that_pass_no_gateway_count_with_their_failures() -> None:
    pool = Pool()
    pool.observe({"x": gateway(0)}, {"a": answered(0)})
    assert pool.observe({"x": gateway(0)}, {"a": answered(100, failures=50)}).offered == 30


def test_a_worker_that_is_read_for_the_first_time_adds_nothing_and_a_restarted_one_counts_from_zero() -> None:
    pool = Pool(PoolMembers(frozenset("m"), ("a", "b")))
    pool.observe({"x": gateway(0)}, {"a": answered(0)})
    assert pool.observe({"x": gateway(0)}, {"a": answered(50), "b": answered(10**6)}).offered == 10
    restarted = answered(25, incarnation="2")
    assert pool.observe({"x": gateway(0)}, {"a": restarted, "b": answered(10**6)}).offered == 5
    reloaded = answered(5, incarnation="2")
    assert pool.observe({"x": gateway(0)}, {"a": reloaded, "b": answered(10**6)}).offered == 1


def test_a_silent_worker_keeps_its_rate_for_a_while() -> None:
    pool = Pool()
    pool.observe({"x": gateway(0)}, {"a": answered(0)})
    pool.observe({"x": gateway(0)}, {"a": answered(50)})
    found = [pool.observe({"x": gateway(0)}, {"a": None}).offered for _ in range(4)]
    assert found == [10, 10, 10, 0]
    assert pool.observe({"x": gateway(0)}, {"a": answered(100)}).offered == 2, "what it answered meanwhile"


def test_stages_of_ensembles_are_no_requests() -> None:
    pool = Pool(PoolMembers(frozenset("ms"), ("a",)))

    def page(number: int, configuration: ModelConfiguration | None) -> WorkerStatistics:
        ensemble = version({1: 0.01}, executions=number, configuration=configuration)
        return WorkerStatistics("1", {"m": {"1": ensemble}, "s": {"1": version({1: 0.01}, executions=2 * number)}})

    ensemble = ModelConfiguration(steps=("s", "s"))
    pool.observe({"x": gateway(0)}, {"a": page(1, None)})
    assert pool.observe({"x": gateway(10)}, {"a": page(11, None)}).offered == 2, "any model may be a stage"
    assert pool.observe({"x": gateway(20)}, {"a": page(21, ensemble)}).offered == 2
    assert pool.observe({"x": gateway(21)}, {"a": page(71, ensemble)}).offered == 10, "50 within a stream"


def test_requests_in_flight_make_a_pool_busy_though_none_arrive() -> None:
    pool = Pool()
    assert not pool.observe({"x": gateway(0)}, {"a": answered(0)}).is_busy
    assert pool.observe({"x": gateway(0)}, {"a": replace(answered(0), in_flight=1)}).is_busy
    assert not pool.observe({"x": gateway(0)}, {"a": replace(answered(0), in_flight=0)}).is_busy
    assert pool.observe({"x": gateway(1, waiting=1)}, {"a": answered(0)}).is_busy
    assert not pool.observe({"x": gateway(1)}, {"other": replace(answered(0), in_flight=1)}).is_busy


def test_an_empty_pool_beside_an_overloaded_one_sees_load() -> None:
    pool = Pool(PoolMembers(frozenset("m"), shared={"m": Shared(("gpu",), 2)}))
    pool.observe({"x": gateway(0)}, {"gpu": answered(0)})
    assert pool.observe({"x": gateway(100)}, {"gpu": answered(100)}).offered == 0, "the other pool answers all"
    seen = pool.observe({"x": gateway(200, refused=50)}, {"gpu": answered(150)})
    assert (seen.offered, seen.refused) == (10.0, 5.0)


def test_a_pool_gets_an_equal_share_before_anything_was_answered() -> None:
    pool = Pool(PoolMembers(frozenset("mn"), ("a",), shared={"m": Shared(("b", "c"), 3)}))
    counts = {"m": RequestCounts(0), "n": RequestCounts(0)}
    pool.observe({"x": GatewayCounts("1", counts)})
    counts = {"m": RequestCounts(30), "n": RequestCounts(10)}
    assert pool.observe({"x": GatewayCounts("1", counts)}).offered == pytest.approx(4.0)


def test_a_share_moves_a_little_with_each_reading() -> None:
    shares = ModelShares()
    assert shares.share("m", 0.0, 0.0, 2, 2.0, is_pressed=False) == 0.5
    assert shares.share("m", 10.0, 30.0, 2, 2.0, is_pressed=False) == 0.25
    assert 0.25 < shares.share("m", 30.0, 10.0, 2, 2.0, is_pressed=False) < 0.5
    assert shares.share("m", 0.0, 10.0, 2, 1000.0, is_pressed=True) == 0.5
    assert shares.share("m", 0.0, 10.0, 2, 1000.0, is_pressed=False) == pytest.approx(0.0)
