"""Traces of a gateway: notes the shell's instructions, and leaves a record of each request that is kept.

A gateway that is not traced has none of this: its requests cost one test for None where instructions are executed, and
one where they are sent. A traced one writes the context of each attempt's own span into what it sends, in place of the
caller's. Everything but ``start`` and ``stop`` runs on the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import now_ns
from isochrone.errors import DeadlineExceeded, IsochroneError
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.trail import Trail, TrailedAttempt
from isochrone.observe.snapshot import TraceSnapshot
from isochrone.observe.tracing.exporter import Sink, TraceExporter
from isochrone.observe.tracing.gateway_record import AttemptRecord, gateway_spans
from isochrone.observe.tracing.identities import new_span_id, new_trace_id
from isochrone.observe.tracing.otlp import OtlpSink
from isochrone.observe.tracing.record import CALLER, DEADLINE_MISS, ERROR, SHARE, SLOWEST, TraceQueue
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.observe.tracing.tail_sampling import SlowestOfMinute, TraceShare
from isochrone.observe.tracing.trace_parent import parse_trace_parent, write_trace_parent

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt

log = structlog.get_logger(__name__)

_MAX_MESSAGE = 500
_MAX_STATE = 512
#: The length of a header field in one byte.
_MAX_PARENT = 127


class GatewayTrace:
    """The traces of one gateway."""

    def __init__(self, export: ExportSettings, rate: int, sink: Callable[[ExportSettings], Sink] = OtlpSink) -> None:
        """``rate``: one in so many requests, beside those that are kept for a reason of their own; 0: none."""
        self._queue = TraceQueue(export.bsp_max_queue_size)
        self._exporter = TraceExporter(self._queue, export, lambda: sink(export), gateway_spans)
        self._share = TraceShare(rate, -1)
        self._slowest = SlowestOfMinute(now_ns())

    # On the event loop's thread.

    def note(self, instructions: list[Instruction]) -> None:
        """The shell is about to execute them."""
        for do, request, subject in instructions:
            try:
                self._note(do, request, subject)
            except Exception as error:
                # Tracing must not cost a request its answer.
                log.error("a request could not be traced", instruction=do.name, exc_info=error)

    def _note(self, do: Do, request: Any, subject: Any) -> None:
        if do is Do.SEND:
            self._sent(request, subject)
        elif do is Do.ANSWER:
            self._answered(request, subject)
        elif do is Do.REJECT or do is Do.CUT_OFF:
            self._ended(request, subject.code, subject.message, isinstance(subject, DeadlineExceeded))
        elif do is Do.CANCEL:
            self.attempt_ended(subject, "cancelled")

    def attempt_ended(self, attempt: UpstreamAttempt | Any, outcome: str) -> None:
        """An attempt has ended, whatever becomes of its request."""
        trail: Trail | None = attempt.request.trail
        if trail is not None:
            trail.end(attempt, outcome, now_ns())

    def lost(self, attempt: UpstreamAttempt, error: IsochroneError) -> None:
        self.attempt_ended(attempt, error.code)

    def caller_gone(self, request: CallerRequest) -> None:
        """Its attempts are cancelled, and nobody is answered."""
        if request.trail is not None and (request.trail.reason or request.deadline < now_ns()):
            self._ended(request, "cancelled", "the caller has gone", is_miss=False, is_error=False)
        # A trail refers to its attempts, and these to the request: nothing may depend on the collector.
        request.trail = None

    def tick(self, now: int) -> None:
        """Keeps the slowest of a minute that is over."""
        for record in self._slowest.ended(now):
            self._queue.put(record)

    def _sent(self, request: Any, attempt: Any) -> None:
        if request.shadow is not None:
            # A copy is not traced; what its caller sent goes along.
            given = request.head.get(b"traceparent") or b""
            attempt.trace_parent = given if len(given) < _MAX_PARENT else b""
            return
        trail: Trail | None = request.trail
        if trail is None:
            trail = request.trail = self._begin(request)
        span_id = new_span_id()
        trail.attempts.append(TrailedAttempt(attempt, span_id, now_ns()))
        attempt.trace_parent = write_trace_parent(trail.trace_id, span_id, bool(trail.reason)).encode()

    def _begin(self, request: CallerRequest | Any) -> Trail:
        head = request.head
        text = head.get(b"traceparent")
        parent = parse_trace_parent(text.decode("latin-1")) if text is not None else None
        if parent is None:
            trace_id, parent_id, state = new_trace_id(), 0, ""
        else:
            trace_id, parent_id = parent.trace_id, parent.span_id
            state = (head.get(b"tracestate") or b"").decode("latin-1")[:_MAX_STATE]
        reason = CALLER if parent is not None and parent.is_sampled else SHARE if self._share.is_due() else ""
        return Trail(trace_id, new_span_id(), parent_id, state, reason)

    def _answered(self, request: Any, attempt: UpstreamAttempt) -> None:
        if request.trail is None:
            return
        problem = _problem(attempt)
        self.attempt_ended(attempt, problem or "answered")
        self._ended(request, problem, "", is_miss=problem in ("http_504", "grpc_4"))

    def _ended(self, request: Any, code: str, message: str, is_miss: bool, is_error: bool = True) -> None:
        if request is None or request.shadow is not None:
            return
        now = now_ns()
        served = getattr(request, "served", None)
        # One that was rejected before it was sent has none.
        trail: Trail = request.trail or self._begin(request)
        request.trail = None
        if is_miss or request.deadline < now:
            reason = DEADLINE_MISS
        else:
            reason = ERROR if code and is_error else trail.reason
        # A request that waited for a worker counts as arrived when it goes on.
        duration = now - request.came_at
        if not reason and duration <= self._slowest.threshold:
            return
        record = (
            reason or SLOWEST,
            # A stream that was held before its first message belongs to no model.
            served.name if served is not None else "",
            request.came_at,
            now,
            request.deadline,
            trail.trace_id,
            trail.span_id,
            trail.parent_id,
            trail.trace_state,
            code,
            message[:_MAX_MESSAGE],
            tuple(_record(each, now) for each in trail.attempts),
        )
        if reason:
            self._queue.put(record)
        else:
            self._slowest.add(duration, record)

    # On any thread.

    def start(self) -> None:
        self._exporter.start()

    def close(self) -> None:
        """Hands the last records to the exporter. Before ``stop``, on the event loop's thread."""
        for record in self._slowest.close(now_ns()):
            self._queue.put(record)

    def stop(self, seconds: float) -> None:
        self._exporter.stop(seconds)

    def snapshot(self) -> TraceSnapshot:
        return TraceSnapshot(dict(self._queue.kept), self._queue.dropped, self._exporter.failed)


def _record(each: TrailedAttempt, now: int) -> AttemptRecord:
    attempt = each.attempt
    return AttemptRecord(
        each.span_id,
        attempt.replica.endpoint.address,
        attempt.replica_set.version,
        attempt.is_hedge,
        each.sent,
        each.ended or now,
        each.outcome or "cancelled",
    )


def _problem(attempt: UpstreamAttempt) -> str:
    """The error that an answer carries; "": none."""
    for name, value in attempt.trailers or attempt.headers:
        if name == b"grpc-status":
            return "" if value == b"0" else f"grpc_{value.decode('latin-1')[:10]}"
    return "" if attempt.status < 400 else f"http_{attempt.status}"
