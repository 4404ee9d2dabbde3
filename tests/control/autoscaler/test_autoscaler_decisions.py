"""The autoscaler's decisions, one situation each. Workers have a capacity of 100 requests per second."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from pydantic import ValidationError
from readings import SmallPool, reading

from isochrone.control.autoscaler.autoscaler import Autoscaler
from isochrone.control.autoscaler.decision import Reason
from isochrone.control.autoscaler.observation import Observation
from isochrone.control.autoscaler.settings import AutoscalerSettings
from isochrone.simulate.autoscaling.turning_points import direction_changes

CALM = AutoscalerSettings(has_forecast=False)


def calm_pool(rate: float, settings: AutoscalerSettings = CALM, turns: int = 300) -> SmallPool:
    """A pool that has seen a constant load for long."""
    pool = SmallPool(Autoscaler(settings), ready=max(1, round(rate / 70)))
    for _ in range(turns):
        pool.turn(rate)
    return pool


def test_a_calm_load_gets_what_it_needs_and_little_more() -> None:
    pool = calm_pool(850, turns=4000)
    # Ten would not leave the room that a removal asks for; what the last hours did not need is gone.
    assert pool.sizes[-1] in (10, 11)
    assert len(set(pool.sizes[-100:])) == 1


def test_an_increase_is_decided_at_the_first_readings() -> None:
    pool = calm_pool(500)
    decisions = [pool.turn(2000) for _ in range(3)]
    assert decisions[0].desired > 8
    assert decisions[0].reason is Reason.LOAD
    assert decisions[-1].desired >= 20


def test_a_rise_is_followed_before_it_arrives() -> None:
    pool = calm_pool(500)
    rates = [500 + 10 * second for second in range(0, 60, 5)]
    for rate in rates:
        decision = pool.turn(rate)
    # A start-up time later the load is 500 + 10 * (55 + 120) = 2250.
    assert decision.desired >= 22
    assert decision.inputs.expected == pytest.approx(2250, rel=0.05)


def test_pending_workers_are_not_ordered_twice() -> None:
    pool = calm_pool(500)
    for _ in range(4):
        pool.turn(1000)
    sizes = [pool.turn(1000).desired for _ in range(15)]
    assert pool.starting
    assert max(sizes) == sizes[0]


def test_a_decrease_waits_for_its_window_and_goes_in_steps() -> None:
    pool = calm_pool(2000, turns=3000)
    before = pool.sizes[-1]
    sizes = [pool.turn(500).desired for _ in range(400)]
    # 90 s are 18 readings.
    assert sizes[:17] == [before] * 17
    assert sizes[-1] < before / 2
    changes = [(high, low) for high, low in pairwise(sizes) if low != high]
    assert all(low < high and high - low <= max(1, high // 4) for high, low in changes)


def test_nothing_is_removed_that_the_rest_could_not_take() -> None:
    pool = calm_pool(960)
    # Ten workers would have to take 96 % of their capacity, without room.
    assert min(pool.turn(960).desired for _ in range(200)) > 10


@pytest.mark.parametrize(("rate", "left"), [(60, 1), (80, 2), (250, 4), (1000, 12)])
def test_a_removal_leaves_room_for_one_worker_or_half_of_a_small_load(rate: float, left: int) -> None:
    pool = SmallPool(Autoscaler(CALM), ready=left + 2)
    for _ in range(4000):
        pool.turn(rate)
    # Errors are nearly forgotten. 60 + 30 fit into one worker, 80 + 40 into two, 250 + 100 into four. For ten workers
    # the hysteresis is more than one worker: 1000 + 150.
    assert pool.sizes[-1] == left


def test_the_load_of_now_is_the_mean_of_two_readings() -> None:
    pool = calm_pool(1000)
    assert pool.turn(400).inputs.expected == pytest.approx(700)
    assert pool.turn(400).inputs.expected == pytest.approx(400)


def test_refusals_that_the_capacity_does_not_explain_add_workers() -> None:
    pool = calm_pool(500)
    before = pool.sizes[-1]
    decisions = [pool.turn(500, refused=100.0, queue_wait=0.08) for _ in range(60)]
    assert decisions[-1].desired > before
    assert any(decision.reason is Reason.QUEUE for decision in decisions)
    assert decisions[-1].inputs.capacity < 100


def test_waiting_requests_add_workers() -> None:
    pool = calm_pool(560)
    before = pool.sizes[-1]
    decision = pool.turn(560, queue_wait=0.3)
    assert decision.desired > before
    assert decision.reason is Reason.QUEUE
    assert pool.turn(560, queue_wait=0.05).desired == decision.desired


@pytest.mark.parametrize(
    "others", [{"age": 16.0}, {"refused": float("nan")}, {"queue_wait": float("inf")}, {"standby": (100.0, -1.0)}]
)
def test_stale_and_senseless_readings_hold(others: dict[str, object]) -> None:
    pool = calm_pool(500)
    before = pool.sizes[-1]
    for _ in range(100):
        decision = pool.turn(0.0, **others)
        assert (decision.desired, decision.reason) == (before, Reason.STALE)


def test_a_missing_metric_is_never_zero() -> None:
    pool = calm_pool(500)
    before = pool.sizes[-1]
    for _ in range(200):
        decision = pool.turn(None)
        assert (decision.desired, decision.reason) == (before, Reason.STALE)
    # Nothing was learned from the silence: the window for a decrease begins anew.
    assert [pool.turn(100).desired for _ in range(15)] == [before] * 15


@pytest.mark.parametrize("jump", [-3600.0, -0.001, 0.0, 61.0, 1e9])
def test_a_clock_that_jumps_holds(jump: float) -> None:
    pool = calm_pool(500)
    before = pool.sizes[-1]
    decision = pool.turn(0.0, seconds=jump)
    assert (decision.desired, decision.reason) == (before, Reason.CLOCK)
    assert [pool.turn(500).desired for _ in range(60)] == [before] * 60


def test_a_clock_that_is_no_number_holds() -> None:
    pool = calm_pool(500)
    decision = pool.autoscaler.decide(reading(float("nan"), 0.0, pool.ready))
    assert (decision.desired, decision.reason) == (pool.sizes[-1], Reason.CLOCK)


def test_an_empty_pool_wakes_at_the_first_request_and_sleeps_after_the_idle_time() -> None:
    settings = AutoscalerSettings(has_forecast=False, zero_after_seconds=300.0, min_workers=2)
    pool = calm_pool(150, settings)
    assert pool.sizes[-1] >= 2
    decisions = [pool.turn(0.0) for _ in range(80)]
    asleep = next(number for number, each in enumerate(decisions) if each.desired == 0)
    # The last request came with the reading before: 300 s are 60 readings.
    assert asleep == 59
    assert all(each.desired >= 2 for each in decisions[:asleep])
    assert decisions[-1].reason is Reason.IDLE
    decision = pool.turn(0.2)
    assert (decision.desired, decision.reason) == (2, Reason.WAKE)
    assert pool.turn(0.0).desired == 2


def test_a_pool_that_may_not_be_empty_never_is() -> None:
    pool = calm_pool(150)
    assert min(pool.turn(0.0).desired for _ in range(500)) == 1


def test_an_empty_pool_without_measurements_wakes_as_well() -> None:
    autoscaler = Autoscaler(AutoscalerSettings(zero_after_seconds=60.0))
    assert autoscaler.decide(reading(1.0, 0.0, 0)).desired == 0
    decision = autoscaler.decide(reading(6.0, 1.0, 0))
    assert (decision.desired, decision.reason) == (1, Reason.WAKE)


def test_an_empty_pool_has_workers_before_the_rise_of_every_day() -> None:
    pool = SmallPool(Autoscaler(AutoscalerSettings(zero_after_seconds=600.0)), ready=0, now=0.0)
    by_minute = {}
    for _ in range(3 * 1440):
        minute = int(pool.now // 60) + 1
        offered = 400.0 if 360 <= minute % 1440 < 1080 else 0.0
        by_minute[minute] = pool.turn(offered, seconds=60.0, time_of_day=minute * 60.0 % 86_400)
    third = 2 * 1440
    assert by_minute[third + 350].desired == 0
    assert by_minute[third + 357].desired >= 4
    assert any(by_minute[third + minute].reason is Reason.FORECAST for minute in range(350, 360))


def test_a_pool_at_its_maximum_says_so() -> None:
    pool = calm_pool(500, AutoscalerSettings(has_forecast=False, max_workers=8))
    for _ in range(3):
        decision = pool.turn(5000)
    assert (decision.desired, decision.reason) == (8, Reason.MAXIMUM)
    assert decision.inputs.needed > 40


def test_the_cost_cap_counts_all_workers_and_wins_over_the_minimum() -> None:
    settings = AutoscalerSettings(has_forecast=False, cost_cap=20.0, min_workers=4)
    autoscaler = Autoscaler(settings)
    others = {"standby": (100.0,), "draining": (100.0, 100.0), "cost_per_worker": 2.0}
    decision = autoscaler.decide(reading(1.0, 5000.0, 5, **others))
    # Ten workers may be paid for, three of which do not serve.
    assert (decision.desired, decision.reason) == (7, Reason.COST)
    expensive = autoscaler.decide(reading(6.0, 5000.0, 5, cost_per_worker=9.0))
    assert (expensive.desired, expensive.reason) == (2, Reason.COST)


def test_standby_workers_take_the_place_of_the_margin() -> None:
    without, beside = calm_pool(950), SmallPool(Autoscaler(CALM), ready=14)
    for _ in range(300):
        beside.turn(950, standby=(100.0, 100.0))
    assert beside.sizes[-1] < without.sizes[-1]
    # They serve what comes within the start-up time, not what is there already.
    assert beside.sizes[-1] >= 10


def test_kinds_of_workers_differ_and_the_weakest_leave_first() -> None:
    autoscaler = Autoscaler(CALM)
    decision = autoscaler.decide(reading(1.0, 1000.0, (50.0,) * 10 + (400.0,) * 3))
    # The strong ones alone have 1200; before anything is learned the margin is 22 %: 1220.
    assert decision.inputs.needed == 4
    assert decision.desired == 13


def test_constant_noisy_load_does_not_flap() -> None:
    random = Random(7)
    pool = calm_pool(1000)
    pool.sizes.clear()
    for _ in range(3 * 720):
        pool.turn(max(0.0, random.gauss(1000, 60)))
    assert direction_changes(pool.sizes) <= 4
    assert 11 <= min(pool.sizes) <= max(pool.sizes) <= 17


def test_a_few_workers_under_slow_noise_do_not_flap() -> None:
    random = Random(11)
    pool = SmallPool(Autoscaler(CALM), ready=6)
    away = 0.0
    for _ in range(6 * 720):
        # Correlated over five minutes, with a standard deviation of 4 %.
        away = 0.983 * away + random.gauss(0, 0.0073)
        pool.turn(330 * (1 + away) + random.gauss(0, 10))
    settled = pool.sizes[720:]
    assert direction_changes(settled) == 0
    assert 4 <= min(settled) <= max(settled) <= 6


def test_every_decision_has_its_inputs() -> None:
    decision = Autoscaler(CALM).decide(reading(1.0, 300.0, 4, 1, refused=2.0, standby=(80.0,)))
    inputs = decision.inputs
    assert (inputs.offered, inputs.refused, inputs.ready, inputs.pending, inputs.standby) == (300.0, 2.0, 4, 1, 1)
    assert inputs.total_capacity == 500
    assert inputs.expected == 300
    assert inputs.margin == pytest.approx(66)


def test_settings_are_checked() -> None:
    with pytest.raises(ValidationError, match="min_workers 9 is more than max_workers 8"):
        AutoscalerSettings(min_workers=9, max_workers=8)
    for wrong in ({"min_workers": 0}, {"down_share": 0.0}, {"start_up_seconds": 0.0}, {"cost_cap": -1.0}, {"speed": 1}):
        with pytest.raises(ValidationError):
            AutoscalerSettings(**wrong)


def test_a_pool_that_was_never_used_is_emptied() -> None:
    autoscaler = Autoscaler(AutoscalerSettings(zero_after_seconds=10))
    decisions = [autoscaler.decide(Observation(float(at), offered=0.0, ready=(0.0,))) for at in range(0, 30, 5)]
    assert [(each.desired, each.reason) for each in decisions[:2]] == [(1, Reason.UNMEASURED)] * 2
    assert (decisions[-1].desired, decisions[-1].reason) == (0, Reason.IDLE)
    woken = autoscaler.decide(Observation(31.0, offered=1.0))
    assert (woken.desired, woken.reason) == (1, Reason.WAKE)


def after_refusals(refused: float, queue_wait: float) -> int:
    """Workers of a pool of nine that is offered 700/s, when some are refused for ten minutes."""
    autoscaler, workers = Autoscaler(AutoscalerSettings(has_forecast=False), 9), 9
    for turn in range(300):
        workers = autoscaler.decide(
            Observation(2.0 * turn + 1, 700.0, refused, queue_wait, ready=(100.0,) * workers)
        ).desired
    return workers


def test_refusals_that_workers_do_not_help_add_none() -> None:
    usual = after_refusals(0.0, 0.0)
    assert after_refusals(0.5, 0.0) == usual, "a caller whose deadline nobody can meet"
    assert after_refusals(100.0, 0.0) == usual, "a circuit breaker: nobody waits"
    assert after_refusals(0.5, 0.08) == usual, "one in a thousand"


def test_refusals_of_workers_that_are_full_add_some() -> None:
    assert after_refusals(100.0, 0.08) > after_refusals(0.0, 0.08)


def test_a_pool_with_requests_in_flight_is_not_idle() -> None:
    autoscaler = Autoscaler(AutoscalerSettings(zero_after_seconds=10))
    for at in range(0, 60, 5):
        streaming = autoscaler.decide(Observation(float(at), offered=0.0, ready=(100.0,), is_busy=True))
    assert streaming.desired == 1
    for at in range(60, 80, 5):
        quiet = autoscaler.decide(Observation(float(at), offered=0.0, ready=(100.0,)))
    assert (quiet.desired, quiet.reason) == (0, Reason.IDLE)


def test_a_pool_whose_first_worker_starts_for_long_is_not_emptied() -> None:
    autoscaler = Autoscaler(AutoscalerSettings(zero_after_seconds=10), 0)
    assert autoscaler.decide(Observation(1.0, offered=1.0)).reason is Reason.WAKE
    starting = [autoscaler.decide(Observation(float(at), offered=0.0, pending=(0.0,))) for at in range(2, 100, 5)]
    assert {each.desired for each in starting} == {1}
