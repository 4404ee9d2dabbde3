"""What every simulated worker is: takes calls, answers them, tells its load, and can stop, stall, slow down or err.

Subclasses model the compute: ``fifo_worker``, ``sharing_worker``, ``exact_worker``. This class does what is common:
the way back over the network, failures, and the count of what is in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isochrone.gateway.replicas import LoadReport
from isochrone.simulate.processes.calls import ANSWERED, ELSEWHERE, FAILED, Call
from isochrone.simulate.engine import Engine, Handler

#: What a worker does with what reaches it.
SERVING, STOPPED, STALLED, ERRING = range(4)


class Worker:
    """One worker. ``in_flight`` is kept by the subclasses: it changes where they know it best."""

    def __init__(self, number: int, engine: Engine, delay: Callable[[], int], speed: float = 1.0) -> None:
        self.number = number
        self.engine = engine
        self.delay = delay
        #: Of this worker when nothing is wrong, and now.
        self.full_speed = speed
        self.speed = speed
        self.in_flight = 0
        #: ns of compute, summed over instances or cores.
        self.used = 0.0
        self.answers = 0
        self.state = SERVING
        self._stalled_at = 0
        #: What would have happened while it stalled.
        self._held: list[tuple[int, Handler, Any]] = []

    # What the gateway's side calls, all of it as events.

    def arrive(self, now: int, call: Call) -> None:
        """A call is at the door."""
        state = self.state
        if state == SERVING:
            if not call.over:
                self.accept(now, call)
        elif state == STALLED:
            self._held.append((now, self.arrive, call))
        elif not call.over:
            self.answer(now, call, FAILED, None if state == STOPPED else self.report(now))

    def abandoned(self, now: int, call: Call) -> None:
        """The caller has gone."""
        if self.state == STALLED:
            self._held.append((now, self.abandoned, call))
        elif self.state != STOPPED:
            self.cancel(now, call)

    def answer(self, now: int, call: Call, outcome: int, report: LoadReport | None) -> None:
        if outcome == ANSWERED:
            self.answers += 1
        call.outcome = outcome
        call.report = report
        self.engine.at(now + self.delay(), call.gateway.answered, call)

    def report(self, now: int) -> LoadReport:
        """Its own word on its load."""
        raise NotImplementedError

    # What subclasses do.

    def accept(self, now: int, call: Call) -> None:
        raise NotImplementedError

    def cancel(self, now: int, call: Call) -> None:
        """Takes a call out if that saves work; it may have been answered already."""
        raise NotImplementedError

    def drop_all(self, now: int) -> list[Call]:
        """Forgets everything it has, and returns it: the process is gone."""
        raise NotImplementedError

    def speed_changed(self, now: int) -> None:
        """``speed`` is another one from now on."""

    # Failures.

    def holds(self, now: int, handler: Handler, argument: Any) -> bool:
        """Whether an event of the worker's own must wait because it stalls; it is then kept for later."""
        if self.state != STALLED:
            return False
        self._held.append((now, handler, argument))
        return True

    def stop(self, now: int) -> None:
        """The process dies: what it had fails, what comes is refused at the socket."""
        held, self._held = self._held, []
        for _, handler, argument in held:
            if handler == self.arrive and not argument.over:
                self.answer(now, argument, FAILED, None)
        for call in self.drop_all(now):
            call.place = ELSEWHERE
            if not call.over:
                self.answer(now, call, FAILED, None)
        self.state = STOPPED

    def stall(self, now: int) -> None:
        """Nothing moves, nobody is told (SIGSTOP)."""
        self.state = STALLED
        self._stalled_at = now
        self.speed_changed(now)

    def err(self, now: int) -> None:
        """Answers everything new with an error, at once."""
        self.state = ERRING

    def slow(self, now: int, factor: float) -> None:
        self.speed = self.full_speed * factor
        self.speed_changed(now)

    def recover(self, now: int) -> None:
        """All is well again."""
        stalled_for = now - self._stalled_at if self.state == STALLED else 0
        self.state = SERVING
        self.speed = self.full_speed
        self.speed_changed(now)
        held, self._held = self._held, []
        for instant, handler, argument in held:
            # Messages waited in the socket; compute goes on where it was, so it ends later by the length of the stall.
            waits = handler in (self.arrive, self.abandoned)
            self.engine.at(now if waits else instant + stalled_for, handler, argument)
