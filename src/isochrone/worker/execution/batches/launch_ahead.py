"""Launching ahead: the next batch goes to a busy device shortly before the running one ends there.

The counterpart of ``lookahead`` for executables that overlap. A batch is gathered and copied while the one before it
computes, so that the device never waits for the host. It is launched as late as possible, because requests that come
later cannot join it: when it is full, or when the running batch is expected to end within the time that a launch takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from isochrone.clock import MICROSECOND, NEVER, now_ns
from isochrone.worker.execution.instances.batch import Batch
from isochrone.worker.scheduling.alarm import Alarm
from isochrone.worker.scheduling.latency_curve import RunningTime

if TYPE_CHECKING:
    from isochrone.worker.execution.instances.instance import Instance
    from isochrone.worker.scheduling.batch_queue import BatchQueue
    from isochrone.worker.scheduling.latency_curve import LatencyCurve

#: The loop may be late by this much, and the device needs a moment to start.
_LEAD_NS = 300 * MICROSECOND


class LaunchAhead:
    """At most one batch behind the running one, on each instance. On the loop's thread."""

    def __init__(
        self,
        queue: BatchQueue,
        curve: LatencyCurve,
        instances: Sequence[Instance],
        loop: asyncio.AbstractEventLoop,
        launched: Callable[[], None],
    ) -> None:
        """``launched`` is called after every launch: the queue has changed."""
        self._queue = queue
        self._curve = curve
        #: The runner's list, which changes when an instance is replaced.
        self._instances = instances
        self._launched = launched
        self._alarm = Alarm(loop, self.refresh)
        #: Time from the start of a batch to the end of its launch.
        self._launching = RunningTime()

    @property
    def is_made(self) -> bool:
        """Launches are final: there is never an offer to renew."""
        return False

    def withdraw(self) -> None:
        """A launched batch cannot be withdrawn; it has left the queue."""

    def observe(self, batch: Batch) -> None:
        """A batch has ended: it says how long a launch takes."""
        self._launching.observe(batch.infer_start - batch.compute_start)

    def refresh(self) -> None:
        """Launches what is due, and sets the alarm for the next launch."""
        while self._queue.requests:
            now = now_ns()
            soonest, instance = NEVER, None
            for candidate in self._instances:
                if candidate.running is None or candidate.following is not None or not candidate.executable.overlaps:
                    continue
                ends = candidate.busy_since + int(self._curve.mean(candidate.running.rows))
                if ends < soonest:
                    soonest, instance = ends, candidate
            if instance is None:
                return
            lead = _LEAD_NS + self._launching.cautious
            if soonest - now > lead and not self._queue.is_full:
                self._alarm.set(soonest - lead)
                return
            if not self._launch(instance, max(now, soonest), now):
                return

    def _launch(self, instance: Instance, start: int, now: int) -> bool:
        wake = self._queue.wake_at(now)
        if wake is None or wake > start:
            return False
        choice = self._queue.peek(start)
        if choice is None:
            return False
        self._queue.confirm(choice)
        requests = [entry.request for entry in choice.taken]
        for request in requests:
            request.dispatched = now
        instance.start_behind(Batch(requests, choice.rows), self._curve.estimate(choice.rows))
        self._launched()
        return True

    def close(self) -> None:
        self._alarm.close()
