"""The load that gateways receive: restarts make no spikes, silence is no zero, and a pool without workers wakes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scaling_readings import Pool, gateway

from isochrone.control.scaling.measured.pool_observation import PoolMembers
from isochrone.control.scaling.reading.fleet_counters import FleetReading, GatewayCounts, RequestCounts

EMPTY = PoolMembers(frozenset("m"))


def test_the_load_is_what_gateways_received_between_two_readings() -> None:
    pool = Pool()
    assert pool.observe({"x": gateway(100), "y": gateway(40)}).offered is None, "the age of the counters is not known"
    seen = pool.observe({"x": gateway(150, refused=5), "y": gateway(50)})
    assert (seen.offered, seen.refused, seen.age) == (12.0, 1.0, 0.5)
    assert pool.observe({"x": gateway(150, refused=5), "y": gateway(50)}).offered == 0


def test_no_gateway_says_nothing_about_the_load() -> None:
    pool = Pool()
    pool.observe({"x": gateway(100)})
    assert pool.observe({"x": gateway(150)}).offered == 10
    assert pool.observe({}).offered is None
    assert pool.observe({"x": gateway(200)}).offered == 5, "it has registered again: the mean of both intervals"


def test_a_restarted_gateway_counts_from_zero_whether_its_record_says_so_or_not() -> None:
    pool = Pool()
    pool.observe({"x": gateway(1000)})
    assert pool.observe({"x": gateway(30, "2")}).offered == 6
    assert pool.observe({"x": gateway(20, "2")}).offered == 4, (
        "the process was restarted, its record is not yet renewed"
    )
    assert pool.observe({"x": gateway(45, "3")}).offered == 5, "and now it is: the same restart"
    assert pool.observe({"x": gateway(2000, "3")}, after=1).offered == 1955


def test_a_model_that_a_gateway_forgot_does_not_make_the_others_new() -> None:
    pool = Pool(PoolMembers(frozenset("mn"), ("a",)))
    pool.observe({"x": GatewayCounts("1", {"m": RequestCounts(1000), "n": RequestCounts(1000)})})
    assert pool.observe({"x": GatewayCounts("1", {"m": RequestCounts(1010)})}).offered == 2
    again = GatewayCounts("1", {"m": RequestCounts(1010), "n": RequestCounts(5)})
    assert pool.observe({"x": again}).offered == 1


def test_a_silent_gateway_keeps_its_rate_for_a_while_and_then_the_load_is_not_known() -> None:
    pool = Pool()
    pool.observe({"x": gateway(0), "y": gateway(0)})
    pool.observe({"x": gateway(50), "y": gateway(100)})
    ages = []
    for expected in (30.0, 30.0, 30.0, None):
        seen = pool.observe({"x": gateway(50 + 50 * (len(ages) + 1)), "y": None})
        assert seen.offered == expected
        ages.append(seen.age)
    assert ages == [5.5, 10.5, 15.5, 0.5]
    assert pool.observe({"x": gateway(300), "y": gateway(100 + 5 * 25)}).offered == 15, "what it received meanwhile"


def test_a_gateway_that_has_never_answered_leaves_the_load_unknown() -> None:
    pool = Pool()
    pool.observe({"x": gateway(0)})
    assert pool.observe({"x": gateway(50), "y": None}).offered is None
    assert pool.observe({"x": gateway(100), "y": gateway(70)}).offered == 10, "of unknown age"
    assert pool.observe({"x": gateway(100), "y": None}).offered is None, "it has no rate to carry"


def test_gateways_that_all_answer_for_the_first_time_are_no_load_of_zero() -> None:
    pool = Pool()
    pool.observe({"x": gateway(0)})
    pool.observe({"x": gateway(50)})
    assert pool.observe({"y": gateway(70)}).offered is None


def test_requests_that_were_turned_away_by_quotas_are_no_load() -> None:
    pool = Pool()
    pool.observe({"x": gateway(100, turned_away=50)})
    assert pool.observe({"x": gateway(200, turned_away=125)}).offered == 5


def test_a_pool_without_workers_sees_requests_from_before_the_first_reading_as_one() -> None:
    pool = Pool(EMPTY)
    assert pool.observe({"x": gateway(1_000_000)}).offered is None
    assert pool.observe({"x": gateway(1_000_000)}).offered == pytest.approx(0.2)
    assert pool.observe({"x": gateway(1_000_000)}).offered == 0, "once"
    assert pool.observe({"x": gateway(1_000_000), "y": gateway(3)}).offered == pytest.approx(0.2)
    assert pool.observe({"x": gateway(1_000_000), "y": gateway(3)}).offered == 0


def test_requests_that_wait_are_load_while_no_worker_is_ready_and_are_not_counted_twice() -> None:
    pool = Pool(EMPTY)
    pool.observe({"x": gateway(0)})
    assert pool.observe({"x": gateway(10, waiting=10)}).offered == 2, "received counts them already"
    assert pool.observe({"x": gateway(10, waiting=10)}).offered == 2, "they are still there"
    pool.members = replace(EMPTY, pending=1)
    assert pool.observe({"x": gateway(10, waiting=10)}).offered == 2
    pool.members = replace(EMPTY, ready=("a",))
    assert pool.observe({"x": gateway(10, waiting=10)}).offered == 0


def test_a_silent_gateway_does_not_keep_a_pool_without_workers_asleep() -> None:
    pool = Pool(EMPTY)
    pool.observe({"x": gateway(0), "y": None})
    assert pool.observe({"x": gateway(10, waiting=10), "y": None}).offered == 2
    pool.members = replace(EMPTY, pending=4)
    assert pool.observe({"x": gateway(10, waiting=10), "y": None}).offered is None, "no reason to start fewer"


def test_a_reading_that_is_no_newer_is_not_counted_again() -> None:
    pool = Pool()
    pool.observe({"x": gateway(0)})
    pool.observe({"x": gateway(50)})
    old = FleetReading(pool.instant, {"x": gateway(50)}, {})
    assert pool.observer.observe(old, pool.members, pool.instant + 3, None).offered == 10
    assert pool.observer.observe(old, pool.members, pool.instant + 3, None).age == 3


def test_rates_are_over_the_time_between_the_arrivals_of_pages() -> None:
    pool = Pool()
    pool.observe({"x": replace(gateway(0), instant=1005.9)})
    seen = pool.observe({"x": replace(gateway(50), instant=1010.1)})
    assert seen.offered == pytest.approx(50 / 4.2)


def test_an_unknown_load_names_the_gateways_that_are_the_cause() -> None:
    pool = Pool()
    assert pool.observe({"x": gateway(0)}).problem == "", "it has been read once"
    assert pool.observe({"x": gateway(5)}).problem == ""
    assert pool.observe({}).problem == "no gateway is registered"
    pool.instant += 5
    reading = FleetReading(pool.instant, {"x": gateway(9), "z": None, "y": None}, {}, frozenset("y"))
    seen = pool.observer.observe(reading, pool.members, pool.instant, None)
    assert seen.offered is None
    assert seen.problem == "gateway y has no metrics page: set metrics_port; gateway z does not answer"
    assert pool.observe({"x": None}).problem == "", "its last rate holds"
    assert pool.observe({"x": None}, after=20).problem == "gateway x does not answer"
