"""One load generator on one event loop: an open loop sends at intended instants, a closed loop keeps N in flight.

Open loop: a request is due at its intended instant whatever the server does, and its latency counts from that instant,
so that a slow server cannot make its own load lighter (coordinated omission). Closed loop: a request is intended when
the one before it has ended. Callbacks only; there is no task per request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from isochrone.bench.recording import Recorder, use_of
from isochrone.bench.results.outcomes import FAILED, LATE, OK, UNSENT, GeneratorUse
from isochrone.bench.sending.preparing import PreparedKind
from isochrone.bench.sending.sender import Sender, Ticket
from isochrone.bench.workload.arrivals import Instants
from isochrone.clock import NEVER, SECOND, now_ns
from isochrone.worker.scheduling.alarm import Alarm

#: Requests that are sent without a look at answers, when the generator is behind.
_MOST_AT_ONCE = 64
_SWEEP_SECONDS = 0.05
_PROGRESS_SECONDS = 0.5
#: Closed loop: pause of a slot whose request failed. A server that is away is not asked without pause.
_PAUSE_SECONDS = 0.1
#: After an interruption: time for answers to requests in flight.
_LAST_SECONDS = 1.0
#: The loop comes to the sweep every 0.05 s. So much later, it stood still: the process was stopped, or got no core.
_STALL_NS = SECOND // 4


class Progress(NamedTuple):
    """The state of a run, of one generator or of all."""

    #: Measured time so far; negative during the warm-up.
    seconds: float
    #: Requests that ended in the measured window, by outcome.
    counts: tuple[int, ...]
    in_flight: int
    #: Of the latest answers, in ns.
    median_ns: int
    p99_ns: int


class Flight:
    """One request, from its intended instant to its end."""

    __slots__ = ("first", "generator", "intended", "kind", "lag", "over", "sent_at", "sequence", "ticket")

    def __init__(self, generator: Generator, intended: int, lag: int, kind: int) -> None:
        self.generator = generator
        self.intended = intended
        self.lag = lag
        self.kind = kind
        self.sent_at = -1
        self.first = -1
        #: Its sequence and its position there.
        self.sequence: tuple[int, int] | None = None
        self.ticket: Ticket | None = None
        self.over = False

    def sent(self) -> None:
        self.sent_at = now_ns()

    def begun(self) -> None:
        if self.first < 0:
            self.first = now_ns()

    def ended(self, outcome: int, error: str) -> None:
        if not self.over:
            self.over = True
            self.generator.flight_over(self, outcome, error, now_ns())


class Generator:
    """One run. ``start`` is the instant at which the warm-up begins; the measured window follows it."""

    def __init__(
        self,
        sender: Sender[Any],
        kinds: Sequence[PreparedKind],
        choices: Iterator[int],
        *,
        start: int,
        warmup_ns: int,
        window_ns: int,
        timeout_ns: int,
        report: Callable[[Progress], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._sender = sender
        self._kinds = kinds
        self._choices = choices
        self._start = start
        self._timeout_ns = timeout_ns
        self._report = report
        self.recorder = Recorder(start + warmup_ns, start + warmup_ns + window_ns)
        self._flights: deque[Flight] = deque()
        self._in_flight = 0
        self._finished = self._loop.create_future()
        #: Nothing is sent any more.
        self._is_ending = False
        self._is_closed_loop = False
        self._timers: list[asyncio.TimerHandle] = []
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._swept_at = 0
        self._progress_timer: asyncio.TimerHandle | None = None
        self._alarm: Alarm | None = None
        self._instants: Iterator[int] = iter(())
        self._next_instant = NEVER
        self._cpu_begins = self._cpu_ends = 0
        self._measured_ns = 0

    async def run_open_loop(self, blocks: Iterable[Instants]) -> None:
        """Send at each instant, counted from the start; return when every request has ended or timed out."""
        self._instants = (instant for block in blocks for instant in block.tolist())
        self._alarm = Alarm(self._loop, self._due)
        self._begin()
        self._advance()
        self._due()
        await self._end()

    async def run_closed_loop(self, in_flight: int) -> None:
        """Keep requests in flight from the start to the end of the window."""
        self._is_closed_loop = True
        self._begin()
        self._later(max(0, self._start - now_ns()), lambda: self._fill(in_flight))
        self._later(self.recorder.ends - now_ns(), self._last_sent)
        await self._end()

    def stop(self, at: int) -> None:
        """Interrupt the run: the window ends at ``at``, and requests before it get a moment to end.

        Those that do not end are counted, without an outcome: what they would have become is not known.
        """
        if self._is_ending and not self._in_flight:
            return
        self.recorder.cut(at)
        until = at - now_ns()
        self._later(until, self._note_cpu_end)
        if self._is_closed_loop or self._next_instant >= at:
            self._later(until, self._last_sent)
        self._later(until + int(_LAST_SECONDS * SECOND), self._leave_unfinished)

    def measured_seconds(self) -> float:
        """The length of the window."""
        return max(0, self.recorder.ends - self.recorder.begins) / SECOND

    def use(self) -> GeneratorUse:
        self._note_cpu_end()
        share = (self._cpu_ends - self._cpu_begins) / self._measured_ns if self._measured_ns > 0 else 0.0
        return use_of(self.recorder.lags, share)

    # Course of a run.

    def _begin(self) -> None:
        self._later(max(0, self.recorder.begins - now_ns()), self._note_cpu_begin)
        self._later(max(0, self.recorder.ends - now_ns()), self._note_cpu_end)
        self._sweep()
        self._tell()

    async def _end(self) -> None:
        try:
            await self._finished
        finally:
            self._is_ending = True
            self._notice_stall(now_ns())
            for timer in (*self._timers, self._sweep_timer, self._progress_timer):
                if timer is not None:
                    timer.cancel()
            self._timers.clear()
            if self._alarm is not None:
                self._alarm.close()
            self._leave_unfinished()

    def _last_sent(self) -> None:
        """No further request is sent."""
        self._is_ending = True
        self._next_instant = NEVER
        self._check_finished()

    def _check_finished(self) -> None:
        if self._is_ending and not self._in_flight and not self._finished.done():
            self._finished.set_result(None)

    def _later(self, nanoseconds: int, callback: Callable[[], None]) -> None:
        self._timers.append(self._loop.call_later(max(0, nanoseconds) / SECOND, callback))

    # Sending.

    def _due(self) -> None:
        """Send what is due, and wait for the next intended instant."""
        for _ in range(_MOST_AT_ONCE):
            now = now_ns()
            if self._is_ending:
                return
            if self._next_instant > now:
                break
            if now - self._next_instant < self._timeout_ns:
                self._launch(self._next_instant, now)
            else:
                self._pass_over(self._next_instant, now)
            self._advance()
        assert self._alarm is not None
        if not self._is_ending:
            # Of an instant that has passed, the alarm is immediate: answers are read in between.
            self._alarm.set(self._next_instant)

    def _advance(self) -> None:
        """To the next intended instant; without one, to the end."""
        offset = next(self._instants, None)
        if offset is None or self._start + offset >= self.recorder.ends:
            self._last_sent()
        else:
            self._next_instant = self._start + offset

    def _fill(self, count: int) -> None:
        early = self._start - now_ns()
        if early > 0:
            # The loop rounds to milliseconds.
            self._later(early, lambda: self._fill(count))
            return
        for _ in range(count):
            self._next_of_slot()

    def _next_of_slot(self) -> None:
        if not self._is_ending:
            now = now_ns()
            if now >= self.recorder.ends:
                self._last_sent()
            else:
                self._launch(now, now)

    def _launch(self, intended: int, now: int) -> None:
        index = next(self._choices)
        kind = self._kinds[index]
        flight = Flight(self, intended, now - intended, index)
        self._flights.append(flight)
        self._in_flight += 1
        if kind.sequences is None:
            flight.ticket = self._sender.send(kind.take(), flight)
        else:
            flight.sequence = kind.sequences.take(now)
            flight.ticket = self._sender.send(kind.take_in_sequence(*flight.sequence), flight)

    def _pass_over(self, intended: int, now: int) -> None:
        """Count a request that would have timed out before it is sent: a generator that is so late catches up."""
        error = "not sent: the generator was later than the timeout"
        self.recorder.record(intended, now, -1, now, UNSENT, next(self._choices), error, now - intended)

    # Endings.

    def flight_over(self, flight: Flight, outcome: int, error: str, now: int) -> None:
        self._in_flight -= 1
        flight.ticket = None
        kind = self._kinds[flight.kind]
        if outcome == OK and kind.deadline_ns and now - flight.intended > kind.deadline_ns:
            outcome = LATE
        if flight.sequence is not None and kind.sequences is not None:
            kind.sequences.give_back(*flight.sequence, now, answered=outcome in (OK, LATE))
        sent = flight.sent_at if flight.sent_at >= 0 else now
        intended = flight.intended
        if self._is_closed_loop:
            # By definition; the time until the connection took it is the generator's. One that was begun in the window
            # and sent after it counts, too.
            intended = sent if sent < self.recorder.ends else flight.intended
        first = flight.first if kind.is_stream else -1
        self.recorder.record(intended, sent, first, now, outcome, flight.kind, error, flight.lag)
        if self._is_ending:
            if not self._in_flight:
                self._check_finished()
        elif self._is_closed_loop:
            if outcome in (FAILED, UNSENT):
                self._loop.call_later(_PAUSE_SECONDS, self._next_of_slot)
            else:
                self._next_of_slot()

    def _sweep(self) -> None:
        """Fail requests that have waited too long, and notice when the generator stood still."""
        now = now_ns()
        self._notice_stall(now)
        flights = self._flights
        while flights and (flights[0].over or flights[0].intended + self._timeout_ns <= now):
            flight = flights.popleft()
            if not flight.over:
                self._abandon(flight, f"no answer within {self._timeout_ns / SECOND:g} s")
        if len(flights) > 1024 + 2 * self._in_flight:
            # One request that hangs does not keep those after it in memory.
            self._flights = deque(flight for flight in flights if not flight.over)
        if not self._finished.done():
            self._sweep_timer = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _notice_stall(self, now: int) -> None:
        if self._swept_at and now - self._swept_at > _STALL_NS:
            self.recorder.stood_still(self._swept_at, now)
        self._swept_at = now

    def _leave_unfinished(self) -> None:
        """Count what has no outcome: requests in flight, and those that were due and are not sent."""
        for flight in [flight for flight in self._flights if not flight.over]:
            flight.over = True
            self._in_flight -= 1
            if flight.ticket is not None:
                flight.ticket.cancel()
            self.recorder.leave(flight.intended)
        while self._next_instant < self.recorder.ends:
            self.recorder.leave(self._next_instant)
            self._advance()
        self._last_sent()

    def _abandon(self, flight: Flight, reason: str) -> None:
        if flight.ticket is not None:
            flight.ticket.cancel()
        if flight.sent_at >= 0:
            flight.ended(FAILED, reason)
        else:
            flight.ended(UNSENT, "not sent: the limit of requests in flight was reached, or no connection was made")

    # Figures of the generator itself.

    def _note_cpu_begin(self) -> None:
        self._cpu_begins, self._measured_ns = time.process_time_ns(), -now_ns()

    def _note_cpu_end(self) -> None:
        if self._measured_ns < 0:
            self._cpu_ends = time.process_time_ns()
            self._measured_ns += now_ns()

    def _tell(self) -> None:
        if self._report is not None:
            recorder = self.recorder
            seconds = (min(now_ns(), recorder.ends) - recorder.begins) / SECOND
            self._report(Progress(seconds, tuple(recorder.counts), self._in_flight, *recorder.recent_latencies()))
        if not self._finished.done():
            self._progress_timer = self._loop.call_later(_PROGRESS_SECONDS, self._tell)
