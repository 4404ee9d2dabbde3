"""Traces of a gateway: notes the shell's instructions, and leaves a record of each request that is kept.

A gateway that is not traced has none of this: its requests cost one test for None where instructions are executed, and
one where they are sent. Of a request that nobody samples, nothing is noted until it fails, is sent again, or is over
and slow. It goes on without a context, unless its caller sent one: a context makes each head different, and workers
remember the heads that they have read.

The others are sent with the context of each attempt's own span, in place of the caller's. Everything but ``start`` and
``stop`` runs on the event loop's thread. A fault here is logged, and costs no request its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import NEVER, now_ns
from isochrone.errors import DeadlineExceeded, IsochroneError
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.gateway.requests.trail import Trail, TrailedAttempt
from isochrone.observe.failure_limit import FailureLimit
from isochrone.observe.snapshot import TraceSnapshot
from isochrone.observe.tracing.exporter import Sink, TraceExporter
from isochrone.observe.tracing.gateway_record import AttemptRecord, gateway_spans
from isochrone.observe.tracing.identities import new_span_id, new_trace_id
from isochrone.observe.tracing.otlp import OtlpSink
from isochrone.observe.tracing.record import CALLER, DEADLINE_MISS, ERROR, SHARE, SLOWEST, TraceQueue
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.observe.tracing.tail_sampling import SlowestOfMinute, TraceShare
from isochrone.observe.tracing.trace_parent import TRACE_PARENT, trace_name, trace_parent_in, write_trace_parent

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt

log = structlog.get_logger(__name__)

_CANCELLED = "cancelled"
_MAX_MESSAGE = 500
_MAX_STATE = 512
#: The length of a header field in one byte.
_MAX_PARENT = 127
#: Models with slowest requests of their own; further ones share theirs.
_MAX_MODELS = 256


class GatewayTrace:
    """The traces of one gateway."""

    def __init__(
        self,
        export: ExportSettings,
        rate: int,
        sink: Callable[[ExportSettings], Sink] = OtlpSink,
        *,
        sends_all: bool = False,
    ) -> None:
        """``rate``: one in so many requests, beside those that are kept for a reason of their own; 0: none.

        ``sends_all``: every request is sent with a context, so that what a worker keeps of it belongs to the same
        trace.
        """
        self._sends_all = sends_all
        self._queue = TraceQueue(export.bsp_max_queue_size)
        self._exporter = TraceExporter(self._queue, export, lambda: sink(export), gateway_spans)
        self._share = TraceShare(rate, -1)
        self._failures = FailureLimit(export.failures_per_second, now_ns())
        #: By model, of those with requests in this minute.
        self._slowest: dict[str, SlowestOfMinute] = {}

    # On the event loop's thread.

    def note(self, instructions: list[Instruction]) -> None:
        """The shell is about to execute them."""
        for do, request, subject in instructions:
            try:
                self._note(do, request, subject)
            except Exception as error:
                _log_fault(do.name, error)

    def _note(self, do: Do, request: Any, subject: Any) -> None:
        if do is Do.SEND:
            self._sent(request, subject)
        elif do is Do.ANSWER:
            self._answered(request, subject)
        elif do is Do.REJECT or do is Do.CUT_OFF:
            self._ended(request, subject.code, subject.message, isinstance(subject, DeadlineExceeded))
        elif do is Do.CANCEL:
            self.attempt_ended(subject, subject.given_up or _CANCELLED)

    def attempt_ended(self, attempt: UpstreamAttempt | Any, outcome: str) -> None:
        """An attempt has ended, whatever becomes of its request."""
        try:
            request: Any = attempt.request
            trail: Trail | None = request.trail
            if trail is None and outcome != _CANCELLED and request.shadow is None:
                # What went wrong with it is told, should the request fail.
                trail = self._trail_of(request, attempt)
            if trail is not None:
                trail.end(attempt, outcome, now_ns())
        except Exception as error:
            _log_fault("the end of an attempt", error)

    def lost(self, attempt: UpstreamAttempt, error: IsochroneError) -> None:
        self.attempt_ended(attempt, error.code)

    def broken_off(self, request: CallerRequest, error: IsochroneError | None) -> None:
        """Its attempts are cancelled. ``error``: what its caller is answered with; None: the caller has gone."""
        try:
            if error is not None:
                self._ended(request, error.code, error.message, isinstance(error, DeadlineExceeded))
            elif request.trail is not None and (request.trail.reason or request.deadline < now_ns()):
                self._ended(request, "cancelled", "the caller has gone", is_miss=False, is_error=False)
        except Exception as fault:
            _log_fault("a request that was broken off", fault)
        # A trail refers to its attempts, and these to the request: nothing may depend on the collector.
        request.trail = None

    def tick(self, now: int) -> None:
        """Keeps the slowest of a minute that is over."""
        for model, slowest in list(self._slowest.items()):
            records = slowest.ended(now)
            for record in records:
                self._queue.put(record)
            if records:
                # The next request of the model begins its next minute.
                del self._slowest[model]

    def _sent(self, request: CallerRequest, attempt: UpstreamAttempt) -> None:
        if request.shadow is not None:
            # A copy is not traced; what its caller sent goes along.
            given = request.head.get(TRACE_PARENT) or b""
            attempt.trace_parent = given if len(given) < _MAX_PARENT else b""
            return
        trail: Trail | None = request.trail
        if trail is None:
            if request.sent_at:
                trail = self._trail_of(request, None, but=attempt)
            else:
                reason = self._sampled(request)
                if not (reason or self._sends_all) and request.head.get(TRACE_PARENT) is None:
                    return  # nearly all requests
                trail = request.trail = self._begin(request, reason)
        span_id = new_span_id()
        trail.attempts.append(TrailedAttempt(attempt, span_id, now_ns()))
        attempt.trace_parent = write_trace_parent(trail.trace_id, span_id, bool(trail.reason)).encode()

    def _sampled(self, request: CallerRequest) -> str:
        """Why a request is kept, as far as its start shows; "": it is not, so far."""
        return CALLER if request.trace_id else SHARE if self._share.is_due() else ""

    def _begin(self, request: CallerRequest, reason: str) -> Trail:
        head: Any = request.head
        parent = trace_parent_in(head.headers)
        if parent is None:
            return Trail(new_trace_id(), new_span_id(), 0, "", reason)
        state = (head.get(b"tracestate") or b"").decode("latin-1")[:_MAX_STATE]
        return Trail(parent.trace_id, new_span_id(), parent.span_id, state, reason)

    def _trail_of(
        self, request: CallerRequest, attempt: UpstreamAttempt | None, but: UpstreamAttempt | None = None
    ) -> Trail:
        """The trail of a request of which nothing was noted so far. ``attempt``: one that is not in flight any more."""
        trail: Trail = self._begin(request, "")
        request.trail = trail
        for each in request.attempts if attempt is None else (attempt, *request.attempts):
            if each is not but and not (each is attempt and trail.attempts):
                trail.attempts.append(TrailedAttempt(each, new_span_id(), each.sent_at))
        return trail

    def _answered(self, request: CallerRequest, attempt: UpstreamAttempt) -> None:
        if request.shadow is not None:
            return
        problem = problem_of(attempt)
        if request.trail is None:
            ended = request.streaming_at or attempt.answered_at
            slowest = self._slowest.get(request.served.name)
            is_slow = slowest is None or ended - request.came_at > slowest.threshold
            if not (problem or is_slow) and (request.deadline == NEVER or request.deadline >= now_ns()):
                return  # nearly all requests
            self._trail_of(request, attempt)
        self.attempt_ended(attempt, problem or "answered")
        self._ended(request, problem, "", is_miss=problem in ("http_504", "grpc_4"))

    def _ended(self, request: Any, code: str, message: str, is_miss: bool, is_error: bool = True) -> None:
        if request is None or request.shadow is not None:
            return
        now = now_ns()
        trail: Trail | None = request.trail
        request.trail = None
        # One that was rejected before it was sent has no trail.
        sampled = trail.reason if trail is not None else "" if request.sent_at else self._sampled(request)
        failure = DEADLINE_MISS if is_miss or request.deadline < now else ERROR if code and is_error else ""
        reason = failure if failure and self._failures.takes(now) else sampled
        served = getattr(request, "served", None)
        # A stream that was held before its first message belongs to no model.
        model = served.name if served is not None else ""
        # A request that waited for a worker counts as arrived when it goes on. How long a stream lasts is its caller's
        # choice.
        duration = (request.streaming_at or now) - request.came_at
        slowest: SlowestOfMinute | None = None
        if not reason:
            slowest = self._slowest_of(model, now)
            if duration <= slowest.threshold:
                return
        if trail is None:
            trail = self._begin(request, reason)
        record = (
            reason or SLOWEST,
            model,
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
        if slowest is not None:
            slowest.add(duration, record)
        else:
            # Exemplars and the access log name traces that there are.
            request.trace_id = trace_name(trail.trace_id) if self._queue.put(record) else ""

    def _slowest_of(self, model: str, now: int) -> SlowestOfMinute:
        slowest = self._slowest.get(model)
        if slowest is None:
            key = model if len(self._slowest) < _MAX_MODELS else ""
            slowest = self._slowest.get(key)
            if slowest is None:
                slowest = self._slowest[key] = SlowestOfMinute(now)
        return slowest

    # On any thread.

    def start(self) -> None:
        self._exporter.start()

    def close(self) -> None:
        """Hands the last records to the exporter. Before ``stop``, on the event loop's thread."""
        for slowest in self._slowest.values():
            for record in slowest.close(now_ns()):
                self._queue.put(record)

    def stop(self, seconds: float) -> None:
        self._exporter.stop(seconds)

    def snapshot(self) -> TraceSnapshot:
        queue = self._queue
        return TraceSnapshot(dict(queue.kept), queue.dropped, self._exporter.failed, self._failures.dropped)


def _log_fault(what: str, error: Exception) -> None:
    """Tracing must not cost a request its answer."""
    log.error("a request could not be traced", instruction=what, exc_info=error)


def _record(each: TrailedAttempt, now: int) -> AttemptRecord:
    attempt = each.attempt
    return AttemptRecord(
        each.span_id,
        attempt.replica.endpoint.address,
        attempt.replica_set.version,
        attempt.is_hedge,
        each.sent,
        each.ended or now,
        each.outcome or _CANCELLED,
    )


def problem_of(attempt: UpstreamAttempt) -> str:
    """The error that an answer carries; "": none."""
    for name, value in attempt.trailers or attempt.headers:
        if name == b"grpc-status":
            return "" if value == b"0" else f"grpc_{value.decode('latin-1')[:10]}"
    return "" if attempt.status < 400 else f"http_{attempt.status}"
