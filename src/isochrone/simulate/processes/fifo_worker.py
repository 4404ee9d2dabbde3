"""The fast worker model: first come, first served, by a number of instances that take batches.

Two or three events per batch. A free instance takes the waiting calls, up to the largest batch, without waiting for
more. Calls whose deadline has passed are dropped before they cost compute, as in the real worker. No call is rejected
on arrival: the exact model does that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from isochrone.gateway.replicas import LoadReport
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.calls import ANSWERED, ELSEWHERE, QUEUED, RUNNING, TOO_LATE, Call
from isochrone.simulate.processes.worker import Worker

#: Weight of one batch in the moving average of measured over expected time.
_GAIN = 1 / 16


class FifoWorker(Worker):
    """``batch_ns[rows]``: duration of a batch of that many mean requests at speed 1; index 0 is unused."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        delay: Callable[[], int],
        batch_ns: Sequence[float],
        instances: int = 1,
        speed: float = 1.0,
    ) -> None:
        super().__init__(number, engine, delay, speed)
        self._batch_ns = batch_ns
        self._largest = len(batch_ns) - 1
        self._instances = instances
        self._idle = instances
        self._queue: deque[Call] = deque()
        #: Without cancelled calls, which stay in the queue.
        self._queued = 0
        #: Running batches by number, and the end of each.
        self._running: dict[int, list[Call]] = {}
        self._ends: dict[int, int] = {}
        self._batches = 0
        #: Moving average of measured over expected time: the basis of its load reports.
        self._pace = 1 / speed

    def accept(self, now: int, call: Call) -> None:
        self.in_flight += 1
        if self._idle:
            self._start(now, [call], call.work)
        else:
            call.place = QUEUED
            self._queue.append(call)
            self._queued += 1

    def _start(self, now: int, batch: list[Call], work: float) -> None:
        self._idle -= 1
        rows = len(batch)
        took = int(self._batch_ns[rows] * work / rows / self.speed) + 1
        self._batches = number = self._batches + 1
        self._running[number] = batch
        self._ends[number] = now + took
        self.used += took
        self._pace += (took / self._batch_ns[rows] - self._pace) * _GAIN
        for call in batch:
            call.place = RUNNING
        self.engine.at(now + took, self._finished, number)

    def _finished(self, now: int, number: int) -> None:
        if self.holds(now, self._finished, number):
            return
        batch = self._running.pop(number, None)
        if batch is None:
            return
        del self._ends[number]
        self._idle += 1
        self.in_flight -= len(batch)
        if self._queued:
            self._take(now)
        report = self.report(now)
        for call in batch:
            call.place = ELSEWHERE
            if not call.over:
                self.answer(now, call, ANSWERED, report)

    def _take(self, now: int) -> None:
        queue, work = self._queue, 0.0
        batch: list[Call] = []
        while queue and len(batch) < self._largest:
            call = queue.popleft()
            if call.place != QUEUED:
                continue
            self._queued -= 1
            if call.deadline <= now:
                self.in_flight -= 1
                call.place = ELSEWHERE
                self.answer(now, call, TOO_LATE, self.report(now))
                continue
            batch.append(call)
            work += call.work
        if batch:
            self._start(now, batch, work)

    def report(self, now: int) -> LoadReport:
        pace, batch_ns = self._pace, self._batch_ns
        wait = 0.0
        if not self._idle:
            soonest = min(self._ends.values()) - now
            if soonest > 0:
                wait = soonest
            if self._queued:
                whole, rest = divmod(-(-self._queued // self._instances), self._largest)
                wait += pace * (whole * batch_ns[self._largest] + (batch_ns[rest] if rest else 0.0))
        return LoadReport(self.in_flight, self._queued, int(wait), int(pace * batch_ns[1]))

    def cancel(self, now: int, call: Call) -> None:
        if call.place == QUEUED:
            # It stays in the queue and is skipped there. A running batch is not interrupted.
            call.place = ELSEWHERE
            self.in_flight -= 1
            self._queued -= 1

    def drop_all(self, now: int) -> list[Call]:
        left = [call for batch in self._running.values() for call in batch]
        left += [call for call in self._queue if call.place == QUEUED]
        self._running.clear()
        self._ends.clear()
        self._queue.clear()
        self._queued = self.in_flight = 0
        self._idle = self._instances
        return left
