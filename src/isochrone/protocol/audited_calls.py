"""Control calls between their two records: the attempt, before anything of it takes effect, and the outcome.

A call whose attempt cannot be recorded is answered with 503, and nothing of it happens. Calls that access rules refuse
have no attempt: they are counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from isochrone.errors import IsochroneError, PermissionDenied, Unauthenticated
from isochrone.protocol.access.changes import change_named_by
from isochrone.protocol.access.control_token import HEADER, may_change
from isochrone.secure.access.identity import ANONYMOUS
from isochrone.secure.audit.actor import CONTROLLER, Actor, anonymous
from isochrone.wire.peers import peer_of

if TYPE_CHECKING:
    from isochrone.protocol.access.changes import Change
    from isochrone.secure.access.grants import Grant
    from isochrone.secure.audit.audit import Audit
    from isochrone.wire.exchange import Exchange, Head

_TOKEN = HEADER.encode()


def actor_of(head: Head, exchange: Exchange, control_token: str = "") -> Actor:
    """Who calls a worker or a gateway. ``control_token``: the server's, which only controllers of its fleet know.

    A token that is wrong names nobody: the call is recorded as anonymous, and as refused.
    """
    address = peer_of(exchange)
    if control_token and head.get(_TOKEN) is not None and may_change(head, control_token):
        return Actor(CONTROLLER, CONTROLLER, address)
    return caller_of(head, address)


def caller_of(head: Head, address: str) -> Actor:
    """The caller that the credential in a head proves."""
    return _holder_of(head.grant, address)


def _holder_of(grant: Grant | None, address: str) -> Actor:
    if grant is None or grant.identity is ANONYMOUS:
        return anonymous(address)
    name = grant.identity.name
    return Actor(name, name.partition(":")[0], address)


def count_refusal(
    audit: Audit, grant: Grant | None, permission: str, exchange: Exchange | None, error: IsochroneError
) -> None:
    """Count a request that access rules refuse. ``exchange`` None: nobody says on which connection it came.

    Other errors say nothing of rights: rules that have not been read yet, a message that is malformed.
    """
    if isinstance(error, Unauthenticated | PermissionDenied):
        change = "" if exchange is None else change_named_by(exchange.head)
        audit.refused_access(_holder_of(grant, peer_of(exchange)), permission, error.code, change)


async def audited(
    audit: Audit,
    actor: Actor,
    change: Change,
    details: dict[str, Any],
    work: Callable[[], Any],
    status_of: Callable[[Any], int] | None = None,
) -> Any:
    """What ``work`` returns, now or later. Raises ``AuditUnavailable``, or what ``work`` raises.

    ``status_of``: the HTTP status in what it returns, where a failure is an answer too.
    """
    attempt = await audit.begin(actor, change.action, change.subject, details)
    try:
        answer = work()
        if isinstance(answer, Awaitable):
            answer = await answer
    except BaseException as error:
        await attempt.ended(error)
        raise
    if status_of is None:
        await attempt.ended()
    else:
        await attempt.answered(status_of(answer))
    return answer
