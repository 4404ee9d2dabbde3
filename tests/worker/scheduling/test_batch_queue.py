"""The queue: order, batches, deadlines and limits, by example, as a state machine, and on a simulated clock."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from queued_requests import LARGE_MLP, ExactCurve, RecordedRequest, best_cycle, plan_of, simulate

from isochrone.clock import MICROSECOND, MILLISECOND, NEVER, SECOND
from isochrone.errors import Cancelled, DeadlineExceeded, QueueFull
from isochrone.worker.request_wrappers import LoggedRequest
from isochrone.worker.scheduling.batch_queue import BatchQueue, LevelPolicy, QueueRules
from isochrone.worker.scheduling.latency_curve import LatencyCurve

MARGIN = QueueRules().margin_ns
CAPACITY = 32 / (LARGE_MLP[32] * MILLISECOND)


def queue_with(
    *,
    curve: LatencyCurve | None = None,
    instances: int = 1,
    max_rows: int = 32,
    **rules: object,
) -> BatchQueue:
    return BatchQueue(
        QueueRules(max_rows=max_rows, **rules),  # type: ignore[arg-type]
        curve or ExactCurve(LARGE_MLP),
        instances,
    )


def push(queue: BatchQueue, now: int, deadline: int = NEVER, **plan: object) -> RecordedRequest:
    request = RecordedRequest(plan_of(**plan), arrived=now, deadline=deadline)  # type: ignore[arg-type]
    queue.push(request, now)
    return request


class QueueMachine(RuleBasedStateMachine):
    """Any order of events: no request is lost or runs twice, and no batch breaks its rules."""

    @initialize(
        max_rows=st.sampled_from([1, 4, 32]),
        levels=st.integers(1, 3),
        delay=st.sampled_from([0, 2 * MILLISECOND]),
        preferred=st.sampled_from([(), (2, 4)]),
        delayed=st.booleans(),
        known=st.booleans(),
    )
    def start(
        self, max_rows: int, levels: int, delay: int, preferred: tuple[int, ...], delayed: bool, known: bool
    ) -> None:
        self.curve = ExactCurve(LARGE_MLP) if known else LatencyCurve(32)
        policies = tuple(
            LevelPolicy(20, 0 if level == 1 else 20 * MILLISECOND, delayed and level == levels)
            for level in range(1, levels + 1)
        )
        preferred = preferred if max_rows > 4 else ()
        self.queue_rules = QueueRules(max_rows, preferred, delay, levels, 1, 50 * MILLISECOND, policies)
        self.queue = BatchQueue(self.queue_rules, self.curve, 1)
        self.now = SECOND
        self.inside: set[RecordedRequest] = set()

    @rule(
        rows=st.integers(1, 4),
        deadline_ms=st.sampled_from([0, 1, 3, 8, 20, 50, None]),
        priority=st.integers(0, 4),
        shape=st.integers(0, 1),
    )
    def push(self, rows: int, deadline_ms: int | None, priority: int, shape: int) -> None:
        deadline = NEVER if deadline_ms is None else self.now + deadline_ms * MILLISECOND
        rows = min(rows, self.queue_rules.max_rows)
        request = RecordedRequest(plan_of(rows, shape=shape, priority=priority), arrived=self.now, deadline=deadline)
        try:
            self.queue.push(request, self.now)
        except (DeadlineExceeded, QueueFull):
            return
        self.inside.add(request)

    @rule(ms=st.sampled_from([0.01, 0.5, 3, 30]))
    def wait(self, ms: float) -> None:
        self.now += int(ms * MILLISECOND)

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.inside:
            data.draw(st.sampled_from(sorted(self.inside, key=lambda request: request.arrived))).cancelled = True

    @rule()
    def take(self) -> None:
        batch = self.queue.take(self.now)
        self._settle_refused()
        assert len(set(batch)) == len(batch)
        rows = sum(request.plan.batch_size for request in batch)
        assert rows <= self.queue_rules.max_rows
        assert len({request.plan.shape_key for request in batch}) <= 1
        for request in batch:
            assert isinstance(request, RecordedRequest)
            self.inside.remove(request)
            assert not request.cancelled
            assert request.dispatched == self.now
            assert self.now < request.deadline
            if self.curve.estimate(rows) and request.deadline != NEVER and len(batch) > 1:
                assert self.now + self.curve.estimate(rows) + self.queue_rules.margin_ns <= request.deadline
        if rows:
            self.queue.occupy([self.now + self.curve.estimate(rows)])

    @rule()
    def free(self) -> None:
        self.queue.occupy([0])

    @rule()
    def drop_late(self) -> None:
        self.queue.drop_late(self.now)
        self._settle_refused()

    @rule()
    def clear(self) -> None:
        left = self.queue.clear()
        assert set(left) == self.inside
        assert len(left) == len(self.inside)
        self.inside.clear()

    def _settle_refused(self) -> None:
        for request, error in self.queue.rejected:
            assert isinstance(request, RecordedRequest)
            self.inside.remove(request)
            assert isinstance(error, Cancelled) == request.cancelled
        self.queue.rejected.clear()

    @invariant()
    def counts(self) -> None:
        if not hasattr(self, "queue"):
            return
        assert self.queue.pending == len(self.inside)
        if not self.queue.pending:
            assert self.queue.rows == 0
        wake = self.queue.wake_at(self.now)
        assert (wake is None) == (not self.inside)
        waiting = [r for r in self.inside if r.deadline != NEVER and self.curve.estimate(r.plan.batch_size)]
        if wake is not None and waiting and wake > self.now:
            # The wait does not make a request late that could still be in time alone.
            latest = min(r.deadline - MARGIN - self.curve.estimate(r.plan.batch_size) for r in waiting)
            assert wake <= latest or latest < self.now


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class TestOrder:
    @given(st.lists(st.integers(20, 500), min_size=1, max_size=40))
    def test_earliest_deadline_first(self, deadlines: list[int]) -> None:
        queue = queue_with(max_rows=1, curve=ExactCurve({1: 0.001}))
        for deadline in deadlines:
            push(queue, 0, deadline * MILLISECOND)
        taken = [queue.take(0)[0].deadline // MILLISECOND for _ in deadlines]
        assert taken == sorted(deadlines)

    def test_equal_deadlines_keep_the_order_of_arrival(self) -> None:
        queue = queue_with(max_rows=4)
        requests = [push(queue, 0) for _ in range(6)]
        assert queue.take(0) == requests[:4]
        assert queue.take(0) == requests[4:]

    def test_a_higher_class_goes_first(self) -> None:
        queue = queue_with(max_rows=1, levels=3, default_level=2, policies=(LevelPolicy(),) * 3)
        low, default, high = push(queue, 0, priority=3), push(queue, 0), push(queue, 0, priority=1)
        assert [queue.take(1)[0] for _ in range(3)] == [high, default, low]

    def test_low_priority_waits_no_longer_than_its_ageing(self) -> None:
        ageing = 10 * MILLISECOND
        queue = queue_with(max_rows=1, levels=2, ageing_ns=ageing, policies=(LevelPolicy(),) * 2)
        low = push(queue, 0, priority=2)
        now = 0
        while not low.dispatched:
            push(queue, now, priority=1)
            queue.take(now)
            now += MILLISECOND
            assert now < 10 * ageing, "starved"
        assert ageing < low.dispatched <= 3 * ageing

    def test_an_aged_request_does_not_lift_its_class_mates(self) -> None:
        ageing = 10 * MILLISECOND
        queue = queue_with(max_rows=1, levels=2, ageing_ns=ageing, policies=(LevelPolicy(),) * 2)
        now = 3 * ageing
        old = push(queue, 0, priority=2)
        fresh_low = push(queue, now, now + SECOND, priority=2)
        high = push(queue, now, priority=1)
        assert [queue.take(now)[0] for _ in range(3)] == [old, high, fresh_low]

    def test_who_has_no_deadline_is_not_starved_by_those_who_have(self) -> None:
        queue = queue_with(max_rows=1, ageing_ns=10 * MILLISECOND)
        patient = push(queue, 0)
        now = 0
        while not patient.dispatched and now < SECOND:
            push(queue, now, now + 50 * MILLISECOND)
            queue.take(now)
            now += 2 * MILLISECOND
        assert patient.dispatched <= 20 * MILLISECOND

    def test_a_refused_request_leaves_no_trace_in_ageing(self) -> None:
        queue = queue_with(max_rows=1, levels=2, ageing_ns=MILLISECOND, policies=(LevelPolicy(),) * 2)
        gone = push(queue, 0, priority=2)
        gone.cancelled = True
        push(queue, 0, priority=2)
        assert queue.take(0)[0] is not gone
        now = 100 * MILLISECOND
        fresh_low, high = push(queue, now, priority=2), push(queue, now, priority=1)
        assert [queue.take(now)[0] for _ in range(2)] == [high, fresh_low]


class TestBatches:
    def test_the_largest_batch_that_meets_the_tightest_deadline(self) -> None:
        queue = queue_with()
        queue.occupy([0])
        # 2.9 ms for 4 rows and the margin: four fit, five do not.
        for _ in range(4):
            push(queue, 0, int(2.9 * MILLISECOND) + MARGIN)
        with pytest.raises(DeadlineExceeded):
            push(queue, 0, int(2.9 * MILLISECOND) + MARGIN)
        assert len(queue.take(0)) == 4

    def test_a_tight_deadline_is_not_held_up_by_company(self) -> None:
        queue = queue_with()
        patient = [push(queue, 0) for _ in range(10)]
        tight = push(queue, 0, 3 * MILLISECOND)
        batch = queue.take(0)
        assert batch[0] is tight
        assert ExactCurve(LARGE_MLP).estimate(len(batch)) + MARGIN <= 3 * MILLISECOND
        assert batch[1:] == patient[: len(batch) - 1]

    def test_shapes_are_not_mixed_and_nobody_is_forgotten(self) -> None:
        queue = queue_with()
        requests = [push(queue, 0, shape=number % 3) for number in range(9)]
        batches = [queue.take(0) for _ in range(3)]
        assert batches == [requests[0::3], requests[1::3], requests[2::3]]
        assert queue.take(0) == []

    def test_a_large_request_is_not_overtaken_by_small_ones(self) -> None:
        queue = queue_with(max_rows=8)
        first, large, small = push(queue, 0, rows=5), push(queue, 0, rows=6), push(queue, 0, rows=1)
        assert queue.take(0) == [first]
        assert queue.take(0) == [large, small]

    def test_late_work_is_dropped_with_a_reason_and_never_starts(self) -> None:
        queue = queue_with(instances=1)
        late = push(queue, 0, 5 * MILLISECOND)
        fine = push(queue, 0, 50 * MILLISECOND)
        assert queue.take(4 * MILLISECOND) == [fine]
        ((request, error),) = queue.rejected
        assert request is late
        assert isinstance(error, DeadlineExceeded)

    def test_late_requests_are_told_although_nothing_is_free(self) -> None:
        queue = queue_with()
        late = push(queue, 0, 5 * MILLISECOND)
        push(queue, 0)
        queue.drop_late(6 * MILLISECOND)
        assert [request for request, _ in queue.rejected] == [late]
        assert queue.pending == 1

    def test_the_cancelled_never_start(self) -> None:
        queue = queue_with()
        gone, stays = push(queue, 0), push(queue, 0)
        gone.cancelled = True
        assert queue.take(0) == [stays]
        assert isinstance(queue.rejected[0][1], Cancelled)

    def test_neither_do_those_whose_original_or_whose_run_is_over(self) -> None:
        """Their ``cancelled`` is another's: the queue, compiled or not, reads it there."""

        class Step(RecordedRequest):
            is_over = False

            @property
            def cancelled(self) -> bool:
                return self.is_over

        queue = queue_with()
        original, step, stays = RecordedRequest(plan_of()), Step(plan_of()), RecordedRequest(plan_of())
        for request in (LoggedRequest(original), step, stays):
            queue.push(request, 0)
        original.cancelled = step.is_over = True
        assert queue.take(0) == [stays]
        assert [type(error) for _, error in queue.rejected] == [Cancelled, Cancelled]

    def test_without_measurements_only_the_past_is_late(self) -> None:
        queue = queue_with(curve=LatencyCurve(8), max_rows=8)
        with pytest.raises(DeadlineExceeded):
            push(queue, 1000, 1000)
        fine = push(queue, 1000, 1001)
        assert queue.take(1000) == [fine]


class TestMargin:
    """What is kept free before a deadline follows from what runs and answers take."""

    def test_models_of_short_runs_keep_a_turn_of_them_free(self) -> None:
        queue = queue_with(curve=ExactCurve({1: 0.02, 8: 0.05}), max_rows=8)
        assert queue.margin_ns == 8 * 20_000
        for _ in range(2):
            push(queue, 0, 800_000)
        assert len(queue.take(0)) == 2

    def test_others_keep_the_rules_margin_free_and_those_unknown_too(self) -> None:
        assert queue_with().margin_ns == MARGIN
        assert queue_with(curve=LatencyCurve(8), max_rows=8).margin_ns == MARGIN

    def test_what_writing_answers_takes_is_kept_free_as_well(self) -> None:
        queue = queue_with(curve=ExactCurve({1: 0.02, 8: 0.05}), max_rows=8)
        queue.reserve_for_answering(100_000)
        assert queue.margin_ns == 260_000
        # A change that does not matter is left alone: the plan would have to be made again.
        queue.reserve_for_answering(110_000)
        assert queue.margin_ns == 260_000


class TestTritonsKnobs:
    def test_without_a_delay_a_batch_goes_at_once(self) -> None:
        queue = queue_with()
        assert queue.wake_at(5) is None
        push(queue, 5)
        assert queue.wake_at(5) == 5

    def test_the_oldest_waits_for_the_delay_and_not_longer(self) -> None:
        queue = queue_with(delay_ns=MILLISECOND)
        push(queue, 100)
        push(queue, 500)
        assert queue.wake_at(600) == 100 + MILLISECOND

    def test_a_full_batch_does_not_wait(self) -> None:
        queue = queue_with(delay_ns=MILLISECOND, max_rows=4)
        for _ in range(4):
            push(queue, 0)
        assert queue.wake_at(7) == 7

    def test_waiting_ends_before_it_costs_a_deadline(self) -> None:
        queue = queue_with(delay_ns=SECOND)
        push(queue, 0, 10 * MILLISECOND)
        two_rows = int(2.2 * MILLISECOND)
        assert queue.wake_at(0) == 10 * MILLISECOND - MARGIN - two_rows

    def test_a_preferred_size_goes_at_once_and_is_not_exceeded(self) -> None:
        queue = queue_with(delay_ns=MILLISECOND, preferred=(4, 8))
        for _ in range(3):
            push(queue, 0)
        assert queue.wake_at(10) == MILLISECOND
        for _ in range(3):
            push(queue, 10)
        assert queue.wake_at(10) == 10
        assert len(queue.take(10)) == 4
        assert queue.wake_at(10) == 10 + MILLISECOND

    def test_the_largest_preferred_size_is_taken(self) -> None:
        queue = queue_with(delay_ns=MILLISECOND, preferred=(4, 8))
        for _ in range(11):
            push(queue, 0)
        assert len(queue.take(0)) == 8

    def test_after_the_delay_everything_goes_preferred_or_not(self) -> None:
        queue = queue_with(delay_ns=MILLISECOND, preferred=(4,))
        for _ in range(6):
            push(queue, 0)
        assert len(queue.take(MILLISECOND)) == 6

    def test_without_a_delay_a_preferred_size_is_still_preferred(self) -> None:
        queue = queue_with(preferred=(4,))
        for _ in range(6):
            push(queue, 0)
        assert len(queue.take(0)) == 4
        assert len(queue.take(0)) == 2

    @pytest.mark.parametrize(
        ("sizes", "rows"),
        [
            # Whole requests have to add up to a preferred size.
            ([1, 3], 0),
            ([3], 0),
            ([3, 3], 6),
            ([1, 1, 3], 2),
            ([1, 3, 2], 6),
            # The next one would exceed every preferred size: waiting cannot reach one.
            ([5, 2], 5),
            ([1, 3, 3], 4),
            ([4, 4], 4),
            ([7], 7),
            ([7, 1], 7),
            # A preferred size that was reached on the way stays the choice.
            ([2, 5], 2),
            ([2, 2], 2),
        ],
    )
    def test_before_the_delay_is_over_whole_requests_make_a_preferred_size(self, sizes: list[int], rows: int) -> None:
        queue = queue_with(delay_ns=MILLISECOND, preferred=(2, 6), max_rows=8)
        for size in sizes:
            push(queue, 0, rows=size)
        assert queue.wake_at(10) == (10 if rows else MILLISECOND)
        if rows:
            assert sum(request.plan.batch_size for request in queue.take(10)) == rows

    def test_another_shape_releases_those_who_wait(self) -> None:
        queue = queue_with(delay_ns=MILLISECOND, max_rows=8)
        first = push(queue, 0, shape="A")
        assert queue.wake_at(10) == MILLISECOND
        other = push(queue, 10, shape="B")
        assert queue.wake_at(10) == 10
        assert queue.take(10) == [first]
        assert queue.wake_at(20) == 10 + MILLISECOND
        again = push(queue, 20, shape="B")
        assert queue.wake_at(20) == 10 + MILLISECOND
        assert queue.take(10 + MILLISECOND) == [other, again]
        assert queue.wake_at(30) is None
        push(queue, 40, shape="A")
        queue.clear()
        push(queue, 50, shape="B")
        assert queue.wake_at(50) == 50 + MILLISECOND

    def test_max_queue_size_per_level(self) -> None:
        queue = queue_with(levels=2, policies=(LevelPolicy(2), LevelPolicy()))
        push(queue, 0, priority=1)
        push(queue, 0, priority=1)
        with pytest.raises(QueueFull, match=r"Exceeds maximum queue size.*max_queue_size is 2"):
            push(queue, 0, priority=1)
        for _ in range(5):
            push(queue, 0, priority=2)
        assert queue.pending == 7

    def test_a_queue_timeout_rejects(self) -> None:
        queue = queue_with(policies=(LevelPolicy(0, 5 * MILLISECOND),))
        expired = push(queue, 0)
        in_time = push(queue, 4 * MILLISECOND)
        assert queue.take(6 * MILLISECOND) == [in_time]
        assert queue.rejected[0][0] is expired
        assert isinstance(queue.rejected[0][1], DeadlineExceeded)

    def test_a_queue_timeout_is_about_the_queue_not_about_compute(self) -> None:
        queue = queue_with(policies=(LevelPolicy(0, MILLISECOND),))
        requests = [push(queue, 0) for _ in range(32)]
        assert queue.take(MILLISECOND) == requests

    def test_an_expired_request_can_be_delayed_behind_all_others(self) -> None:
        queue = queue_with(max_rows=1, policies=(LevelPolicy(0, 5 * MILLISECOND, True),))
        expired = push(queue, 0)
        fresh = [push(queue, 4 * MILLISECOND) for _ in range(2)]
        now = 6 * MILLISECOND
        assert [queue.take(now)[0] for _ in range(3)] == [*fresh, expired]
        assert not queue.rejected
        assert queue.pending == 0

    def test_a_delayed_request_still_has_its_own_deadline(self) -> None:
        queue = queue_with(policies=(LevelPolicy(0, 5 * MILLISECOND, True),))
        push(queue, 0, 30 * MILLISECOND)
        push(queue, 0, 90 * MILLISECOND)
        blocker = push(queue, 10 * MILLISECOND)
        assert queue.take(10 * MILLISECOND) == [blocker]
        assert not queue.rejected
        assert [request.deadline for request in queue.take(40 * MILLISECOND)] == [90 * MILLISECOND]
        assert [request.deadline for request, _ in queue.rejected] == [30 * MILLISECOND]

    def test_delayed_requests_count_for_the_queue_size(self) -> None:
        queue = queue_with(policies=(LevelPolicy(2, 5 * MILLISECOND, True),))
        push(queue, 0)
        push(queue, 0)
        blocker_time = 6 * MILLISECOND
        queue.drop_late(blocker_time)
        assert queue.pending == 2
        with pytest.raises(QueueFull):
            push(queue, blocker_time)

    def test_an_unknown_priority_is_the_default(self) -> None:
        queue = queue_with(max_rows=1, levels=2, default_level=2, policies=(LevelPolicy(),) * 2)
        odd, high = push(queue, 0, priority=9), push(queue, 0, priority=1)
        assert [queue.take(0)[0] for _ in range(2)] == [high, odd]


class TestAdmission:
    def test_refuses_at_once_what_cannot_be_met(self) -> None:
        queue = queue_with()
        queue.occupy([5 * MILLISECOND])
        # 5 ms until the instance is free, 1.7 ms alone on it, and the margin, against a deadline in 5 ms.
        miss = f"{1.7 + MARGIN / MILLISECOND:.2f}"
        with pytest.raises(DeadlineExceeded, match=rf"Request timeout expired.*miss the deadline by {miss} ms"):
            push(queue, 0, 5 * MILLISECOND)

    def test_a_second_instance_counts(self) -> None:
        queue = queue_with(instances=2)
        queue.occupy([50 * MILLISECOND, 2 * MILLISECOND])
        push(queue, 0, 5 * MILLISECOND)

    def test_a_newcomer_never_makes_an_admitted_request_late(self) -> None:
        queue = queue_with(max_rows=1, curve=ExactCurve({1: 2.0}))
        admitted = push(queue, 0, 2 * MILLISECOND + MARGIN)
        with pytest.raises(DeadlineExceeded):
            push(queue, 0, 2 * MILLISECOND + MARGIN - 1)
        assert queue.take(0) == [admitted]

    def test_lower_classes_make_way(self) -> None:
        queue = queue_with(max_rows=1, curve=ExactCurve({1: 2.0}), levels=2, policies=(LevelPolicy(),) * 2)
        push(queue, 0, 3 * MILLISECOND, priority=2)
        high = push(queue, 0, 3 * MILLISECOND, priority=1)
        assert queue.take(0) == [high]

    def test_requests_without_a_deadline_do_not_count_against_one_that_has(self) -> None:
        queue = queue_with(max_rows=4)
        for _ in range(100):
            push(queue, 0)
        tight = push(queue, 0, 4 * MILLISECOND)
        assert queue.take(0)[0] is tight

    def test_under_overload_the_early_are_refused_and_the_late_fill_a_batch(self) -> None:
        """A request that would begin a batch too small for the expected arrivals is rejected immediately."""
        queue = queue_with()
        queue.occupy([7 * MILLISECOND])
        step = 200 * MICROSECOND
        for now in range(-100 * MILLISECOND, 0, step):
            with pytest.raises(DeadlineExceeded):
                push(queue, now, now + MILLISECOND)  # refused, and yet part of what is asked for
        admitted = []
        for now in range(0, 7 * MILLISECOND, step):
            try:
                admitted.append(push(queue, now, now + 10 * MILLISECOND))
            except DeadlineExceeded:
                continue
        queue.occupy([0])
        batch = queue.take(7 * MILLISECOND)
        assert batch == admitted
        # The first comer alone would have held it to 3.
        assert len(batch) >= 10

    @pytest.mark.parametrize("instances", [1, 2])
    @pytest.mark.parametrize("load", [0.5, 0.9, 1.5, 2.0, 3.0])
    def test_admitted_is_in_time_and_goodput_is_near_the_best(self, load: float, instances: int) -> None:
        curve = ExactCurve(LARGE_MLP)
        rate = load * CAPACITY * instances
        outcome = simulate(curve, rate, instances=instances)
        assert outcome.late == 0
        assert outcome.dropped == 0
        best = best_cycle(curve, rate, 10 * MILLISECOND, MARGIN, instances)
        offered = outcome.offered / outcome.nanoseconds
        assert outcome.goodput >= 0.9 * min(best, offered)
        if load >= 2:
            assert outcome.goodput >= 0.85 * CAPACITY * instances

    @pytest.mark.parametrize(
        "traffic",
        [
            {"deadlines_ms": (5, 10, 30)},
            {"deadlines_ms": (10, 100), "rows": (1, 2, 4)},
            {"deadlines_ms": (5, 10, 30), "rows": (1, 2, 4), "instances": 2},
        ],
    )
    @pytest.mark.parametrize("load", [0.6, 2.0])
    def test_the_promise_holds_for_mixed_traffic(self, load: float, traffic: dict[str, object]) -> None:
        curve = ExactCurve(LARGE_MLP)
        outcome = simulate(curve, load * CAPACITY, seconds=1.0, **traffic)  # type: ignore[arg-type]
        assert outcome.late == 0
        assert outcome.dropped == 0
        assert outcome.admitted > 100

    def test_low_load_refuses_nobody(self) -> None:
        outcome = simulate(ExactCurve(LARGE_MLP), 0.4 * CAPACITY)
        assert outcome.admitted == outcome.offered

    def test_scatter_beyond_the_curve_costs_little(self) -> None:
        outcome = simulate(ExactCurve(LARGE_MLP), 2 * CAPACITY, scatter=0.05)
        assert outcome.goodput >= 0.83 * CAPACITY
        assert outcome.late + outcome.dropped <= 0.02 * outcome.admitted

    def test_a_long_queue_is_known_to_be_long(self) -> None:
        queue = queue_with(max_rows=4)
        admitted = 0
        for _ in range(4000):
            try:
                push(queue, 0, 2 * SECOND)
            except DeadlineExceeded:
                continue
            admitted += 1
        assert admitted == pytest.approx(4 * 2000 / 2.9, rel=0.01)
        with pytest.raises(DeadlineExceeded):
            push(queue, 0, 5 * MILLISECOND)  # could be in time itself, but would push the last over the edge

    def test_the_plan_follows_an_instance_that_is_early_or_late(self) -> None:
        queue = queue_with(max_rows=1, curve=ExactCurve({1: 2.0}))
        deadline = 12 * MILLISECOND + MARGIN
        for _ in range(4):
            push(queue, 0, deadline)
        queue.take(0)
        queue.occupy([2 * MILLISECOND])
        for _ in range(2):
            push(queue, 0, deadline)
        with pytest.raises(DeadlineExceeded):
            push(queue, 0, deadline)
        queue.occupy([0])
        queue.take(0)
        queue.occupy([2 * MILLISECOND])
        push(queue, 0, deadline)  # two ms were won
        with pytest.raises(DeadlineExceeded):
            push(queue, 0, deadline)
        queue.occupy([3 * MILLISECOND])  # and one is lost again
        with pytest.raises(DeadlineExceeded):
            push(queue, 0, deadline + 2 * MILLISECOND)
        push(queue, 0, deadline + 3 * MILLISECOND)


def test_estimated_wait_grows_with_the_queue() -> None:
    queue = queue_with(max_rows=4)
    assert queue.estimated_wait(0) == 0
    queue.occupy([MILLISECOND])
    assert queue.estimated_wait(0) == MILLISECOND
    waits, ends = [], []
    for _ in range(9):
        push(queue, 0)
        waits.append(queue.estimated_wait(0))
        ends.append(queue.estimated_wait(0) + queue.estimated_run())
    assert waits == sorted(waits)
    assert ends == sorted(ends)
    # Two whole batches go first; the newcomer joins the one that was left over.
    assert waits[-1] == MILLISECOND + 2 * int(2.9 * MILLISECOND)
    assert queue.estimated_run() == int(2.2 * MILLISECOND)
