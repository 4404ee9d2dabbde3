"""Base class of simulated workers, which accept calls, answer them, report their load, and can fail.

Subclasses model the compute: ``fifo_worker``, ``sharing_worker``, ``exact_worker``. The base class sends answers over
the network and implements failures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from isochrone.gateway.replicas import LoadReport
from isochrone.simulate.engine import Engine, Handler
from isochrone.simulate.processes.calls import ANSWERED, ELSEWHERE, FAILED, LOST, MODEL, UNREACHABLE, Call

#: States of a worker.
SERVING, STOPPED, STALLED, ERRING = range(4)


class Worker:
    """One worker. Subclasses maintain ``in_flight``."""

    #: What gateways know of it: its models, tier and kind of device.
    models: Sequence[str] = (MODEL,)
    tier = ""
    device = ""

    def __init__(self, number: int, engine: Engine, delay: Callable[[], int], speed: float = 1.0) -> None:
        self.number = number
        self.engine = engine
        self.delay = delay
        #: Speed without a failure, and current speed.
        self.full_speed = speed
        self.speed = speed
        self.in_flight = 0
        #: ns of compute, summed over instances or cores.
        self.used = 0.0
        self.answers = 0
        self.state = SERVING
        self._stalled_at = 0
        #: Events that were due while it was stalled.
        self._held: list[tuple[int, Handler, Any]] = []

    # Called by gateways, as events.

    def arrive(self, now: int, call: Call) -> None:
        """Handle an arriving call."""
        state = self.state
        if state == SERVING:
            if not call.over:
                self.accept(now, call)
        elif state == STALLED:
            self._held.append((now, self.arrive, call))
        elif not call.over:
            if state == STOPPED:
                self.answer(now, call, UNREACHABLE, None)
            else:
                self.answer(now, call, FAILED, self.report(now))

    def abandoned(self, now: int, call: Call) -> None:
        """Handle a call whose caller has gone."""
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
        """The load that it reports."""
        raise NotImplementedError

    # Implemented by subclasses.

    def accept(self, now: int, call: Call) -> None:
        raise NotImplementedError

    def cancel(self, now: int, call: Call) -> None:
        """Remove a call if that saves work; it may have been answered already."""
        raise NotImplementedError

    def drop_all(self, now: int) -> list[Call]:
        """Remove and return all calls: the process has ended."""
        raise NotImplementedError

    def speed_changed(self, now: int) -> None:
        """Handle a change of ``speed``."""

    # Failures.

    def holds(self, now: int, handler: Handler, argument: Any) -> bool:
        """Whether an event of the worker must wait because it is stalled; it is then kept."""
        if self.state != STALLED:
            return False
        self._held.append((now, handler, argument))
        return True

    def stop(self, now: int) -> None:
        """End the process: its calls fail, and new connections are refused."""
        held, self._held = self._held, []
        for _, handler, argument in held:
            if handler == self.arrive and not argument.over:
                self.answer(now, argument, LOST, None)
        for call in self.drop_all(now):
            call.place = ELSEWHERE
            if not call.over:
                self.answer(now, call, LOST, None)
        self.state = STOPPED

    def stall(self, now: int) -> None:
        """Stop handling events without closing connections, as under SIGSTOP."""
        self.state = STALLED
        self._stalled_at = now
        self.speed_changed(now)

    def err(self, now: int) -> None:
        """Answer every new call with an error immediately."""
        self.state = ERRING

    def slow(self, now: int, factor: float) -> None:
        self.speed = self.full_speed * factor
        self.speed_changed(now)

    def recover(self, now: int) -> None:
        """End any failure."""
        stalled_for = now - self._stalled_at if self.state == STALLED else 0
        self.state = SERVING
        self.speed = self.full_speed
        self.speed_changed(now)
        held, self._held = self._held, []
        for instant, handler, argument in held:
            # Messages waited in the socket. Compute resumes, so it ends later by the length of the stall.
            waits = handler in (self.arrive, self.abandoned)
            self.engine.at(now if waits else instant + stalled_for, handler, argument)
