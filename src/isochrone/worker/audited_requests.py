"""Requests whose ends are recorded in the audit log: which agent called which model when.

The steps of an ensemble and calls of models by models have no exchange: they belong to the request that made them.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

from isochrone.protocol.audited_calls import actor_of
from isochrone.protocol.messages import InferRequest
from isochrone.secure.audit.audit import Audit
from isochrone.secure.audit.records import DONE, INFER, Entry
from isochrone.worker.request_wrappers import LoggedRequest

_AGENT: Final = b"x-agent-id"


class AuditedRequest(LoggedRequest):
    """Adds a record in place of a line of the log."""

    __slots__ = ("_audit",)

    def __init__(self, original: InferRequest, audit: Audit) -> None:
        super().__init__(original)
        self._audit = audit

    def log(self, outcome: str, **more: Any) -> None:
        exchange = self.exchange_of()
        if exchange is None:
            return
        plan, head = self.plan, exchange.head
        is_done = outcome == "answered"
        details = {
            "agent": (head.get(_AGENT) or b"").decode("utf-8", "replace"),
            "version": self.served_by.model_version if self.served_by is not None else plan.model_version,
            "request_id": self.id or self.caller_id,
            "protocol": "grpc" if head.is_grpc else "http",
            "error": "" if is_done or outcome == "cancelled" else outcome,
        }
        result = DONE if is_done else outcome if outcome == "cancelled" else "failed"
        actor = actor_of(head, exchange)
        self._audit.add(Entry(time.time_ns(), actor, INFER, plan.model_name, result, details))


class AuditedStream(AuditedRequest):
    """The same, for a caller that accepts any number of responses."""

    __slots__ = ()

    takes_many: ClassVar[bool] = True
