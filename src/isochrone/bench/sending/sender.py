"""The interface between the generator and transports, and what a server's answer means as an outcome."""

from __future__ import annotations

from typing import Protocol, TypeVar

from isochrone.bench.results.outcomes import FAILED, OK, REJECTED
from isochrone.errors import GRPC_DEADLINE_EXCEEDED, GRPC_RESOURCE_EXHAUSTED, GRPC_UNAVAILABLE

#: Characters of an error message that are kept.
MOST_TEXT = 200

_REJECTED_HTTP = frozenset((429, 503, 504))
_REJECTED_GRPC = frozenset((GRPC_UNAVAILABLE, GRPC_RESOURCE_EXHAUSTED, GRPC_DEADLINE_EXCEEDED))

#: A request in the form of one protocol. It can be sent any number of times.
Encoded = TypeVar("Encoded", contravariant=True)


class Done(Protocol):
    """Receives the course of one request: ``sent`` at most once, then ``begun`` at most once, then ``ended``."""

    def sent(self) -> None:
        """The request was written to a connection."""
        ...

    def begun(self) -> None:
        """The first byte of the answer, or the first token of a stream."""
        ...

    def ended(self, outcome: int, error: str) -> None:
        """OK, REJECTED or FAILED. ``error`` is empty for OK."""
        ...


class Ticket(Protocol):
    """A request that was given to a sender."""

    def cancel(self) -> None:
        """Give it up: ``Done`` receives nothing. What a server computes for it is cancelled where the protocol can."""
        ...


class Sender(Protocol[Encoded]):
    """Connections to one server, for one event loop."""

    async def open(self) -> None:
        """Connect. Raises ``Unavailable``."""
        ...

    def send(self, request: Encoded, done: Done) -> Ticket:
        """Send now, or when a connection has room. Never raises for what the server does."""
        ...

    async def close(self) -> None: ...


def outcome_of_http(status: int) -> int:
    return OK if status == 200 else REJECTED if status in _REJECTED_HTTP else FAILED


def outcome_of_grpc(status: int) -> int:
    return OK if status == 0 else REJECTED if status in _REJECTED_GRPC else FAILED


def shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_TEXT else f"{line[: MOST_TEXT - 1]}…"
