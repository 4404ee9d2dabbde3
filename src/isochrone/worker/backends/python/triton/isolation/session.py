"""The worker's side of one process of a Triton model, from its start to its end.

The instance's thread asks questions over the first link, or the event loop's does (``begin``), one at a time. A thread
of its own reads reports from the second link and watches for the death of the process: it ends the session, once, and
answers what is left in it.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import ModelFailed
from isochrone.protocol.response_outputs import ResponseOutputs
from isochrone.worker.backends.processes.child import ChildProcess, Spawner
from isochrone.worker.backends.processes.frames import Frame, FrameReader, LinkBroken, Outbox
from isochrone.worker.backends.processes.places import BadPlace, read_places
from isochrone.worker.backends.python.triton.isolation import messages
from isochrone.worker.backends.python.triton.isolation.calls import CallsOfChild
from isochrone.worker.backends.python.triton.isolation.flights import Flight, Flights
from isochrone.worker.backends.python.triton.isolation.forms import SentForms
from isochrone.worker.backends.python.triton.isolation.loop_link import LoopLink
from isochrone.worker.backends.python.triton.isolation.messages import (
    Answered,
    Ask,
    Call,
    CallTaken,
    CancelCall,
    Close,
    Failed,
    Gone,
    LogLine,
    Outcome,
    Returned,
    Start,
    Started,
    Taken,
    decoded,
    encoded,
    error_of,
)

if TYPE_CHECKING:
    from isochrone.worker.backends.interface import Answer
    from isochrone.worker.backends.processes.places import Bytes
    from isochrone.worker.backends.processes.shared_block import SharedBlock
    from isochrone.worker.backends.python.triton.server import Server

# Time for a model's finalize(); a process that takes longer is killed.
_CLOSE_MILLISECONDS = 5000
# How often callers that have gone and times are looked at while requests are in the process.
_TICK_MILLISECONDS = 50
# Time for the execute of a stream that was stopped; then the process is killed.
_GRACE_NS = 1000 * MILLISECOND
_MODULE = "isochrone.worker.backends.python.triton.isolation.child_main"


class SessionOver(Exception):
    """The process is dead. ``error`` is that of the callers."""

    def __init__(self, error: ModelFailed) -> None:
        super().__init__(str(error))
        self.error = error


class Begun(Protocol):
    """Requests that the event loop's thread has sent. One of these is called there, once."""

    def returned(self, answer: Returned, payload: Bytes) -> None:
        """Raises ``LinkBroken`` if the process sent something invalid; then ``lost`` is called later."""

    def lost(self, error: ModelFailed) -> None: ...


class Session:
    """One process, its links and the requests in it."""

    def __init__(
        self,
        spawner: Spawner,
        start: Start,
        blocks: Sequence[SharedBlock],
        server: Server,
        lost: Callable[[str], ModelFailed],
        timeout_ms: int,
    ) -> None:
        """``lost`` records how the process was lost, and makes the error of its callers."""
        self._start_message = start
        self._record_loss = lost
        self._timeout_ms = timeout_ms
        self._limit_ns = timeout_ms * MILLISECOND
        self._process = ChildProcess(spawner, _MODULE, 2, blocks)
        self._first, self._second = self._process.links
        # With a limit on the time that one read waits, a wait needs one system call and no poll.
        tick = min(_TICK_MILLISECONDS, timeout_ms or _TICK_MILLISECONDS)
        self._first.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", 0, tick * 1000))
        self._answers, self._reports = FrameReader(self._first), FrameReader(self._second)
        self._loop_link = LoopLink(self._first, self._answers, self, tick)
        #: What the loop's thread has asked, and when.
        self._begun: Begun | None = None
        self._begun_at = 0
        self._waking = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._outbox = Outbox(self._second, self._wake_up)
        self._calls = CallsOfChild(server, self._outbox.post)
        #: What the process keeps of earlier requests.
        self.forms = SentForms()
        self.flights = Flights(decoupled=start.decoupled, limit_ns=self._limit_ns)
        self._step = "load: "
        self._is_closing = False
        #: How the process was lost, if a thread knows better than its exit code says.
        self._how = ""
        #: Why the thread of the second link has to end the session, and whether it kills the process first.
        self._end_because = ""
        self._kills = False
        #: Set when the process is lost.
        self.error: ModelFailed | None = None
        self._next_look = 0
        self._thread = threading.Thread(target=self._read_reports, name=f"{start.model_name}-link", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether no further question may be asked; ``error`` may follow soon."""
        return self.error is not None or bool(self._end_because) or self._kills

    @property
    def pid(self) -> int:
        return self._process.pid

    # On the instance's thread.

    def start(self) -> Started | Failed:
        answer, _ = self._ask(encoded(self._start_message), None)
        if not isinstance(answer, Started | Failed):
            raise self.broken(f"its process answered {type(answer).__name__} to its start")
        self._step = ""
        return answer

    def wait_for_end(self) -> None:
        """Waits for ``error``, if the session is over."""
        self._thread.join()

    def execute(self, question: Frame, flights: Sequence[Flight]) -> tuple[Returned, Bytes]:
        """Runs requests; raises ``SessionOver`` if the process is dead, or was killed because it took too long."""
        watch = _ExecuteWatch(flights[0], self._limit_ns, decoupled=self._start_message.decoupled)

        def tick() -> None:
            now = now_ns()
            self._look_after(now)
            if watch.is_late(now, self.flights.get(flights[0].number) is None):
                raise self._killed(self._took_too_long)

        answer, payload = self._ask(question, tick)
        if not isinstance(answer, Returned):
            raise self.broken(f"its process answered {type(answer).__name__} to requests")
        return answer, payload

    def left_to_sender(self, flight: Flight, now: int) -> None:
        """``execute`` has returned without an answer: what its sender sends is the answer."""
        # The outlet first: the runner expects what it sends from now on.
        outlet = flight.made_outlet()
        self.flights.returned(flight, now)
        if self.error is not None:
            # The process died at this moment, and its end may not have seen that this request needs an answer.
            outlet.send(self.error, True)

    def look_after_rest(self) -> None:
        """Requests are left that only reports answer: the link's thread looks after them from now on."""
        self._wake_up()

    def broken(self, reason: str) -> SessionOver:
        """The process sent something invalid: ends it."""
        return self._over(self._process.cause_of_death(reason))

    def close(self) -> None:
        """Lets the model finalize, then ends the process; raises the model's failure to do so."""
        self._is_closing = True
        answer = None
        if self.error is None:
            ends = now_ns() + _CLOSE_MILLISECONDS * MILLISECOND

            def tick() -> None:
                now = now_ns()
                self._look_after(now)
                if now > ends:
                    raise self._killed("finalize took too long, its process was killed")

            try:
                rest = self._loop_link.take_over()
                if rest is not None:
                    self._ask([rest], tick)
                answer, _ = self._ask(encoded(Close()), tick)
                self._process.has_died(max(0, (ends - now_ns()) // MILLISECOND))
            except SessionOver:
                pass
        self.release()
        if isinstance(answer, Failed):
            raise ModelFailed(answer.message)

    def release(self) -> None:
        """Ends the process, if it has not ended, and frees what the session has."""
        self._is_closing = True
        self._loop_link.take_over()
        self._loop_link.close()
        self._process.end()
        self._thread.join()
        self._process.release()
        with self._waking:
            os.close(self._wake)
            self._wake = -1

    def _ask(self, question: Frame, tick: Callable[[], None] | None) -> tuple[messages.Answer, Bytes]:
        try:
            for part in question:
                self._first.sendall(part)
            while (received := self._answers.receive()) is None:
                if self._process.has_died():
                    received = self._answers.receive(socket.MSG_DONTWAIT)
                    if received is None:
                        raise LinkBroken("it has ended")
                    break
                if tick is not None:
                    tick()
            return decoded(messages.answers, received[0]), received[1]
        except (LinkBroken, OSError) as error:
            raise self.broken(str(error)) from None

    @property
    def _took_too_long(self) -> str:
        return f"execute took longer than execution_timeout_ms = {self._timeout_ms}, its process was killed"

    def _killed(self, how: str) -> SessionOver:
        self._how = how
        self._process.end()
        return self._over(how)

    def _over(self, how: str) -> SessionOver:
        """The process is dead. The link's thread takes what it had sent, and then ends the session."""
        self._how = self._how or how
        self._thread.join()
        assert self.error is not None
        return SessionOver(self.error)

    # On the thread of the second link.

    def _read_reports(self) -> None:
        reason = ""
        while not reason:
            poll = select.poll()
            poll.register(self._second, select.POLLIN | (select.POLLOUT if self._outbox.is_stuck else 0))
            poll.register(self._wake, select.POLLIN)
            poll.register(self._process.death, select.POLLIN)
            ready = dict(poll.poll(_TICK_MILLISECONDS if self.flights else None))
            if self._wake in ready:
                os.eventfd_read(self._wake)
            try:
                if ready.get(self._second.fileno(), 0) & select.POLLOUT:
                    self._outbox.flush()
                while (received := self._reports.receive(socket.MSG_DONTWAIT)) is not None:
                    self._take(*received)
            except LinkBroken as error:
                reason = str(error)
            reason = reason or self._end_because
            if self._kills:
                self._process.end()
            if self._process.death in ready:
                reason = reason or "it has ended"
            now = now_ns()
            if self.flights and now >= self._next_look:
                self._next_look = now + _TICK_MILLISECONDS * MILLISECOND
                self._look_after(now)
        self._finish(reason)

    def _finish(self, reason: str) -> None:
        """Ends the process, if it has not ended, and answers what is left in it."""
        cause = self._process.cause_of_death(reason)
        how = self._step + (self._how or cause)
        self.error = ModelFailed(how) if self._is_closing else self._record_loss(how)
        self._calls.cancel_all()
        for flight in self.flights.remove_all():
            if flight.has_returned or flight.outlet is not None:
                flight.made_outlet().send(self.error, True)
        self._loop_link.call_asker(self._lost)

    def _take(self, body: memoryview | Bytes, payload: Bytes) -> None:
        report = decoded(messages.reports, body)
        if isinstance(report, Answered):
            self._take_answer(report, payload)
        elif isinstance(report, Call):
            self._calls.start(report, payload)
        elif isinstance(report, CancelCall):
            self._calls.cancel(report.call)
        elif isinstance(report, CallTaken):
            self._calls.taken(report.call, report.count)
        elif isinstance(report, LogLine):
            self._calls.log(report.level, report.message)
        elif isinstance(report, Ask):
            self._calls.ask(report)

    def _take_answer(self, report: Answered, payload: Bytes) -> None:
        flight = self.flights.get(report.number)
        if flight is None:
            return
        answer = answer_of(report.outcome, payload)
        flight.since = now_ns()
        flight.sent += report.outcome is not None
        outlet = flight.made_outlet()
        if not report.is_last:
            outlet.post(answer, lambda: self._taken(flight))
        elif self.flights.remove(flight):
            outlet.send(answer, True)

    # On the loop's thread, which must not wait.

    def begin(self, question: Frame, begun: Begun, now: int) -> None:
        """Like ``execute``, without a thread. Not of decoupled models."""
        self._begun = begun
        self._begun_at = now
        self._loop_link.ask(question)
        if self.error is not None:
            # It may have ended before the loop was there to be called.
            self._loop_link.call_asker(self._lost)

    def leave_loop(self) -> None:
        """The instance's thread asks the next question."""
        self._loop_link.leave()

    def answer_came(self, body: memoryview | Bytes, payload: Bytes) -> None:
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            answer = decoded(messages.answers, body)
            if not isinstance(answer, Returned):
                raise LinkBroken(f"its process answered {type(answer).__name__} to requests")
            begun.returned(answer, payload)
        except LinkBroken as error:
            self._begun = begun
            self.link_broke(str(error))

    def link_broke(self, reason: str) -> None:
        self._end_because = self._end_because or reason
        self._wake_up()

    def tick(self) -> None:
        now = now_ns()
        self._look_after(now)
        if self._limit_ns and now - self._begun_at >= self._limit_ns:
            self._how = self._took_too_long
            self._kills = True
            self._wake_up()

    def _lost(self) -> None:
        """The session is over: nothing else answers what is open."""
        self._loop_link.end()
        begun, self._begun = self._begun, None
        if begun is not None and self.error is not None:
            begun.lost(self.error)

    def _taken(self, flight: Flight) -> None:
        count = flight.taken(now_ns())
        if count:
            self._outbox.post(encoded(Taken(flight.number, count)))

    # On any thread.

    def _look_after(self, now: int) -> None:
        """Tells the process which callers have gone, and ends requests that take too long."""
        gone = self.flights.newly_gone()
        for flight in self.flights.overdue(now):
            if self.flights.remove(flight):
                flight.is_stopped = True
                gone.append(flight.number)
                flight.made_outlet().send(
                    ModelFailed(
                        f"model '{self._start_message.model_name}': a response took longer than"
                        f" execution_timeout_ms = {self._timeout_ms}; the request was ended"
                    ),
                    True,
                )
        if gone:
            self._outbox.post(encoded(Gone(gone)))

    def _wake_up(self) -> None:
        with self._waking:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)


class _ExecuteWatch:
    """Decides when an ``execute`` has run for too long."""

    def __init__(self, flight: Flight, limit_ns: int, *, decoupled: bool) -> None:
        """``flight``: its request, or the first of several; of a decoupled model there is only one."""
        self._flight = flight
        self._limit_ns = limit_ns
        self._decoupled = decoupled
        self._began = flight.since
        self._stopped = 0

    def is_late(self, now: int, is_answered: bool) -> bool:
        """``is_answered``: its request needs nothing more."""
        if not self._limit_ns:
            return False
        if not self._decoupled:
            return now - self._began >= self._limit_ns
        # A stream may last; one response may not, and neither may what comes after the last one.
        if self._flight.is_stopped:
            self._stopped = self._stopped or now
            return now - self._stopped >= min(self._limit_ns, _GRACE_NS)
        return is_answered and now - self._flight.since >= self._limit_ns


def answer_of(outcome: Outcome, payload: Bytes, *, copy: bool = False) -> Answer:
    """A model's answer; its outputs are in ``payload``. Raises ``LinkBroken`` if the process sent something invalid."""
    if outcome is None:
        return None
    if isinstance(outcome, messages.Error):
        return error_of(outcome)
    try:
        outputs = read_places(payload, outcome.places, copy=copy)
    except BadPlace as error:
        raise LinkBroken(f"an invalid answer: {error}") from error
    return ResponseOutputs(outputs, outcome.parameters) if outcome.parameters else outputs
