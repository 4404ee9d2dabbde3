"""Requests without bytes, for tests of the request machine alone."""

from __future__ import annotations

from isochrone.clock import NEVER
from isochrone.gateway.fleet.served_model import ServedModel
from isochrone.gateway.policies.base import Demand
from isochrone.gateway.replicas import Endpoint
from isochrone.gateway.requests.instructions import Instruction
from isochrone.gateway.requests.request import Attempt, Request
from isochrone.gateway.resilience.retry_budget import Kind
from isochrone.gateway.traffic.fields import Fields


class NoFields:
    def get(self, name: bytes) -> bytes | None:
        return None


class PlainRequest(Request):
    """No two are identical."""

    number = 0

    @property
    def head(self) -> Fields:
        return NoFields()

    @property
    def body(self) -> bytes:
        return b""

    def take_fingerprint(self) -> bytes:
        return b"%d" % self.number


def plain_request(
    served: ServedModel,
    number: int,
    now: int,
    *,
    deadline: int = NEVER,
    kind: Kind = Kind.STATELESS,
    key: bytes = b"",
    priority: int = 0,
) -> PlainRequest:
    request = PlainRequest(now)
    request.number, request.served, request.kind, request.deadline = number, served, kind, deadline
    request.demand = Demand(key, deadline, 1, priority)
    return request


def told(instructions: list[Instruction]) -> list[tuple[str, int, str]]:
    """What to do, with which request, where."""
    found = []
    for do, request, subject in instructions:
        endpoint = subject.replica.endpoint if isinstance(subject, Attempt) else subject
        where = endpoint.address if isinstance(endpoint, Endpoint) else ""
        found.append((do.name, request.number if isinstance(request, PlainRequest) else 0, where))
    return found
