"""How requests and messages of streams are charged to the quotas of their callers. Pure."""

from __future__ import annotations

from isochrone.errors import QueueFull
from isochrone.gateway.fleet.served_model import ServedModel
from isochrone.gateway.requests.request import Request
from isochrone.gateway.traffic.quotas import Quotas


class QuotaExceeded(QueueFull):
    """The quota of a caller is used up; ``retry_after`` in whole seconds."""

    code = "quota"

    def __init__(self, message: str, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


def enter(request: Request, now: int) -> None:
    """Charge a request; raise when its caller is over a quota."""
    request.granted = _granted(request, request.served, now)


def leave(request: Request, now: int) -> None:
    """A request that was charged is over, however it ended."""
    granted, request.granted = request.granted, None
    for quotas, key in granted or ():
        quotas.ended(key, request.compute_ns, now)


def spend(request: Request, tokens: int, now: int) -> None:
    """Charge tokens of a request that was charged, as they become known."""
    for quotas, key in request.granted or ():
        quotas.spend(key, tokens, now)


def count_message(request: Request, served: ServedModel, now: int) -> None:
    """Charge a further message of a stream to the model that it names. Its place is that of its stream."""
    compute_ns = request.tried[-1].report.run_ns if request.tried else 0
    for quotas, key in _granted(request, served, now, occupies=False):
        quotas.ended(key, compute_ns, now)


def _granted(request: Request, served: ServedModel, now: int, *, occupies: bool = True) -> list[tuple[Quotas, bytes]]:
    head, account, priority = request.head, request.account, request.demand.priority
    granted: list[tuple[Quotas, bytes]] = []
    for quotas in served.quotas:
        key = quotas.key_of(account, head)
        refusal = quotas.take(key, priority, now, occupies=occupies)
        if refusal is not None:
            for other, paid in granted:
                other.undo(paid)
            raise QuotaExceeded(refusal.message, refusal.retry_after)
        granted.append((quotas, key))
    return granted
