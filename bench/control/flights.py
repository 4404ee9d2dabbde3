"""One request in flight and the check of its answer, for the clients of both transports.

Every request carries a unique number and every model doubles it, so that an answer to another request, or of a model
that did not finish, is recognised. Must never accept an answer that does not state its versions.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.control.history import ERROR, LOST, OK, Answer, HistoryWriter
from bench.control.models import CHAIN, SOLO, STAGE_OUTPUTS, STAGES
from bench.control.trial_models import SCORE

#: Output tensor → the stage that wrote its version there, of each model.
VERSION_OUTPUTS: Mapping[str, Mapping[str, str]] = {
    CHAIN: STAGE_OUTPUTS,
    **{model: {"VERSION": model} for model in (SOLO, *STAGES)},
    # Its versions are compared by their outputs, so the outputs must not contain the version.
    SCORE: {},
}
#: The factor between a model's input and output.
FACTORS = {CHAIN: 4.0, **dict.fromkeys((SOLO, *STAGES, SCORE), 2.0)}
#: The start of every error that only says that the server went away.
CONNECTION = "connection"
#: FP32 holds whole numbers exactly up to here.
_NUMBERS = 1 << 22


@dataclass(slots=True)
class Flight:
    """One request in flight."""

    model: str
    gateway: str
    number: int
    #: Whether it retries a request whose connection ended.
    is_retry: bool = False
    #: The agent in the request's header; "": none.
    agent: str = ""
    started_ns: int = field(default_factory=time.monotonic_ns)
    is_over: bool = False

    @property
    def value(self) -> float:
        return float(self.number % _NUMBERS)


class Crew:
    """All flights of one client: counted when they begin, recorded once when they end."""

    def __init__(self, client: str, writer: HistoryWriter) -> None:
        self._client = client
        self._writer = writer
        self._flights: dict[int, Flight] = {}
        self._numbers = 0

    def begin(self, model: str, gateway: str, agent: str = "", *, is_retry: bool = False) -> Flight:
        self._writer.begin()
        self._numbers += 1
        flight = Flight(model, gateway, self._numbers, is_retry, agent)
        self._flights[flight.number] = flight
        return flight

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def answered(self, flight: Flight, version: str, outputs: Mapping[str, float]) -> None:
        """A success, as far as the server says; outputs hold one number each."""
        ended = time.monotonic_ns()
        expected = flight.value * FACTORS[flight.model]
        if outputs.get("Y") != expected:
            said = f"wrong answer: expected Y {expected:g}, given {outputs.get('Y')}"
            self._end(flight, ended, version, (), ERROR, said)
            return
        wanted = VERSION_OUTPUTS[flight.model]
        stages = tuple((stage, f"{outputs[name]:g}" if name in outputs else "") for name, stage in wanted.items())
        self._end(flight, ended, version, stages, OK, "")

    def failed(self, flight: Flight, error: str) -> None:
        self._end(flight, time.monotonic_ns(), "", (), ERROR, error)

    def lost(self, before_ns: int) -> list[Flight]:
        """Abandon all that started before an instant; return them."""
        given_up = [flight for flight in self._flights.values() if flight.started_ns < before_ns]
        for flight in given_up:
            self._end(flight, time.monotonic_ns(), "", (), LOST, "no answer")
        return given_up

    def _end(
        self, flight: Flight, ended: int, version: str, stages: tuple[tuple[str, str], ...], outcome: str, error: str
    ) -> None:
        if flight.is_over:
            return  # it was given up, and its answer came after all
        flight.is_over = True
        del self._flights[flight.number]
        client = f"{self._client}/{flight.agent}" if flight.agent else self._client
        self._writer.add(
            Answer(client, flight.gateway, flight.model, flight.started_ns, ended, version, stages, outcome, error)
        )


class Transport(ABC):
    """Sends flights; each ends through the crew, and is then passed to ``landed``."""

    @abstractmethod
    async def open(self) -> None:
        """Connections that are there before the first request; a gateway that is away is no error."""

    @abstractmethod
    def send(self, flight: Flight) -> None: ...

    @abstractmethod
    def give_up(self, flight: Flight) -> None:
        """Abandon it; its connection must not be used again."""

    @abstractmethod
    async def close(self) -> None: ...
