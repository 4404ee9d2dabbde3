"""The load of a pool: silence is no zero, and a pool sleeps only after a while without requests."""

from __future__ import annotations

from isochrone.control.scaling.keda.pool_load import Activity, PoolLoad


def test_a_worker_that_says_nothing_counts_as_one_at_its_target() -> None:
    assert PoolLoad({"a": 10, "b": 0}).total(4.0) == 10
    assert PoolLoad({"a": 10, "b": None}).total(4.0) == 14
    assert PoolLoad({"a": 10, "b": None}).is_known


def test_a_pool_whose_workers_all_say_nothing_has_no_known_load_and_an_empty_one_has_none() -> None:
    assert not PoolLoad({"a": None, "b": None}).is_known
    assert PoolLoad().is_known
    assert PoolLoad().total(4.0) == 0


def test_requests_that_wait_in_gateways_are_load_and_keep_a_pool_awake() -> None:
    assert PoolLoad({}, {"gw": 100}, waiting=7).total(4.0) == 7
    activity = Activity()
    activity.take(PoolLoad({}, {"gw": 100}, waiting=7), 100.0)
    assert activity.is_active(159.0, 60)
    activity.take(PoolLoad({"a": 0}, {"gw": 100}), 170.0)
    assert not activity.is_active(170.0, 60)


def test_requests_in_the_pool_keep_it_active_and_then_it_sleeps() -> None:
    activity = Activity()
    activity.take(PoolLoad({"a": 0}), 1.0)
    assert not activity.is_active(1.0, 60)
    activity.take(PoolLoad({"a": 1, "b": None}), 2.0)
    assert activity.is_active(2.0, 60)
    activity.take(PoolLoad({"a": 0}), 61.0)
    assert activity.is_active(61.0, 60)
    assert not activity.is_active(62.0, 60)


def test_a_request_that_no_worker_could_take_wakes_a_pool() -> None:
    activity = Activity()
    activity.take(PoolLoad({}, {"gw": 0}), 1.0)
    assert not activity.is_active(1.0, 60), "nobody has asked"
    activity.take(PoolLoad({}, {"gw": 1}), 2.0)
    assert activity.is_active(2.0, 60)


def test_a_request_that_arrived_before_the_first_reading_wakes_a_pool_without_workers() -> None:
    connected = Activity()
    connected.take(PoolLoad({}, {"gw": 100}), 1.0)
    assert connected.is_active(1.0, 60), "it may have arrived while KEDA changed from one controller to another"
    connected.take(PoolLoad({}, {"gw": 100}), 61.0)
    assert not connected.is_active(61.0, 60), "once: nothing has come since"
    connected.take(PoolLoad({}, {"gw": 100, "gw-2": 1}), 62.0)
    assert connected.is_active(62.0, 60), "a gateway that answers for the first time"


def test_requests_before_the_first_reading_do_not_keep_idle_workers() -> None:
    activity = Activity()
    activity.take(PoolLoad({"a": 0}, {"gw": 100}), 1.0)
    assert not activity.is_active(1.0, 60)


def test_a_gateway_that_restarts_counts_from_zero_and_one_that_is_silent_changes_nothing() -> None:
    activity = Activity()
    activity.take(PoolLoad({"a": 0}, {"gw": 100}), 1.0)
    activity.take(PoolLoad({}, {"gw": None}), 2.0)
    activity.take(PoolLoad({}, {"gw": 0}), 3.0)
    assert not activity.is_active(3.0, 60)
    activity.take(PoolLoad({}, {"gw": 2}), 4.0)
    assert activity.is_active(4.0, 60)
    restarted = Activity()
    restarted.take(PoolLoad({"a": 0}, {"gw": 100}), 1.0)
    restarted.take(PoolLoad({}, {"gw": 3}), 2.0)
    assert restarted.is_active(2.0, 60), "three since its restart"
