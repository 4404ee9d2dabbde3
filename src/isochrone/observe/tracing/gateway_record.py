"""The record of one request through a gateway, and its spans.

A request is one span (``gateway MODEL``). Its children are ``place``, until the first attempt is sent, and one
``attempt`` for each sending: retries follow each other, hedges are beside each other. A worker's spans are children of
its attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from isochrone.clock import MILLISECOND, NEVER
from isochrone.observe.tracing.spans import CLIENT, SERVER, Attribute, Span


class AttemptRecord(NamedTuple):
    """One sending to one worker; instants are monotonic ns."""

    span_id: int
    endpoint: str
    version: str
    is_hedge: bool
    sent: int
    ended: int
    #: "answered", "cancelled", or the code of the error.
    outcome: str


class GatewayRecord(NamedTuple):
    """One request."""

    #: One of ``record.REASONS``.
    reason: str
    model: str
    arrived: int
    ended: int
    deadline: int
    trace_id: int
    span_id: int
    #: 0: the request begins its trace.
    parent_id: int
    trace_state: str
    #: Of an error; "": none.
    error_code: str
    error_message: str
    attempts: tuple[AttemptRecord, ...]


#: Outcomes that are no errors.
_FINE = ("answered", "cancelled")


def gateway_spans(values: tuple[Any, ...], offset: int, new_span_id: Callable[[], int]) -> Iterator[Span]:
    """The spans of the values of a ``GatewayRecord``. ``offset``: from the monotonic clock to the epoch, in ns."""
    record = GatewayRecord._make(values)
    attempts = record.attempts
    attributes: dict[str, Attribute] = {
        "isochrone.model": record.model,
        "isochrone.kept": record.reason,
        "isochrone.attempts": len(attempts),
    }
    if record.deadline != NEVER:
        attributes["isochrone.deadline_ms"] = (record.deadline - record.arrived) / MILLISECOND
        attributes["isochrone.deadline_missed"] = record.ended > record.deadline
    if record.error_code:
        attributes["error.type"] = record.error_code
    yield Span(
        f"gateway {record.model}",
        record.trace_id,
        record.span_id,
        record.parent_id,
        record.arrived + offset,
        record.ended + offset,
        attributes,
        error=record.error_message or record.error_code if record.error_code else None,
        kind=SERVER,
        trace_state=record.trace_state,
    )
    placed = attempts[0].sent if attempts else record.ended
    instants = (record.arrived + offset, placed + offset)
    state = record.trace_state
    yield Span("place", record.trace_id, new_span_id(), record.span_id, *instants, trace_state=state)
    for attempt in attempts:
        is_fine = attempt.outcome in _FINE
        of_attempt: dict[str, Attribute] = {
            "server.address": attempt.endpoint,
            "isochrone.version": attempt.version,
            "isochrone.hedge": attempt.is_hedge,
            "isochrone.outcome": attempt.outcome,
        }
        yield Span(
            "attempt",
            record.trace_id,
            attempt.span_id,
            record.span_id,
            attempt.sent + offset,
            attempt.ended + offset,
            of_attempt,
            error=None if is_fine else attempt.outcome,
            kind=CLIENT,
            trace_state=state,
        )
