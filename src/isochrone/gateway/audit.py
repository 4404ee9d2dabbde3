"""The audit of a gateway's requests: a record of each, when it ends, as which agent called which model when.

A gateway that records no requests has none of this. Records go into a buffer; ``secure.audit`` writes it. A fault here
is logged, and then new requests are refused: a request without a record must not be followed by others.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import structlog

from isochrone.clock import SECOND, now_ns
from isochrone.errors import Cancelled, IsochroneError
from isochrone.gateway.endings import Ending, answer_ending, error_ending, status_of
from isochrone.gateway.requests.instructions import Do, Instruction
from isochrone.observe.sparing import Sparing
from isochrone.protocol.audited_calls import caller_of
from isochrone.secure.audit.actor import Actor
from isochrone.secure.audit.failures import AuditUnavailable, cannot_write
from isochrone.secure.audit.records import DONE, INFER, Entry
from isochrone.wire.exchange import Head
from isochrone.wire.peers import peer_of

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import CallerRequest, UpstreamAttempt
    from isochrone.secure.audit.audit import Audit

log = structlog.get_logger(__name__)

#: The calls of gRPC that go to one worker and are no inference.
_QUESTIONS: Final = (b"/ModelMetadata", b"/ModelConfig")
#: Actors that are remembered by their addresses.
_MOST_ACTORS: Final = 4096


class GatewayAudit:
    """Makes records of one gateway's requests."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._faults = Sparing(SECOND)
        self._fault = ""
        self._actors: dict[tuple[str, str], Actor] = {}

    @property
    def is_writable(self) -> bool:
        return self._audit.is_writable and not self._fault

    def refusal(self) -> AuditUnavailable | None:
        """What new requests are answered with; None: they may come in."""
        if self._fault:
            return cannot_write(self._audit.log.directory, self._fault)
        return self._audit.refusal()

    def note(self, instructions: list[Instruction]) -> None:
        """The shell is about to execute them."""
        for do, request, subject in instructions:
            try:
                if do is Do.ANSWER:
                    self._answered(request, subject)
                elif do is Do.REJECT or do is Do.CUT_OFF:
                    self._ended(request, subject)
            except Exception as error:
                self._failed(error)

    def broken_off(self, request: CallerRequest, error: IsochroneError | None) -> None:
        """``error``: what its caller is answered with; None: the caller has gone."""
        try:
            self._ended(request, error or Cancelled("the caller has gone"))
        except Exception as fault:
            self._failed(fault)

    def actor_of(self, request: Any) -> Actor:
        """Who sent a request."""
        address, head = peer_of(request.exchange), request.exchange.head
        key = address, "" if head.grant is None else head.grant.identity.name
        actor = self._actors.get(key)
        if actor is None:
            if len(self._actors) >= _MOST_ACTORS:
                self._actors.clear()
            actor = self._actors[key] = caller_of(head, address)
        return actor

    def _answered(self, request: Any, attempt: UpstreamAttempt) -> None:
        if request.shadow is not None or not _is_inference(request.exchange.head):
            return
        status, is_failure = status_of(attempt)
        self._add(request, answer_ending(attempt, "failed" if is_failure else DONE, status))

    def _ended(self, request: Any, error: IsochroneError) -> None:
        # What is refused since nothing can be recorded would fill the buffer while nothing is written.
        if request is None or request.shadow is not None or isinstance(error, AuditUnavailable):
            return
        if not _is_inference(request.exchange.head):
            return
        self._add(request, error_ending(request, error))

    def _add(self, request: Any, ending: Ending) -> None:
        served = getattr(request, "served", None)
        details = {
            "agent": request.agent,
            "version": ending.version,
            "request_id": request.take_request_id(),
            "protocol": "grpc" if request.head.is_grpc else "http",
            "status": ending.status,
            "worker": ending.worker,
            "error": ending.error,
        }
        model = served.name if served is not None else ""
        self._audit.add(Entry(time.time_ns(), self.actor_of(request), INFER, model, ending.outcome, details))

    def _failed(self, error: Exception) -> None:
        self._fault = f"a request could not be recorded: {type(error).__name__}: {error}"
        more = self._faults.lets_through(now_ns())
        if more is not None:
            log.error("a request could not be recorded; restart the gateway", more=more, exc_info=error)


def _is_inference(head: Head) -> bool:
    """Whether the model works for it: questions about models go to workers the same way."""
    return not head.target.endswith(_QUESTIONS) if head.is_grpc else head.method == b"POST"
