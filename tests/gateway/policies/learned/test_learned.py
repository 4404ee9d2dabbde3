"""The learned policy and its guard rails: what it may choose, when it keeps still, and what switches it off."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learned_fleet import START, Stage, weights
from policy_queues import MS, fleet, run, steady

from isochrone.errors import ConfigError
from isochrone.gateway import policies
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.policies.learned.policy import Learned
from isochrone.gateway.policies.prequal.policy import Prequal
from isochrone.gateway.replicas import LoadReport, Replica


def never_control(stage: Stage) -> Stage:
    """For tests of the model's own choices: the draw for the control slice always says no."""
    stage.policy._control = 0.0
    return stage


def test_it_moves_to_the_earliest_answer_in_the_safe_set() -> None:
    stage = never_control(Stage())
    for replica, wait_ms in zip(stage.replicas, (1.5, 0.8, 1.9, 1.0), strict=True):
        stage.tell(replica, load=1, wait_ms=wait_ms)
    assert stage.choose() is stage.replicas[1]
    assert stage.policy.moved + stage.policy.agreed == 1


def test_a_replica_outside_the_safe_set_is_never_chosen_however_good_its_score() -> None:
    # The model likes load, which is absurd; Prequal calls the loaded one unsafe: it would take four times as long.
    stage = never_control(Stage(weights=weights(speed=1.0)))
    stage.tell(stage.replicas[0], load=9, wait_ms=18.0, run_ms=1.0)
    assert all(stage.choose() is not stage.replicas[0] for _ in range(8))


def test_prequals_choice_stands_when_the_gain_is_small() -> None:
    stage = never_control(Stage(weights=weights(margin=0.2, outlook=1.0)))
    stage.tell(stage.replicas[0], load=0, run_ms=1.8)
    for replica in stage.replicas[1:]:
        stage.tell(replica, load=0, run_ms=2.0)
    chosen = stage.choose()
    assert stage.policy.moved == 0
    assert stage.policy.unsure + stage.policy.agreed == 1
    assert chosen in stage.replicas


def test_figures_beyond_those_of_training_leave_the_choice_to_prequal() -> None:
    narrow = weights()
    narrow.ranges["speed"] = (-0.1, 0.1)
    stage = never_control(Stage(weights=narrow))
    # All load reports are far from the 2 ms that were measured.
    for number, replica in enumerate(stage.replicas):
        stage.tell(replica, load=0, run_ms=0.4 + 0.02 * number)
    stage.choose()
    assert stage.policy.moved == 0


def test_a_replica_that_never_answered_is_never_moved_to() -> None:
    stage = never_control(Stage())
    newcomer = fleet(5)[4]
    stage.policy.replicas_changed([*stage.replicas, newcomer])
    newcomer.reported(LoadReport(0, 0, 0, 1 * MS), stage.now)
    stage.policy.reported(newcomer, stage.now)
    for replica in stage.replicas:
        stage.tell(replica, load=0)
    before = stage.policy.moved
    taken = [stage.choose() for _ in range(4)]
    # Prequal may try it. The model has no figures of it and must not.
    assert stage.policy.moved == before or newcomer not in taken


def test_retries_are_left_to_prequal_and_avoid_tried_replicas() -> None:
    stage = Stage()
    for _ in range(20):
        assert stage.choose(avoid=(stage.replicas[0],)) is not stage.replicas[0]
    assert stage.policy.moved == stage.policy.agreed == stage.policy.unsure == 0


def test_a_share_of_requests_stays_on_prequal() -> None:
    stage = Stage(control=0.2, seed=5)
    for _ in range(2000):
        stage.place()
    slices = stage.policy.slices
    control = slices.control.ended + len(slices.control.pending)
    learned = slices.learned.ended + len(slices.learned.pending)
    assert control + learned == 2000
    assert 330 < control < 470


def test_a_slow_decision_is_thrown_away_and_the_model_rests() -> None:
    stage = never_control(Stage(budget_us=50))
    ticks = iter(range(0, 10**12, 60_000))
    stage.policy.timer = lambda: next(ticks)
    stage.tell(stage.replicas[3], load=5, wait_ms=1.0)
    chosen = stage.choose()
    assert stage.policy.over_budget == 1
    assert chosen.load(stage.now) == 0
    stage.choose()
    assert stage.policy.over_budget == 1, "it rests, so nothing was measured"


def test_a_quick_decision_is_kept() -> None:
    stage = never_control(Stage(budget_us=50))
    ticks = iter(range(0, 10**12, 40_000))
    stage.policy.timer = lambda: next(ticks)
    stage.choose()
    assert stage.policy.over_budget == 0


def test_a_worse_p99_switches_it_off_and_raises_one_alert() -> None:
    stage = Stage(seed=3)
    alerts: list[str] = []
    stage.policy.on_alert = alerts.append
    for number in range(30_000):
        # One request in twenty of the learned slice takes ten times as long; none of the control slice.
        slow = number % 20 == 0
        stage.now += MS // 10
        replica = stage.policy.choose(Demand(), stage.now)
        learned = stage.policy._tag == 1
        load = replica.sent()
        stage.policy.sent(replica, stage.now)
        latency = 20 * MS if slow and learned else 2 * MS
        replica.ended(load, latency, False, stage.now + latency)
        stage.policy.ended(replica, latency, False, stage.now + latency)
        if stage.policy.alert:
            break
    assert alerts == [stage.policy.alert]
    assert "p99" in alerts[0]
    assert stage.policy.switched_off == 1
    moved = stage.policy.moved
    for _ in range(200):
        stage.place()
    assert stage.policy.moved == moved, "nothing is re-ranked any more"


def test_failures_of_the_learned_slice_switch_it_off() -> None:
    stage = Stage(seed=4)
    for number in range(30_000):
        stage.now += MS // 10
        replica = stage.policy.choose(Demand(), stage.now)
        failed = stage.policy._tag == 1 and number % 25 == 0
        load = replica.sent()
        stage.policy.sent(replica, stage.now)
        replica.ended(load, 2 * MS, failed, stage.now + 2 * MS)
        stage.policy.ended(replica, 2 * MS, failed, stage.now + 2 * MS)
        if stage.policy.alert:
            break
    assert "failed" in stage.policy.alert


def test_shadow_changes_nothing_and_logs_with_propensities() -> None:
    options: dict[str, Any] = {"weights": weights(), "explore": 0.1}
    shadow, usual = Learned(Random(9), shadow=True, **options), Prequal(Random(9))
    services = [steady(2 * MS)] * 3 + [steady(3 * MS)]
    theirs = run(usual, services, 1000, 3000, seed=2)
    ours = run(shadow, services, 1000, 3000, seed=2)
    assert ours.sent == theirs.sent
    log = shadow.shadow_log
    assert log.seen > 1000
    assert (shadow.counts()["shadowed"], shadow.counts()["shadow_agreed"]) == (log.seen, log.agreed)
    assert 0 < log.agreed < log.seen
    assert len(log.records) == min(log.seen, 1024), "bounded"
    for record in log.records:
        by_lot = 0.1 / record.candidates
        assert record.own_propensity == pytest.approx(0.9 + by_lot)
        assert record.made_propensity == pytest.approx(0.9 + by_lot if record.made == record.own else by_lot)
    assert sum(record.latency_ns is not None for record in log.records) > 900
    assert shadow.slices.learned.pending == []
    assert set(next(iter(log.records)).as_dict()) >= {"made", "own", "latency_ns", "own_propensity"}


def test_no_endpoint_gets_more_than_its_ceiling_by_re_ranking() -> None:
    # One looks four times as fast by its load report, and stays in the safe set by Prequal's slack.
    stage = never_control(Stage(size=8, ceiling=2.0))
    counts: Counter[Replica] = Counter()
    for _ in range(4000):
        for replica in stage.replicas:
            stage.tell(replica, run_ms=0.25 if replica is stage.replicas[0] else 0.6)
        counts[stage.place()] += 1
    assert stage.policy.capped > 100
    # An even share is an eighth; the ceiling twice that, and Prequal's own choices come on top.
    assert 0.2 < counts[stage.replicas[0]] / 4000 < 0.36


def test_a_forgotten_endpoint_is_given_its_floor() -> None:
    # The model never prefers the last replica; the floor gives it requests all the same.
    floors = {}
    for floor in (0.0, 0.4):
        stage = never_control(Stage(size=4, floor=floor, weights=weights(margin=0.0, speed=1.0)))
        counts: Counter[Replica] = Counter()
        for _ in range(3000):
            for replica in stage.replicas:
                stage.tell(replica, run_ms=3.0 if replica is stage.replicas[3] else 2.0)
            counts[stage.place()] += 1
        floors[floor] = counts[stage.replicas[3]]
    assert floors[0.4] > 3000 * 0.4 / 4 * 0.7
    assert floors[0.4] > floors[0.0]


def test_a_little_traffic_is_placed_by_lot_and_refines_within_bounds() -> None:
    given = weights(margin=0.0, outlook=0.5, load=0.2)
    stage = never_control(Stage(weights=given, explore=0.1, step=0.1, drift=0.2, seed=6))
    for _ in range(4000):
        for number, replica in enumerate(stage.replicas):
            stage.tell(replica, load=number, wait_ms=0.3 * number)
        stage.place(latency_ns=int((2 + stage.policy._random.random()) * MS))
    policy = stage.policy
    assert 200 < policy.explored < 600
    assert policy.model.refinements == policy.explored
    assert policy.model.weights != [given.weights[name] for name in given.weights]
    for name, weight in zip(given.weights, policy.model.weights, strict=True):
        assert 0.8 * given.weights[name] - 1e-9 <= weight <= 1.2 * given.weights[name] + 1e-9


def test_a_large_fleet_is_re_ranked_by_probes() -> None:
    policy = Learned(Random(2), weights=weights(margin=0.0, outlook=1.0, load=0.1))
    outcome = run(policy, [steady(2 * MS)] * 20 + [steady(3 * MS)] * 10, 8000, 6000, seed=1)
    assert len(outcome.latencies) == 6000
    assert policy.moved > 100


@pytest.mark.parametrize("event", ["choice", "end", "probe"])
def test_an_end_that_was_put_off_is_accounted_for_at_the_next_event(event: str) -> None:
    stage = Stage(size=24)
    policy = stage.policy
    policy._control = 1.0
    stage.place()
    control = policy.slices.control
    assert control.ended + len(control.pending) == 0, "by probes, the sums are not the request's"
    if event == "choice":
        stage.choose()
    elif event == "end":
        stage.replicas[0].sent()
        stage.replicas[0].ended(1, MS, False, stage.now)
        policy.ended(stage.replicas[0], MS, False, stage.now)
    else:
        (asked, *_) = policy.probes(stage.now)
        stage.tell(asked)
    assert control.ended == 1


def test_an_end_that_never_comes_costs_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isochrone.gateway.policies.learned.policy._MOST_IN_FLIGHT", 100)
    stage = Stage()
    for _ in range(1000):
        stage.now += MS
        stage.policy.sent(stage.choose(), stage.now)
    assert len(stage.policy._in_flight) <= 100


def in_flight_at_one_replica() -> tuple[Stage, Replica, list[int]]:
    """Three requests of the learned slice on one replica, and when they were sent."""
    stage = never_control(Stage(size=2))
    replica = stage.choose()
    sent_at = []
    for _ in range(3):
        stage.now += MS
        stage.tell(next(other for other in stage.replicas if other is not replica), load=9, wait_ms=50)
        stage.tell(replica)
        assert stage.choose() is replica
        replica.sent()
        stage.policy.sent(replica, stage.now)
        sent_at.append(stage.now)
    return stage, replica, sent_at


def test_a_drop_is_counted_for_the_request_that_was_dropped() -> None:
    stage, replica, sent_at = in_flight_at_one_replica()
    replica.dropped()
    stage.policy.dropped(replica, sent_at[1], stage.now + 5 * MS)
    learned = stage.policy.slices.learned
    assert (learned.failed, learned.pending) == (1, [])
    for number in (0, 2):
        replica.ended(1, 4 * MS, False, sent_at[number] + 4 * MS)
        stage.policy.ended(replica, 4 * MS, False, sent_at[number] + 4 * MS)
    stage.policy.catch_up()
    assert learned.failed == 1
    assert learned.ended + len(learned.pending) == 3, "the other two have their own ends"


def test_a_loser_of_a_hedge_is_no_failure_of_the_learned_slice() -> None:
    stage, replica, sent_at = in_flight_at_one_replica()
    for instant in sent_at:
        replica.dropped()
        stage.policy.dropped(replica, instant, stage.now + 5 * MS, unneeded=True)
    stage.policy.catch_up()
    assert stage.policy.slices.learned.ended == 0
    assert not stage.policy._in_flight


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1 << 20)), max_size=150), st.sampled_from([1, 2, 4, 24]))
def test_whatever_happens_it_chooses_a_member(events: list[tuple[int, int]], size: int) -> None:
    policy = Learned(Random(7), explore=0.1)
    replicas, now = fleet(size), START
    members = list(replicas)
    policy.replicas_changed(members)
    under_way: list[tuple[Replica, int, int]] = []
    for event, number in events:
        now += number * 100
        replica = replicas[number % size]
        if event <= 2:
            chosen = policy.choose(Demand(rows=number % 9, deadline=now + number * 50), now)
            assert chosen in members
            under_way.append((chosen, chosen.sent(), now))
            policy.sent(chosen, now)
            policy.probes(now)
        elif event == 3 and under_way:
            ended, load, sent_at = under_way.pop(number % len(under_way))
            if number % 5:
                ended.ended(load, now - sent_at, number % 3 == 0, now)
                policy.ended(ended, now - sent_at, number % 3 == 0, now)
            else:
                ended.dropped()
                policy.dropped(ended, sent_at, now, unneeded=number % 2 == 0)
        elif event == 4:
            replica.reported(LoadReport(number % 7, number % 3, number % 4 * MS, number % 2 * MS), now)
            policy.reported(replica, now)
        elif event == 5:
            members = replicas[: 1 + number % size]
            policy.replicas_changed(members)


def test_the_same_seed_makes_the_same_choices() -> None:
    services = [steady(2 * MS)] * 3 + [steady(4 * MS)]
    first, second = (run(Learned(Random(3)), services, 1200, 3000, seed=4).sent for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("key", "value"),
    [("control", 0.0), ("explore", 0.5), ("step", -1), ("drift", 2), ("floor", 0.9), ("ceiling", 0.5), ("shadow", 1)],
)
def test_the_error_for_a_bad_option_names_it(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        policies.make("learned", Random(0), **{key: value})
    assert caught.value.key == key


def test_the_error_for_a_missing_weights_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        policies.make("learned", Random(0), weights=str(tmp_path / "none.json"))
