"""Admission: refuses only what no fresh worker can make, finds better workers, and never shuts the door for good."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from isochrone.gateway.placement.admission import NO_ESTIMATE, Admission, AdmissionRules, Rejection
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import FRESH_NS, Endpoint, LoadReport, Replica

MS = 1_000_000
START = 1_000 * MS
RULES = AdmissionRules()


def replica_that(
    *,
    wait_ms: float = 0,
    run_ms: float = 1,
    age_ms: float = 0,
    told: bool = True,
    in_flight: int = 0,
    everybody: int = 0,
) -> Replica:
    """A replica as of ``START``; its endpoint is one that tells its load."""
    replica = Replica(Endpoint(f"worker{id(object())}:8000"))
    replica.endpoint.reports = True
    for _ in range(in_flight):
        replica.sent()
    if told:
        report = LoadReport(everybody or in_flight, 0, wait_ns=int(wait_ms * MS), run_ns=int(run_ms * MS))
        replica.reported(report, START - int(age_ms * MS))
    return replica


def demand_in(ms: float, avoid: tuple[Replica, ...] = ()) -> Demand:
    return Demand(deadline=START + int(ms * MS), avoid=avoid)


def test_without_a_deadline_the_choice_stands() -> None:
    late = replica_that(wait_ms=10_000)
    assert Admission().check([late, replica_that()], late, Demand(), START) is late


def test_switched_off_it_refuses_nothing() -> None:
    late = replica_that(wait_ms=10_000)
    assert Admission(AdmissionRules(enabled=False)).check([late], late, demand_in(1), START) is late


def test_refusal_names_the_best_worker_and_by_how_much_it_misses() -> None:
    worst, best = replica_that(wait_ms=30, run_ms=10), replica_that(wait_ms=20, run_ms=5)
    door = Admission()
    refusal = door.check([worst, best], worst, demand_in(20), START)
    assert isinstance(refusal, Rejection)
    assert refusal.best is best
    assert refusal.expected_ns == 25 * MS + RULES.margin_ns
    assert refusal.missed_by_ns == 5 * MS + RULES.margin_ns
    assert best.endpoint.address in refusal.message
    assert "5.200 ms" in refusal.message
    assert (door.rejections, door.moved, door.probes) == (1, 0, 0)


def test_a_late_choice_is_replaced_by_the_one_with_most_time_to_spare() -> None:
    late, fits, fits_better = replica_that(wait_ms=50), replica_that(wait_ms=8), replica_that(wait_ms=2)
    door = Admission()
    assert door.check([late, fits, fits_better], late, demand_in(10), START) is fits_better
    assert door.moved == 1


def test_those_tried_already_are_no_way_out() -> None:
    late, tried = replica_that(wait_ms=50), replica_that()
    assert isinstance(Admission().check([late, tried], late, demand_in(10, avoid=(tried,)), START), Rejection)


def test_a_request_that_must_not_move_is_refused_although_others_are_free() -> None:
    late = replica_that(wait_ms=50)
    assert isinstance(Admission().check([], late, demand_in(10), START), Rejection)


def test_a_passed_deadline_is_refused_whoever_is_silent() -> None:
    silent = replica_that(told=False)
    refusal = Admission().check([silent], silent, demand_in(-3), START)
    assert isinstance(refusal, Rejection)
    assert refusal.missed_by_ns == 3 * MS + RULES.margin_ns


def test_the_margin_decides_when_the_rest_is_exact() -> None:
    replica = replica_that(wait_ms=4, run_ms=6)
    on_time = Demand(deadline=START + 10 * MS + RULES.margin_ns)
    too_short = Demand(deadline=START + 10 * MS + RULES.margin_ns - 1)
    assert Admission().check([replica], replica, on_time, START) is replica
    assert isinstance(Admission().check([replica], replica, too_short, START), Rejection)


def test_what_was_sent_since_counts() -> None:
    idle = replica_that(run_ms=4)
    busy = replica_that(run_ms=4, wait_ms=12, everybody=6)
    door = Admission()
    for replica in (idle, busy):
        before = door.expected_ns(replica, START)
        replica.sent()
        replica.sent()
        per_request = (door.expected_ns(replica, START) - before) / 2
        # Idle: a share of a run. With a queue: what each of those there costs by the worker's word.
        assert per_request == (RULES.sent_share * 4 * MS if replica is idle else 2 * MS)


def test_a_flood_between_two_words_is_stopped() -> None:
    replica = replica_that(run_ms=4)
    door, admitted = Admission(), 0
    while not isinstance(door.check([replica], replica, demand_in(10), START), Rejection):
        replica.sent()
        admitted += 1
        assert admitted < 100
    assert admitted == 6  # 4 ms of its own, 1 ms for each before it, 0.2 ms for the way


def test_waiting_work_is_worked_off_in_proportion_to_our_part() -> None:
    alone = replica_that(wait_ms=40, in_flight=4, age_ms=20)
    shared = replica_that(wait_ms=40, in_flight=1, everybody=4, age_ms=20)
    door = Admission()
    assert door.expected_ns(alone, START) == 21 * MS
    assert door.expected_ns(shared, START) == 36 * MS


def test_failures_do_not_make_a_worker_late() -> None:
    replica = replica_that(run_ms=5)
    load = replica.sent()
    replica.ended(load, MS, True, START)
    replica.reported(LoadReport(0, 0, run_ns=5 * MS), START)
    assert Admission().expected_ns(replica, START) == 5 * MS


def test_old_words_are_not_believed() -> None:
    old = replica_that(wait_ms=10_000, age_ms=FRESH_NS / MS + 1)
    assert Admission().expected_ns(old, START) == NO_ESTIMATE
    assert Admission().check([old], old, demand_in(1), START) is old


def test_a_silent_idle_worker_is_asked_before_a_refusal() -> None:
    late, silent = replica_that(wait_ms=50), replica_that(told=False)
    assert Admission().check([late, silent], late, demand_in(10), START) is silent


def test_a_worker_that_owes_answers_and_is_silent_is_left_alone() -> None:
    late, stopped = replica_that(wait_ms=50), replica_that(told=False, in_flight=2)
    assert isinstance(Admission().check([late, stopped], late, demand_in(10), START), Rejection)


def test_a_server_that_never_tells_is_judged_by_what_was_seen() -> None:
    late, plain = replica_that(wait_ms=50), replica_that(told=False, in_flight=2)
    plain.endpoint.reports = False
    load = plain.sent()
    plain.ended(load, 6 * MS, False, START)
    assert Admission().check([late, plain], late, demand_in(10), START) is plain
    assert isinstance(Admission().check([late, plain], late, demand_in(5), START), Rejection)


def test_a_refused_stream_lets_a_probe_through_now_and_then() -> None:
    fleet = [replica_that(wait_ms=500, run_ms=10, everybody=50) for _ in range(4)]
    door = Admission()
    admitted_at = []
    for step in range(900):  # 0.1 ms apart: 90 ms, in which no word gets too old
        now = START + step * MS // 10
        answer = door.check(fleet, fleet[0], Demand(deadline=now + 20 * MS), now)
        if not isinstance(answer, Rejection):
            admitted_at.append(step)
            answer.reported(answer.report, now)
    assert admitted_at[0] == RULES.probe_after_ns * 10 // MS
    gaps = [after - before for before, after in pairwise(admitted_at)]
    assert set(gaps) == {RULES.probe_every_ns * 10 // MS}
    assert door.probes == len(admitted_at) == 9


def test_a_probe_goes_to_the_worker_that_was_silent_longest() -> None:
    fleet = [replica_that(wait_ms=500, everybody=50, age_ms=age) for age in (3, 40, 5)]
    assert Admission().check(fleet, fleet[0], demand_in(10), START) is fleet[1]


def test_fresh_news_needs_no_probe() -> None:
    replica = replica_that(wait_ms=500, everybody=50)
    door = Admission()
    for step in range(1_000):
        now = START + step * MS
        replica.reported(replica.report, now)
        assert isinstance(door.check([replica], replica, Demand(deadline=now + 20 * MS), now), Rejection)
    assert door.probes == 0


def test_in_a_large_fleet_the_one_that_can_make_it_is_found_and_stays_found() -> None:
    fleet = [replica_that(wait_ms=500, everybody=50) for _ in range(1_000)]
    able = fleet[777] = replica_that()
    door = Admission(AdmissionRules(probe_after_ns=FRESH_NS))
    looks = 0
    while isinstance(door.check(fleet, fleet[0], demand_in(10), START), Rejection):
        looks += 1
    assert looks <= 1_000 / (RULES.sample - 1) + 1
    assert all(door.check(fleet, fleet[0], demand_in(10), START) is able for _ in range(200))


WORDS = st.builds(
    replica_that,
    wait_ms=st.sampled_from([0, 1, 5, 20, 80]),
    run_ms=st.sampled_from([0.5, 3, 10]),
    age_ms=st.sampled_from([0, 1, 50, 101]),
    told=st.booleans(),
    in_flight=st.integers(0, 3),
    everybody=st.integers(0, 9),
)


@given(
    fleet=st.lists(WORDS, min_size=1, max_size=16),
    steps=st.lists(st.tuples(st.floats(0.1, 60), st.integers(0, 15), st.integers(0, 5)), min_size=1, max_size=30),
)
def test_never_refuses_what_a_fresh_worker_can_make(fleet: list[Replica], steps: list[tuple[float, int, int]]) -> None:
    door, now = Admission(), START
    for deadline_ms, choice, passed_ms in steps:
        now += passed_ms * MS
        demand = Demand(deadline=now + int(deadline_ms * MS))
        chosen = fleet[choice % len(fleet)]
        limit = deadline_ms * MS - RULES.margin_ns
        expected = {replica: door.expected_ns(replica, now) for replica in fleet}
        answer = door.check(fleet, chosen, demand, now)
        if isinstance(answer, Rejection):
            # Nobody with fresh word is in time, and the one named is the least late of them.
            assert expected[chosen] != NO_ESTIMATE
            fresh = [value for value in expected.values() if value != NO_ESTIMATE]
            assert min(fresh) > limit - 1
            assert expected[answer.best] == min(fresh)
            assert answer.missed_by_ns >= 0
        else:
            if 0 <= expected[chosen] <= limit - 1:
                assert answer is chosen
            answer.sent()
