"""The access log of a gateway: notes the shell's instructions, and makes a line of each request that is logged.

A gateway without an access log has none of this. A fault here is logged, and costs no request its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from isochrone.clock import NEVER, SECOND, now_ns
from isochrone.errors import Cancelled, DeadlineExceeded, IsochroneError
from isochrone.gateway.endings import Ending, answer_ending, error_ending, status_of
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.observe.access_log.lines import milliseconds
from isochrone.observe.sparing import Sparing
from isochrone.observe.tracing.trace_parent import trace_name, trace_parent_in

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt
    from isochrone.observe.access_log.writer import AccessLog

log = structlog.get_logger(__name__)

_ANSWERED: Final = "answered"


class GatewayAccessLines:
    """Makes lines of one gateway's requests."""

    def __init__(self, access_log: AccessLog) -> None:
        self._log = access_log
        self._faults = Sparing(SECOND)

    def note(self, instructions: list[Instruction]) -> None:
        """The shell is about to execute them."""
        for do, request, subject in instructions:
            try:
                if do is Do.ANSWER:
                    self._answered(request, subject)
                elif do is Do.REJECT or do is Do.CUT_OFF:
                    self._ended(request, subject)
            except Exception as error:
                self._log_fault(error)

    def broken_off(self, request: CallerRequest, error: IsochroneError | None) -> None:
        """``error``: what its caller is answered with; None: the caller has gone."""
        try:
            self._ended(request, error or Cancelled("the caller has gone"))
        except Exception as fault:
            self._log_fault(fault)

    def _answered(self, request: Any, attempt: UpstreamAttempt) -> None:
        if request.shadow is not None:
            return
        status, is_failure = status_of(attempt)
        now = now_ns()
        if self._log.share.takes(is_failure or request.deadline < now, now):
            self._add(request, now, answer_ending(attempt, "failed" if is_failure else _ANSWERED, status), attempt)

    def _ended(self, request: Any, error: IsochroneError) -> None:
        if request is None or request.shadow is not None:
            return
        now = now_ns()
        is_gone = isinstance(error, Cancelled)
        is_late = isinstance(error, DeadlineExceeded) or request.deadline < now
        if not self._log.share.takes(is_late or not is_gone, now):
            return
        self._add(request, now, error_ending(request, error), None)

    def _add(self, request: Any, now: int, ending: Ending, attempt: UpstreamAttempt | None) -> None:
        served = getattr(request, "served", None)
        sent, answered = request.sent_at, 0 if attempt is None else attempt.answered_at
        parent = None if request.trace_id else trace_parent_in(request.head.headers)
        has_deadline = request.deadline != NEVER
        self._log.add(
            {
                "event": "request",
                "role": "gateway",
                "gateway": self._log.settings.name,
                "request_id": request.take_request_id(),
                "model": served.name if served is not None else "",
                "version": ending.version,
                "agent": request.agent,
                "protocol": "grpc" if request.head.is_grpc else "http",
                "outcome": ending.outcome,
                "status": ending.status,
                "error": ending.error,
                "latency_ms": milliseconds(now - request.came_at),
                "place_ms": milliseconds((sent or now) - request.came_at),
                "worker_ms": milliseconds(answered - sent) if sent and answered else None,
                "first_answer_ms": milliseconds(request.streaming_at - request.came_at)
                if request.streaming_at
                else None,
                "worker": ending.worker,
                "attempts": len(request.tried),
                "deadline_ms": milliseconds(request.deadline - request.came_at) if has_deadline else None,
                "deadline_missed": now > request.deadline if has_deadline else None,
                "trace_id": request.trace_id or (trace_name(parent.trace_id) if parent is not None else ""),
            }
        )

    def _log_fault(self, error: Exception) -> None:
        more = self._faults.lets_through(now_ns())
        if more is not None:
            log.error("a request could not be logged", more=more, exc_info=error)
