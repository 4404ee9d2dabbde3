"""Deadlines of tokens: workers that can keep them are preferred, and a request that none can keep is rejected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import NEVER
from isochrone.gateway.placement.admission import Admission, AdmissionRules, Rejection
from isochrone.gateway.placement.token_estimates import token_estimate
from isochrone.gateway.policies.base import Demand, TokenDeadlines
from isochrone.gateway.replicas import FRESH_NS, Endpoint, EndpointReport, LoadReport, Replica

MS = 1_000_000
START = 1_000 * MS


def replica_that(
    *, first_ms: float = 1, least_ms: float = 1, between_ms: float = 1, age_ms: float = 0, in_flight: int = 0
) -> Replica:
    """A replica of a model that generates, as of ``START``. ``between_ms`` 0: its worker does not report that."""
    replica = Replica(Endpoint(f"worker{id(object())}:8000"))
    replica.endpoint.reports = True
    report = LoadReport(
        in_flight,
        0,
        wait_ns=int(first_ms * MS),
        inter_token_ns=int(between_ms * MS),
        least_wait_ns=int(min(least_ms, first_ms) * MS),
    )
    replica.reported(report, START - int(age_ms * MS))
    return replica


def asking(first_ms: float = 0, between_ms: float = 0, **others: int) -> Demand:
    first_by = START + int(first_ms * MS) if first_ms else NEVER
    return Demand(**others, tokens=TokenDeadlines(first_by, int(between_ms * MS)))  # type: ignore[arg-type]


def test_a_worker_that_keeps_both_is_taken() -> None:
    chosen, other = replica_that(first_ms=50, between_ms=9), replica_that()
    door = Admission()
    assert door.check([chosen, other], chosen, asking(60, 10), START) is chosen
    assert (door.moved, door.rejections) == (0, 0)


@pytest.mark.parametrize("demand", [asking(between_ms=10), asking(first_ms=20), asking(20, 10)])
def test_another_that_keeps_them_is_preferred(demand: Demand) -> None:
    loaded, far, idle = (replica_that(first_ms=first, between_ms=first) for first in (80, 40, 5))
    door = Admission()
    assert door.check([loaded, far, idle], loaded, demand, START) is idle
    assert door.moved == 1


def test_of_those_that_keep_them_the_soonest_is_taken() -> None:
    late, soon, sooner = (
        replica_that(between_ms=30),
        replica_that(first_ms=8),
        replica_that(first_ms=4, between_ms=9),
    )
    assert Admission().check([late, soon, sooner], late, asking(20, 10), START) is sooner


def test_a_deadline_between_tokens_that_nobody_can_keep() -> None:
    worst, best = replica_that(between_ms=50), replica_that(between_ms=30)
    door = Admission()
    refusal = door.check([worst, best], worst, asking(between_ms=10), START)
    assert isinstance(refusal, Rejection)
    assert refusal.best is best
    assert "the deadline between tokens" in refusal.message
    assert "30.000 ms, which misses it by 20.000 ms" in refusal.message
    assert (door.rejections, door.moved) == (1, 0)


def test_a_first_token_that_is_late_whatever_the_prompt() -> None:
    worst, best = replica_that(first_ms=90, least_ms=80), replica_that(first_ms=70, least_ms=60)
    refusal = Admission(AdmissionRules(margin_ns=MS)).check([worst, best], worst, asking(50), START)
    assert isinstance(refusal, Rejection)
    assert "the deadline of the first token" in refusal.message
    assert (refusal.expected_ns, refusal.missed_by_ns) == (61 * MS, 11 * MS)
    # The request's own deadline holds for the first token, too.
    whole = Demand(deadline=START + 50 * MS, tokens=TokenDeadlines(NEVER, 1000 * MS))
    assert isinstance(Admission().check([worst, best], worst, whole, START), Rejection)


def test_a_first_token_that_a_short_prompt_would_have_in_time_is_for_the_worker_to_decide() -> None:
    chosen, sooner = replica_that(first_ms=90), replica_that(first_ms=80)
    assert Admission().check([chosen, sooner], chosen, asking(50), START) is sooner
    assert Admission().check([chosen], chosen, asking(50), START) is chosen


def test_requests_sent_since_the_report_delay_the_first_token() -> None:
    busy, idle = replica_that(first_ms=20, in_flight=1), replica_that(first_ms=30)
    busy.sent()
    assert Admission().check([busy, idle], busy, asking(35), START) is idle


def test_without_a_recent_report_the_choice_stands() -> None:
    for chosen in (
        replica_that(between_ms=50, age_ms=FRESH_NS / MS + 1),
        replica_that(between_ms=0, first_ms=1000),
        Replica(Endpoint("worker:8000")),
    ):
        assert Admission().check([chosen, replica_that()], chosen, asking(5, 5), START) is chosen


def test_one_without_a_recent_report_is_better_than_one_that_is_late() -> None:
    late, silent = replica_that(between_ms=50), Replica(Endpoint("silent:8000"))
    assert Admission().check([late, silent], late, asking(between_ms=10), START) is silent
    silent.sent()
    assert isinstance(Admission().check([late, silent], late, asking(between_ms=10), START), Rejection)
    # It answers requests of other models, and has never told whether this one generates.
    silent.endpoint.heard_at = START
    assert isinstance(Admission().check([late, silent], late, asking(between_ms=10), START), Rejection)


def test_one_whose_stream_has_outlived_its_report_is_better_than_one_that_is_late() -> None:
    late, streaming = replica_that(between_ms=50), replica_that(between_ms=2, age_ms=150, in_flight=1)
    streaming.sent()
    streaming.endpoint.heard_at = START - 3 * MS
    door = Admission()
    assert door.check([late, streaming], late, asking(between_ms=10), START) is streaming
    assert (door.moved, door.probes, door.rejections) == (1, 0, 0)
    # Of two, the one with fewer requests.
    idle = replica_that(age_ms=150)
    assert door.check([late, streaming, idle], late, asking(between_ms=10), START) is idle
    # It has stopped.
    streaming.endpoint.heard_at = START - FRESH_NS - 1
    assert isinstance(door.check([late, streaming], late, asking(between_ms=10), START), Rejection)


def test_now_and_then_a_request_goes_through_to_the_oldest_report() -> None:
    late, older = replica_that(between_ms=50), replica_that(between_ms=60, age_ms=20)
    door = Admission()
    assert door.check([late, older], late, asking(between_ms=10), START) is older
    assert isinstance(door.check([late, older], late, asking(between_ms=10), START), Rejection)
    assert door.probes == 1


def test_what_was_tried_is_not_taken_again() -> None:
    late, tried = replica_that(between_ms=50), replica_that()
    demand = asking(between_ms=10).avoiding((tried,))
    assert isinstance(Admission().check([late, tried], late, demand, START), Rejection)


def test_switched_off_it_refuses_nothing() -> None:
    late = replica_that(between_ms=50)
    assert Admission(AdmissionRules(enabled=False)).check([late], late, asking(between_ms=1), START) is late


@given(
    st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100), st.integers(1, 100)), min_size=1, max_size=40),
    st.integers(0, 120),
    st.integers(0, 120),
)
def test_nobody_is_rejected_whom_a_worker_in_sight_could_serve(
    workers: list[tuple[int, int, int]], first_ms: int, between_ms: int
) -> None:
    replicas = [replica_that(first_ms=first, least_ms=least, between_ms=between) for first, least, between in workers]
    rules = AdmissionRules(margin_ns=0, sample=64)
    demand = asking(first_ms, between_ms)
    verdict = Admission(rules).check(replicas, replicas[0], demand, START)
    keeping = [
        (first, between)
        for first, _, between in workers
        if (not first_ms or first <= first_ms) and (not between_ms or between <= between_ms)
    ]
    if keeping:
        assert isinstance(verdict, Replica)
        assert not first_ms or verdict.report.wait_ns <= first_ms * MS
        assert not between_ms or verdict.report.inter_token_ns <= between_ms * MS
    elif isinstance(verdict, Rejection):
        assert all(
            (first_ms and min(least, first) > first_ms) or (between_ms and between > between_ms)
            for first, least, between in workers
        )


class TestProbes:
    """A probe's report is of the whole worker: it can only shorten what is known of a model."""

    def probed(self, replica: Replica, report: LoadReport, at: int = START + MS) -> LoadReport:
        replica.endpoint.last_report = EndpointReport(replica.endpoint, report, at)
        replica.endpoint.last_report_at = at
        replica.take_report()
        return replica.report

    def test_times_that_have_become_shorter(self) -> None:
        probe = LoadReport(3, 1, wait_ns=5 * MS, inter_token_ns=4 * MS)
        report = self.probed(replica_that(first_ms=20, least_ms=10, between_ms=8), probe)
        assert report == LoadReport(3, 1, wait_ns=5 * MS, inter_token_ns=4 * MS, least_wait_ns=5 * MS)

    def test_times_of_other_models(self) -> None:
        probe = LoadReport(3, 1, wait_ns=500 * MS, inter_token_ns=400 * MS)
        report = self.probed(replica_that(first_ms=20, least_ms=10, between_ms=8), probe)
        assert report == LoadReport(3, 1, wait_ns=20 * MS, inter_token_ns=8 * MS, least_wait_ns=10 * MS)

    def test_a_worker_that_reports_no_times_of_tokens(self) -> None:
        report = self.probed(replica_that(first_ms=20, least_ms=10, between_ms=8), LoadReport(3, 1))
        assert report == LoadReport(3, 1, wait_ns=20 * MS, inter_token_ns=8 * MS, least_wait_ns=10 * MS)

    @pytest.mark.parametrize(
        "probe",
        [
            LoadReport(3, 1, wait_ns=500 * MS, inter_token_ns=400 * MS),
            LoadReport(3, 1, wait_ns=500 * MS, inter_token_ns=4 * MS),
            LoadReport(3, 1, wait_ns=5 * MS, inter_token_ns=400 * MS),
            LoadReport(3, 1),
        ],
    )
    def test_old_times_stay_old(self, probe: LoadReport) -> None:
        late, other = replica_that(between_ms=50), replica_that(first_ms=20, between_ms=8)
        now = START + FRESH_NS + MS
        self.probed(other, probe, now - 2 * MS)
        assert other.reported_at == now - 2 * MS
        assert token_estimate(other, START + FRESH_NS) is not None
        assert token_estimate(other, now) is None
        # It is asked as one that has told nothing of tokens.
        late.reported(late.report, now)
        assert Admission().check([late, other], late, asking(between_ms=1), now) is other

    @pytest.mark.parametrize("shorter_ms", [0, 3])
    def test_times_that_hold_still_are_new(self, shorter_ms: int) -> None:
        replica, now = replica_that(first_ms=20, between_ms=8), START + FRESH_NS + MS
        self.probed(replica, LoadReport(1, 0, wait_ns=20 * MS, inter_token_ns=(8 - shorter_ms) * MS), now - 2 * MS)
        estimate = token_estimate(replica, now)
        assert estimate is not None
        assert estimate.between_ns == (8 - shorter_ms) * MS

    @pytest.mark.parametrize("wait_ns", [0, MS])
    def test_a_model_that_does_not_generate(self, wait_ns: int) -> None:
        report = self.probed(Replica(Endpoint("worker:8000")), LoadReport(0, 0, wait_ns=wait_ns, inter_token_ns=MS))
        assert report.inter_token_ns == 0
