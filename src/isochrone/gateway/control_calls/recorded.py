"""Control calls through a gateway between their records in the audit log. Workers record theirs themselves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from isochrone.gateway.control_calls.routes import Recorded
from isochrone.protocol.access.changes import grpc_action, grpc_change, rest_change, rest_details
from isochrone.protocol.audited_calls import actor_of, audited
from isochrone.protocol.grpc.calls import only_message, parse
from isochrone.protocol.grpc.control import METHODS
from isochrone.wire.exchange import Buffer, Exchange, Head

if TYPE_CHECKING:
    from isochrone.gateway.gateway import Gateway

Work = Callable[[], Awaitable[Any]]


def recorded_rest(gateway: Gateway, head: Head) -> Recorded | None:
    """None: calls with this head change nothing, or nothing is recorded."""
    audit, change = gateway.change_audit, rest_change(head.method, head.target)
    if audit is None or change is None:
        return None

    def run(exchange: Exchange, body: Buffer, work: Work) -> Awaitable[Any]:
        details = rest_details(change.action, body)
        # Workers' errors come as answers, which are passed on.
        return audited(audit, actor_of(head, exchange), change, details, work, lambda answer: int(answer[0]))

    return run


def recorded_grpc(gateway: Gateway, head: Head) -> Recorded | None:
    audit, action = gateway.change_audit, grpc_action(head.target)
    if audit is None or not action:
        return None
    kind = METHODS[head.target][0]

    def run(exchange: Exchange, body: Buffer, work: Work) -> Awaitable[Any]:
        # A message that cannot be read changes nothing: it is refused here, and not by each worker.
        found = grpc_change(action, parse(kind, only_message(body)))
        if found is None:
            return work()
        change, details = found
        return audited(audit, actor_of(head, exchange), change, details, work)

    return run
