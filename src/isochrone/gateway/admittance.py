"""Whether a request's grant covers its model and its priority: asked once per request, when both are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.errors import IsochroneError
from isochrone.gateway.caller_requests import CallerRequest, CallerStream
from isochrone.protocol.access.needs import needed_by
from isochrone.secure.access.permissions import INFERENCE

if TYPE_CHECKING:
    from isochrone.wire.exchange import Head

#: Target of a head → whether its requests are inference.
_is_inference: dict[bytes, bool] = {}
_MOST_TARGETS = 4096


def refusal(request: CallerRequest) -> IsochroneError | None:
    """The error for a request that may not be placed; None: it may.

    Messages of streams are checked as they are read.
    """
    head = request.exchange.head
    grant = head.grant
    if grant is None or isinstance(request, CallerStream) or not _asks_inference(head):
        return None
    served = request.served
    asked = request.demand.priority
    try:
        grant.require(INFERENCE, served.name, 0 if asked == served.priority else asked)
    except IsochroneError as error:
        return error
    return None


def _asks_inference(head: Head) -> bool:
    """Questions about a model are checked by their head and message (``protocol.applications.authenticated``)."""
    found = _is_inference.get(head.target)
    if found is None:
        if len(_is_inference) >= _MOST_TARGETS:
            _is_inference.clear()
        found = _is_inference[head.target] = needed_by(head).permission == INFERENCE
    return found
