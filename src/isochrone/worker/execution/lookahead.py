"""The next batch for an instance that is still busy, offered shortly before it is expected to be free.

Between the end of one batch and the start of the next lay 0.46 ms of waiting for the loop and the interpreter under
full load: a tenth of the capacity of a model of 4 ms a batch. With the next batch at hand the thread goes on at once,
and the loop writes the answers beside it.

An offer binds nobody. Its requests stay in the queue, where newcomers join them or overtake them, until the loop knows
that the batch has begun; an offer is made anew when somebody has come, and the thread leaves one that would start too
late. Whatever takes from the queue withdraws the offer first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isochrone.clock import MICROSECOND, MILLISECOND, NEVER, now_ns
from isochrone.worker.execution.batch import Batch
from isochrone.worker.scheduling.alarm import Alarm

if TYPE_CHECKING:
    from isochrone.worker.execution.instance import Instance
    from isochrone.worker.scheduling.batch_plan import Choice
    from isochrone.worker.scheduling.batch_queue import BatchQueue
    from isochrone.worker.scheduling.latency_curve import LatencyCurve

#: How long before the expected end of a run an offer is made.
_LEAD_NS = 500 * MICROSECOND
#: Shorter runs leave no time for it; to longer ones the gap means nothing.
_SHORTEST_RUN_NS = 1 * MILLISECOND
_LONGEST_RUN_NS = 50 * MILLISECOND


class LookAhead:
    """Keeps one offer, to the instance of a model that is free next. All on the loop's thread."""

    def __init__(
        self,
        queue: BatchQueue,
        curve: LatencyCurve,
        instances: Sequence[Instance],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._queue = queue
        self._curve = curve
        #: The runner's own list, which changes when an instance is replaced.
        self._instances = instances
        self._alarm = Alarm(loop, self.refresh)
        self._offer: tuple[Instance, Batch, Choice] | None = None

    def withdraw(self) -> None:
        """No offer stands afterwards, and the queue is without what has begun."""
        if self._offer is None:
            return
        instance, batch, choice = self._offer
        self._offer = None
        if not instance.take_back():
            self._queue.confirm(choice)
            instance.begun(batch, self._curve.estimate(batch.rows))

    def refresh(self) -> None:
        """Offers what would leave next by the queue of now, or sets the alarm for the moment to do so."""
        self.withdraw()
        if not self._queue.requests:
            return
        soonest, instance = NEVER, None
        for candidate in self._instances:
            running = candidate.running
            if running is None or candidate.following is not None:
                continue
            # Not the cautious estimate: half of all runs would be over before the offer came.
            expected = int(self._curve.mean(running.rows))
            if _SHORTEST_RUN_NS <= expected <= _LONGEST_RUN_NS and candidate.busy_since + expected < soonest:
                soonest, instance = candidate.busy_since + expected, candidate
        if instance is None:
            return
        now = now_ns()
        if soonest - now > _LEAD_NS:
            self._alarm.set(soonest - _LEAD_NS)
            return
        self._make(instance, max(now, soonest), now)

    def _make(self, instance: Instance, start: int, now: int) -> None:
        wake = self._queue.wake_at(now)
        if wake is None or wake > start:
            return
        choice = self._queue.peek(start)
        if choice is None:
            return
        batch = Batch([entry.request for entry in choice.taken], choice.rows)
        if choice.limit != NEVER:
            batch.latest_start = choice.limit - self._curve.estimate(choice.rows)
        self._offer = instance, batch, choice
        instance.offer(batch)

    def close(self) -> None:
        self._alarm.close()
