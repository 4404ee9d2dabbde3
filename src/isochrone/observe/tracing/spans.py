"""The spans of a recorded request: pure, so that their shape is tested without OpenTelemetry.

A request is one span (``infer MODEL``). Its children are ``queue``, ``batch`` with its child ``compute``, or, of an
ensemble, the requests of its steps. The steps that generated an answer (``prefill``, ``decode``) are children of
``compute``. Each member of a batch has a ``batch`` span in its own trace, linked to the other members: every trace is
complete by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from isochrone.clock import MILLISECOND, NEVER
from isochrone.observe.tracing.record import BatchMembers, RequestRecord

Attribute = str | int | float | bool
#: Kinds of spans.
SERVER: Final = "server"
CLIENT: Final = "client"
INTERNAL: Final = "internal"
#: Links of one span: OpenTelemetry's default limit.
_MAX_LINKS: Final = 128


@dataclass(frozen=True, slots=True)
class Span:
    """One span; instants are ns since the epoch."""

    name: str
    trace_id: int
    span_id: int
    #: 0: none.
    parent_id: int
    start: int
    end: int
    attributes: dict[str, Attribute] = field(default_factory=dict)
    #: (trace, span).
    links: tuple[tuple[int, int], ...] = ()
    #: The message of an error; None: no error.
    error: str | None = None
    #: SERVER: it answers a caller of another process, where its parent is. CLIENT: it asks another process.
    kind: str = INTERNAL
    trace_state: str = ""


def spans_of(values: tuple[Any, ...], offset: int, new_span_id: Callable[[], int]) -> Iterator[Span]:
    """The spans of a request and of its steps.

    ``values``: those of a ``RequestRecord``. ``offset``: from the monotonic clock to the epoch, in ns.
    """
    yield from _spans(RequestRecord._make(values), offset, new_span_id, SERVER)


def _spans(record: RequestRecord, offset: int, new_span_id: Callable[[], int], kind: str) -> Iterator[Span]:
    yield Span(
        f"infer {record.model}",
        record.trace_id,
        record.span_id,
        record.parent_id,
        record.arrived + offset,
        record.ended + offset,
        _attributes(record),
        error=record.error_message or record.error_code if record.error_code else None,
        kind=kind,
        trace_state=record.trace_state,
    )
    if record.steps is not None:
        for step in list(record.steps):
            yield from _spans(RequestRecord._make(step), offset, new_span_id, INTERNAL)
        return

    def child(
        name: str,
        parent_id: int,
        start: int,
        end: int,
        attributes: dict[str, Attribute] | None = None,
        links: tuple[tuple[int, int], ...] = (),
    ) -> Span:
        own = (start + offset, end + offset, attributes or {}, links)
        return Span(name, record.trace_id, new_span_id(), parent_id, *own, trace_state=record.trace_state)

    if not record.dispatched:
        # It waited and never ran. One that was rejected on arrival did not wait.
        if record.enqueued > record.arrived:
            yield child("queue", record.span_id, record.enqueued, record.ended)
        yield from _steps(record, record.span_id, child)
        return
    if record.dispatched > record.enqueued:
        yield child("queue", record.span_id, record.enqueued, record.dispatched)
    if record.compute_end > record.compute_start:
        links = (
            () if record.batch is None else links_to(record.batch, record.trace_id, record.span_id, record.parent_id)
        )
        batch = child("batch", record.span_id, record.dispatched, record.compute_end, _batch_attributes(record), links)
        yield batch
        parent_id = batch.span_id
        if record.infer_end > record.infer_start:
            compute = child("compute", batch.span_id, record.infer_start, record.infer_end)
            yield compute
            parent_id = compute.span_id
    else:
        parent_id = record.span_id
    yield from _steps(record, parent_id, child)


def _steps(record: RequestRecord, parent_id: int, child: Callable[..., Span]) -> Iterator[Span]:
    """The steps that generated an answer."""
    for start, end, tokens, is_prompt, sequences, steps in record.generation or ():
        attributes: dict[str, Attribute] = {
            "isochrone.tokens": tokens,
            "isochrone.step.sequences": sequences,
            "isochrone.steps": steps,
        }
        yield child("prefill" if is_prompt else "decode", parent_id, start, end, attributes)


def links_to(batch: BatchMembers, trace_id: int, span_id: int, parent_id: int) -> tuple[tuple[int, int], ...]:
    """The members of a batch beside the given one: their spans if they are kept, otherwise those of their callers."""
    kept = list(batch.kept)
    spans = [(trace, span) for trace, span, _ in kept if span != span_id]
    answered = {(trace_id, parent_id), *((trace, parent) for trace, _, parent in kept)}
    return (*spans, *(caller for caller in batch.callers if caller not in answered))[:_MAX_LINKS]


def _attributes(record: RequestRecord) -> dict[str, Attribute]:
    attributes: dict[str, Attribute] = {
        "isochrone.model": record.model,
        "isochrone.version": record.version,
        "isochrone.rows": record.rows,
    }
    if record.reason:
        attributes["isochrone.kept"] = record.reason
    if record.request_id:
        attributes["isochrone.request_id"] = record.request_id
    if record.deadline != NEVER:
        attributes["isochrone.deadline_ms"] = (record.deadline - record.arrived) / MILLISECOND
        attributes["isochrone.deadline_missed"] = record.ended > record.deadline
    if record.error_code:
        attributes["error.type"] = record.error_code
    return attributes


def _batch_attributes(record: RequestRecord) -> dict[str, Attribute]:
    batch = record.batch
    if batch is None:
        return {"isochrone.batch.requests": 1, "isochrone.batch.rows": record.rows}
    return {
        "isochrone.batch.requests": batch.requests,
        "isochrone.batch.rows": batch.rows,
        "isochrone.batch.id": f"{batch.span_id:016x}",
    }
