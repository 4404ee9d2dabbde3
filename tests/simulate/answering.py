"""A harness for single workers: sends calls at given times and records the times of their answers."""

from __future__ import annotations

from typing import Any

from isochrone.clock import MILLISECOND, NEVER
from isochrone.simulate.engine import START_NS, Engine
from isochrone.simulate.processes.calls import ANSWERED, Call
from isochrone.simulate.results.tally import Tally


def no_delay() -> int:
    return 0


class Callers:
    """Stands where a gateway does."""

    def __init__(self) -> None:
        self.engine = Engine()
        #: (ms, name of the call, outcome) in the order of answers.
        self.answers: list[tuple[float, str, int]] = []
        self.names: dict[Call, str] = {}

    def answered(self, now: int, call: Call) -> None:
        self.answers.append((self.milliseconds(now), self.names[call], call.outcome))

    def milliseconds(self, now: int) -> float:
        return round((now - START_NS) / MILLISECOND, 3)

    def send(
        self,
        worker: Any,
        at_ms: float,
        name: str,
        work: float = 1.0,
        deadline_ms: float | None = None,
        priority: int = 0,
    ) -> Call:
        deadline = NEVER if deadline_ms is None else START_NS + int(deadline_ms * MILLISECOND)
        call = Call(START_NS + int(at_ms * MILLISECOND), work, self, Tally(), deadline)
        call.priority = priority
        self.names[call] = name
        self.engine.at(call.arrived, worker.arrive, call)
        return call

    def at(self, at_ms: float, action: Any, *arguments: Any) -> None:
        self.engine.at(START_NS + int(at_ms * MILLISECOND), lambda now, _: action(now, *arguments))

    def run(self, until_ms: float = 10_000) -> list[tuple[float, str, int]]:
        self.engine.advance(START_NS + int(until_ms * MILLISECOND))
        return self.answers

    def times(self) -> dict[str, float]:
        """When each was answered well."""
        return {name: at for at, name, outcome in self.run() if outcome == ANSWERED}
