"""A request without a deadline: the queue must know it as the clock does."""

from __future__ import annotations

from queued_requests import ExactCurve, RecordedRequest, plan_of

from isochrone import clock
from isochrone.worker.scheduling import batch_plan
from isochrone.worker.scheduling.batch_queue import BatchQueue, QueueRules


def test_the_queue_and_the_clock_agree_on_never() -> None:
    assert batch_plan.NEVER == clock.NEVER


def test_a_request_without_a_deadline_is_not_planned() -> None:
    queue = BatchQueue(QueueRules(), ExactCurve({1: 1.0}))
    queue.push(RecordedRequest(plan_of()), 0)
    assert not queue._plan.batches
    assert len(queue.take(0)) == 1
