"""What the event loop records of the requests of one traced model.

A model that is not traced has no ``ModelTrace``: its requests cost one test for None. For the others, ``finished`` and
``failed`` decide by comparisons of ints (``tail_sampling``), and only a request that is kept leaves a tuple in the
queue. Everything runs on the event loop's thread. A fault here is logged, and costs no request its answer.

A model has one for as long as the worker runs: versions that drain, and requests that have begun, go by new settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog

from isochrone.clock import now_ns
from isochrone.errors import Cancelled, DeadlineExceeded
from isochrone.observe.failure_limit import FailureLimit
from isochrone.observe.tracing.identities import new_span_id, new_trace_id
from isochrone.observe.tracing.record import (
    CALLER,
    DEADLINE_MISS,
    ERROR,
    SHARE,
    SLOWEST,
    BatchMembers,
    RequestRecord,
    TraceQueue,
)
from isochrone.observe.tracing.settings import ExportSettings
from isochrone.observe.tracing.tail_sampling import SlowestOfMinute, TraceShare
from isochrone.observe.tracing.trace_parent import TraceParent, parse_trace_parent, says_sampled, trace_name
from isochrone.worker.tracing.sent_context import SentContext

if TYPE_CHECKING:
    from collections.abc import Mapping

    from isochrone.errors import IsochroneError
    from isochrone.protocol.messages import InferRequest

log = structlog.get_logger(__name__)

_FAILURES_PER_SECOND: Final = ExportSettings().failures_per_second
#: Where the id of the trace is in a record.
_TRACE_ID: Final = RequestRecord._fields.index("trace_id")
#: Steps of one request that are recorded; a stream through an ensemble may have any number.
_MAX_STEPS: Final = 64
_MAX_MESSAGE: Final = 500
#: Of names and ids, which callers choose, and of the trace's state.
_MAX_TEXT: Final = 200
_MAX_STATE: Final = 512


class ModelTrace:
    """Records requests of one model, of all its versions."""

    __slots__ = ("_batch", "_begun", "_failures", "_members", "_queue", "_rows", "_share", "_slowest", "is_on", "steps")

    def __init__(self, share: TraceShare, queue: TraceQueue, now: int, failures: FailureLimit | None = None) -> None:
        """``failures``: of all models of the process together."""
        #: Off: versions that are served have none; one that drains asks here.
        self.is_on = True
        self._share = share
        self._queue = queue
        self._failures = failures or FailureLimit(_FAILURES_PER_SECOND, now)
        self._slowest = SlowestOfMinute(now)
        #: Requests that have sent their context on and have not ended.
        self._begun: dict[InferRequest, SentContext] = {}
        #: The batch that is being answered, and its record if a member of it may be kept.
        self._members: Sequence[InferRequest] = ()
        self._rows = 0
        self._batch: BatchMembers | None = None
        #: Of the request that is about to end: the steps that generated its answer.
        self.steps: Sequence[tuple[int, int, int, bool, int, int]] | None = None

    # Settings.

    def turn_on(self, share: TraceShare, now: int) -> None:
        """By these settings from now on. Keeps the slowest so far."""
        self.close(now)
        self._share = share
        self.is_on = True

    def turn_off(self, now: int) -> None:
        if self.is_on:
            self.close(now)
            self.is_on = False
            self._begun.clear()

    # The start of a request that makes others.

    def begin(self, request: InferRequest) -> SentContext:
        """The context that a request sends on, the same each time: it names the span that its end is recorded under."""
        known = self._begun.get(request)
        if known is not None:
            return known
        received = request.trace_context
        if isinstance(received, SentContext):
            trace_id, parent_id, reason = received.trace_id, received.span_id, received.reason
        else:
            parent = _parent(received)
            trace_id, parent_id = (parent.trace_id, parent.span_id) if parent else (new_trace_id(), 0)
            reason = CALLER if parent and parent.is_sampled else SHARE if self._share.is_due() else ""
        sent = self._begun[request] = SentContext(received, trace_id, new_span_id(), parent_id, reason)
        return sent

    # The end of a request.

    def finished(self, request: InferRequest) -> str:
        """A request is about to be answered with its outputs; the id of its trace, "" if it is not kept."""
        try:
            now = now_ns()
            received = request.trace_context
            if received is None and request.deadline >= now and not self._begun and self.is_on:
                # Nearly all requests: what follows, without its calls.
                share = self._share
                if share.until != 1 and now - request.arrived <= self._slowest.threshold:
                    share.until -= 1
                    return ""
            return self._ended(request, received, now, None)
        except Exception as error:
            _log_fault(request, error)
            return ""

    def failed(self, request: InferRequest, error: IsochroneError) -> str:
        """A request is about to be answered with an error, or its caller has gone; the id of its trace, or ""."""
        try:
            return self._ended(request, request.trace_context, now_ns(), error)
        except Exception as fault:
            _log_fault(request, fault)
            return ""

    def _ended(
        self, request: InferRequest, received: Mapping[str, str] | None, now: int, error: IsochroneError | None
    ) -> str:
        if not self.is_on:
            return ""
        sent = self._begun.pop(request, None) if self._begun else None
        if type(received) is SentContext:
            self._add_step(request, received, sent, now, error)
            return trace_name(received.trace_id) if received.reason else ""
        failure = ""
        if request.deadline < now or isinstance(error, DeadlineExceeded):
            failure = DEADLINE_MISS
        elif error is not None and not isinstance(error, Cancelled):
            # One that is cancelled is the caller's doing, unless it gave up at its deadline.
            failure = ERROR
        reason = failure if failure and self._failures.takes(now) else self._sampled(received, sent)
        if reason:
            return self._keep(reason, request, sent, now, error)
        if error is None:
            duration = now - request.arrived
            if duration > self._slowest.threshold and self._share.left:
                self._slowest.add(duration, self._record(SLOWEST, request, sent, now, None))
        return ""

    def _sampled(self, received: Mapping[str, str] | None, sent: SentContext | None) -> str:
        if sent is not None:
            return sent.reason
        if received is not None and says_sampled(received.get("traceparent", "")):
            return CALLER
        return SHARE if self._share.is_due() else ""

    def _keep(
        self, reason: str, request: InferRequest, sent: SentContext | None, now: int, error: IsochroneError | None
    ) -> str:
        if not self._share.spend():
            return ""
        record = self._record(reason, request, sent, now, error)
        return trace_name(record[_TRACE_ID]) if self._queue.put(record) else ""

    def _add_step(
        self,
        request: InferRequest,
        parent: SentContext,
        sent: SentContext | None,
        now: int,
        error: IsochroneError | None,
    ) -> None:
        if len(parent.steps) < _MAX_STEPS:
            parent.steps.append(self._record("", request, sent, now, error))

    def _record(
        self, reason: str, request: InferRequest, sent: SentContext | None, now: int, error: IsochroneError | None
    ) -> tuple[Any, ...]:
        """The values of a ``RequestRecord``."""
        plan, served, received = request.plan, request.served_by, request.trace_context
        if sent is not None:
            trace_id, span_id, parent_id = sent.trace_id, sent.span_id, sent.parent_id
        else:
            parent = _parent(received)
            trace_id, parent_id = (parent.trace_id, parent.span_id) if parent else (new_trace_id(), 0)
            span_id = new_span_id()
        batch = self._batch_of(request)
        if batch is not None and reason != SLOWEST:
            # Of the slowest so far, few are kept in the end.
            batch.kept.append((trace_id, span_id, parent_id))
        return (
            reason,
            plan.model_name[:_MAX_TEXT],
            plan.model_version[:_MAX_TEXT] if served is None else served.model_version,
            request.id[:_MAX_TEXT],
            plan.batch_size,
            request.arrived,
            request.enqueued,
            request.dispatched,
            request.compute_start,
            request.infer_start,
            request.infer_end,
            request.compute_end,
            now,
            request.deadline,
            trace_id,
            span_id,
            parent_id,
            received.get("tracestate", "")[:_MAX_STATE] if received is not None and parent_id else "",
            "" if error is None else error.code,
            "" if error is None else error.message[:_MAX_MESSAGE],
            batch,
            None if sent is None else sent.steps,
            self.steps,
        )

    # Batches.

    def batch_answered(self, requests: Sequence[InferRequest], rows: int) -> None:
        """The next calls of ``finished`` and ``failed`` are of these requests, which ran together."""
        self._members, self._rows, self._batch = requests, rows, None

    def batch_over(self) -> None:
        self._members, self._batch = (), None

    def _batch_of(self, request: InferRequest) -> BatchMembers | None:
        members = self._members
        # Where answers keep their order, a request of an earlier batch may be answered in between.
        if len(members) < 2 or request.compute_start != members[0].compute_start:
            return None
        if self._batch is None:
            self._batch = BatchMembers(new_span_id(), len(members), self._rows)
            for member in members:
                caller = _parent(member.trace_context)
                if caller is not None:
                    self._batch.callers.append((caller.trace_id, caller.span_id))
        return self._batch

    # The slowest.

    def tick(self, now: int) -> None:
        """Keeps the slowest of a minute that is over. Called some times a second."""
        self._put_slowest(self._slowest.ended(now))

    def close(self, now: int) -> None:
        """Keeps the slowest so far."""
        self._put_slowest(self._slowest.close(now))

    def _put_slowest(self, records: list[tuple[Any, ...]]) -> None:
        for record in records:
            if self._share.spend():
                self._queue.put(record)


def _log_fault(request: InferRequest, error: Exception) -> None:
    log.error("a request could not be traced", model=request.plan.model_name[:_MAX_TEXT], exc_info=error)


def _parent(received: Mapping[str, str] | None) -> TraceParent | None:
    """The span of the caller; None: there is none, or its header is invalid."""
    text = received.get("traceparent") if received is not None else None
    return parse_trace_parent(text) if text is not None else None
