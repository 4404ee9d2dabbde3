"""The access log of a worker: makes a line of each request that is logged, where statistics count it.

A worker without an access log has none of this. A fault here is logged, and costs no request its answer. The steps of
an ensemble are requests of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import NEVER, SECOND, now_ns
from isochrone.errors import Cancelled, IsochroneError
from isochrone.observe.access_log.lines import milliseconds
from isochrone.observe.sparing import Sparing
from isochrone.observe.tracing.trace_parent import parse_trace_parent, trace_name

if TYPE_CHECKING:
    from isochrone.observe.access_log.writer import AccessLog
    from isochrone.protocol.messages import InferRequest

log = structlog.get_logger(__name__)


class WorkerAccessLines:
    """Makes lines of one worker's requests."""

    __slots__ = ("_faults", "_log", "batch_rows")

    def __init__(self, access_log: AccessLog) -> None:
        self._log = access_log
        self._faults = Sparing(SECOND)
        #: Rows of the batch whose requests are being answered; 0: a request that ran alone.
        self.batch_rows = 0

    def finished(self, request: InferRequest, now: int) -> None:
        """A request is about to be answered with its outputs."""
        try:
            if self._log.share.takes(request.deadline < now, now):
                self._add(request, now, "answered", "")
        except Exception as error:
            self._log_fault(error)

    def failed(self, request: InferRequest, error: IsochroneError) -> None:
        """A request is about to be answered with an error, or its caller has gone."""
        try:
            now = now_ns()
            is_gone = isinstance(error, Cancelled)
            if self._log.share.takes(not is_gone or request.deadline < now, now):
                self._add(request, now, "cancelled" if is_gone else "failed", error.code)
        except Exception as fault:
            self._log_fault(fault)

    def _add(self, request: InferRequest, now: int, outcome: str, error: str) -> None:
        plan, served = request.plan, request.served_by
        text = (request.trace_context or {}).get("traceparent", "")
        parent = parse_trace_parent(text) if text else None
        has_deadline = request.deadline != NEVER
        self._log.add(
            {
                "event": "request",
                "role": "worker",
                "request_id": request.id,
                "model": plan.model_name,
                "version": plan.model_version if served is None else served.model_version,
                "outcome": outcome,
                "error": error,
                "rows": plan.batch_size,
                "batch_size": self.batch_rows or plan.batch_size,
                "latency_ms": milliseconds(now - request.arrived),
                "queue_ms": _between(request.enqueued, request.dispatched),
                "input_ms": _between(request.compute_start, request.infer_start),
                "compute_ms": _between(request.infer_start, request.infer_end),
                "output_ms": _between(request.infer_end, request.compute_end),
                "worker": self._log.settings.name,
                "deadline_ms": milliseconds(request.deadline - request.arrived) if has_deadline else None,
                "deadline_missed": now > request.deadline if has_deadline else None,
                "trace_id": trace_name(parent.trace_id) if parent is not None else "",
            }
        )

    def _log_fault(self, error: Exception) -> None:
        more = self._faults.lets_through(now_ns())
        if more is not None:
            log.error("a request could not be logged", more=more, exc_info=error)


def _between(start: int, end: int) -> Any:
    """Milliseconds; None: the request did not come so far."""
    return milliseconds(end - start) if start and end >= start else None
