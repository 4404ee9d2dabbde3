"""Look-ahead: offer the next batch to a busy instance shortly before it is expected to be free.

Without it, 0.46 ms passed under full load between the end of one batch and the start of the next, waiting for the loop
and the interpreter: a tenth of the capacity of a model with batches of 4 ms. With an offer, the thread continues
immediately while the loop writes answers.

The requests of an offer stay in the queue, where new requests join or overtake them, until the loop learns that the
batch has started. The offer is renewed when a request arrives, and the thread ignores an offer that would start too
late. Every other removal from the queue withdraws the offer first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isochrone.clock import MICROSECOND, MILLISECOND, NEVER, now_ns
from isochrone.worker.execution.instances.batch import Batch
from isochrone.worker.scheduling.alarm import Alarm

if TYPE_CHECKING:
    from isochrone.worker.execution.instances.instance import Instance
    from isochrone.worker.scheduling.batch_plan import Choice
    from isochrone.worker.scheduling.batch_queue import BatchQueue
    from isochrone.worker.scheduling.latency_curve import LatencyCurve

#: An offer is made this long before the expected end of a run.
_LEAD_NS = 500 * MICROSECOND
#: Shorter runs happen on the loop's thread; for longer runs the gap is insignificant.
_SHORTEST_RUN_NS = 50 * MICROSECOND
_LONGEST_RUN_NS = 50 * MILLISECOND


class LookAhead:
    """At most one offer, to the instance that is free next. On the loop's thread."""

    def __init__(
        self,
        queue: BatchQueue,
        curve: LatencyCurve,
        instances: Sequence[Instance],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._queue = queue
        self._curve = curve
        #: The runner's list, which changes when an instance is replaced.
        self._instances = instances
        self._alarm = Alarm(loop, self.refresh)
        self._offer: tuple[Instance, Batch, Choice] | None = None

    @property
    def is_made(self) -> bool:
        """Whether there is an offer; its batch may have started."""
        return self._offer is not None

    def withdraw(self) -> None:
        """Withdraws the offer. If its batch has started, removes it from the queue."""
        if self._offer is None:
            return
        instance, batch, choice = self._offer
        self._offer = None
        if not instance.withdraw_offer():
            self._queue.confirm(choice)
            instance.offer_started(batch, self._curve.estimate(batch.rows))

    def observe(self, batch: Batch) -> None:
        """A batch has ended; offers need to know nothing of it."""

    def refresh(self) -> None:
        """Offers the batch that the queue would choose now, or sets the alarm for that moment."""
        self.withdraw()
        if not self._queue.requests:
            return
        soonest, instance = NEVER, None
        for candidate in self._instances:
            running = candidate.running
            if running is None or candidate.following is not None or not candidate.takes_offers:
                continue
            # Not the cautious estimate: half of all runs would end before the offer.
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
