"""The fast worker model for CPU-bound servers: its requests share its cores, as threads share a machine.

A request uses at most one core. The worker owns an allocation of cores on a machine, and may also use the cores that
antagonists leave idle. Exact processor sharing in logarithmic time: all requests advance at the same rate, so each ends
at a fixed point on the scale of attained service.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil

from isochrone.gateway.replicas import LoadReport
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.calls import ANSWERED, ELSEWHERE, RUNNING, Call
from isochrone.simulate.processes.worker import STALLED, Worker

_GAIN = 1 / 16
_NEVER = 1 << 62


class SharingWorker(Worker):
    """``cpu_ns``: core time of a mean request at speed 1."""

    def __init__(
        self,
        number: int,
        engine: Engine,
        delay: Callable[[], int],
        cpu_ns: float,
        cores: float,
        speed: float = 1.0,
    ) -> None:
        super().__init__(number, engine, delay, speed)
        self._cpu_ns = cpu_ns
        #: Cores it may use now.
        self.cores = cores
        #: By the attained service at which each call ends.
        self._heap: list[tuple[float, int, Call]] = []
        self._order = 0
        #: Core ns that a call present since the start has had, as of ``_since``.
        self._attained = 0.0
        self._since = engine.now
        #: Cores per request.
        self._rate = 0.0
        self._wake_at = _NEVER
        #: Latency by requests in flight on arrival, in powers of two: the estimate that Prequal's servers report.
        self._by_load = [0.0] * 24

    def set_cores(self, now: int, cores: float) -> None:
        """Set the cores that it may use."""
        self._advance(now)
        self.cores = cores
        self._replan(now)

    def speed_changed(self, now: int) -> None:
        self._advance(now)
        self._replan(now)

    def accept(self, now: int, call: Call) -> None:
        self._advance(now)
        self.in_flight += 1
        self._order += 1
        call.place = RUNNING
        call.met = self.in_flight
        call.entered = now
        heappush(self._heap, (self._attained + call.work * self._cpu_ns, self._order, call))
        self._replan(now)

    def _advance(self, now: int) -> None:
        passed = now - self._since
        if passed:
            gained = passed * self._rate
            self._attained += gained
            self.used += gained * self.in_flight
            self._since = now

    def _replan(self, now: int) -> None:
        """Recompute the rate and the end of the next call."""
        count = self.in_flight
        if not count or self.state == STALLED:
            self._rate = 0.0
            return
        self._rate = rate = self.speed * (self.cores / count if count > self.cores else 1.0)
        heap = self._heap
        while heap[0][2].place != RUNNING:
            heappop(heap)
        left = heap[0][0] - self._attained
        wake = now + (ceil(left / rate) if left > 0 else 0)
        # An event that is too early finds no call at its end and replans: cheaper than one event per arrival.
        if wake < self._wake_at:
            self._wake_at = wake
            self.engine.at(wake, self._woken)

    def _woken(self, now: int, _: object) -> None:
        if now != self._wake_at:
            return
        self._wake_at = _NEVER
        self._advance(now)
        heap = self._heap
        done: list[Call] = []
        while heap and (heap[0][2].place != RUNNING or heap[0][0] <= self._attained + 0.5):
            call = heappop(heap)[2]
            if call.place == RUNNING:
                call.place = ELSEWHERE
                done.append(call)
                self.in_flight -= 1
        self._replan(now)
        for call in done:
            self._learn(call.met, now - call.entered)
            if not call.over:
                self.answer(now, call, ANSWERED, self.report(now))

    def _learn(self, load: int, latency: int) -> None:
        index = load.bit_length()
        seen = self._by_load[index]
        self._by_load[index] = seen + (latency - seen) * _GAIN if seen else float(latency)

    def report(self, now: int) -> LoadReport:
        """Reports the latency of earlier requests that met as many others as a new one would."""
        index = (self.in_flight + 1).bit_length()
        run = self._by_load[index]
        while not run and index:
            index -= 1
            run = self._by_load[index]
        waiting = self.in_flight - int(self.cores)
        return LoadReport(self.in_flight, waiting if waiting > 0 else 0, 0, int(run))

    def cancel(self, now: int, call: Call) -> None:
        if call.place == RUNNING:
            # Its entry stays in the heap and is skipped later.
            call.place = ELSEWHERE
            self._advance(now)
            self.in_flight -= 1
            self._replan(now)

    def drop_all(self, now: int) -> list[Call]:
        self._advance(now)
        left = [call for _, _, call in self._heap if call.place == RUNNING]
        self._heap.clear()
        self.in_flight = 0
        self._replan(now)
        return left
