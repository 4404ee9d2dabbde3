"""The errors of servers over HTTP, as exceptions by the status."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from isochrone import errors
from isochrone.client.failures import received
from isochrone.client.scheme_hints import asks_for_tls, hint_of_tls
from isochrone.errors import IsochroneError

_BY_HTTP: dict[int, type[IsochroneError]] = {
    400: errors.InvalidArgument,
    401: errors.Unauthenticated,
    403: errors.PermissionDenied,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    408: errors.DeadlineExceeded,
    413: errors.PayloadTooLarge,
    415: errors.UnsupportedEncoding,
    422: errors.Quarantined,
    429: errors.QueueFull,
    501: errors.Unsupported,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.DeadlineExceeded,
}


def http_failure(
    status: int, headers: Mapping[str, str], body: bytes | memoryview, place: str, request_id: str = ""
) -> IsochroneError:
    """The error of an answer that is not 200; ``place`` is what was asked, for a server that explains nothing."""
    try:
        text = str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, TypeError):
        text = f"{place} answered HTTP {status} without an explanation"
        if asks_for_tls(body):
            text += hint_of_tls(place)
    return received(_BY_HTTP.get(status, errors.Internal)(text), f"HTTP {status}", request_id, headers)
