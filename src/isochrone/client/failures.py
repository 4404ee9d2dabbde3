"""The errors of servers as exceptions: by HTTP status, by gRPC status, or by the text alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from isochrone import errors
from isochrone.errors import ConnectionLost, IsochroneError, Unavailable
from isochrone.protocol.rejections import UNPROCESSED_HEADER

_BY_HTTP: dict[int, type[IsochroneError]] = {
    400: errors.InvalidArgument,
    401: errors.PermissionDenied,
    403: errors.PermissionDenied,
    404: errors.NotFound,
    405: errors.MethodNotAllowed,
    408: errors.DeadlineExceeded,
    413: errors.PayloadTooLarge,
    422: errors.Quarantined,
    429: errors.QueueFull,
    501: errors.Unsupported,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.DeadlineExceeded,
}
_BY_GRPC: dict[str, type[IsochroneError]] = {
    "CANCELLED": errors.Cancelled,
    "INVALID_ARGUMENT": errors.InvalidArgument,
    "DEADLINE_EXCEEDED": errors.DeadlineExceeded,
    "NOT_FOUND": errors.NotFound,
    "ALREADY_EXISTS": errors.AlreadyExists,
    "PERMISSION_DENIED": errors.PermissionDenied,
    "UNAUTHENTICATED": errors.PermissionDenied,
    "RESOURCE_EXHAUSTED": errors.QueueFull,
    "FAILED_PRECONDITION": errors.Quarantined,
    "UNIMPLEMENTED": errors.Unsupported,
    "UNAVAILABLE": errors.Unavailable,
}
#: The texts of the protocol, for errors inside a stream, which have no status.
_BY_TEXT: tuple[tuple[str, type[IsochroneError]], ...] = (
    ("Request for unknown model", errors.NotFound),
    ("Request timeout expired", errors.DeadlineExceeded),
    ("Exceeds maximum queue size", errors.QueueFull),
)
_UNPROCESSED = UNPROCESSED_HEADER.decode()
#: What gRPC's library says when the deadline passes without an answer; servers explain theirs.
_GIVEN_UP = "Deadline Exceeded"

Failure = TypeVar("Failure", bound=IsochroneError)


def _received(error: Failure, status: str, request_id: str) -> Failure:
    error.status, error.request_id = status, request_id
    return error


def http_failure(
    status: int, headers: Mapping[str, str], body: bytes | memoryview, place: str, request_id: str = ""
) -> IsochroneError:
    """The error of an answer that is not 200; ``place`` is what was asked, for a server that explains nothing."""
    try:
        text = str(msgspec.json.decode(body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        text = f"{place} answered HTTP {status} without an explanation"
    error = _received(_BY_HTTP.get(status, errors.Internal)(text), f"HTTP {status}", request_id)
    if _UNPROCESSED in headers:
        error.not_begun()
    error.retry_after = _seconds(headers.get("retry-after", ""))
    return error


def grpc_failure(code: str, text: str, trailers: Mapping[str, str], place: str, request_id: str = "") -> IsochroneError:
    """The error of a call that ended with a status; ``code`` is its name."""
    # The library reports a connection that was never made as UNAVAILABLE, which a server may answer, too.
    if code == "UNAVAILABLE" and ("failed to connect" in text or "DNS resolution failed" in text):
        reason = text.rpartition("; last error: ")[2][:200]
        return _received(unreachable(place, reason), f"gRPC {code}", request_id)
    if code == "DEADLINE_EXCEEDED" and text == _GIVEN_UP:
        return _received(late(place), f"gRPC {code}", request_id)
    error = _BY_GRPC.get(code, errors.Internal)(text or f"{place} answered {code} without an explanation")
    if _UNPROCESSED in trailers:
        error.not_begun()
    error.retry_after = _seconds(trailers.get("retry-after", ""))
    return _received(error, f"gRPC {code}", request_id)


def stream_failure(text: str, request_id: str) -> IsochroneError:
    """The error of a response in a stream, which has only a text."""
    kind = next((each for start, each in _BY_TEXT if start in text), errors.Internal)
    return _received(kind(text), "gRPC stream", request_id)


def unreachable(place: str, reason: str) -> Unavailable:
    """Nothing was sent: the request can be repeated."""
    return Unavailable(f"cannot connect to {place}: {reason}").not_begun()


def lost(place: str, reason: str, *, unprocessed: bool = False) -> ConnectionLost:
    return ConnectionLost(f"{place}: {reason}", unprocessed=unprocessed)


def late(place: object) -> errors.DeadlineExceeded:
    """The client gave up; the server may still have begun the request."""
    return errors.DeadlineExceeded(f"no answer from {place} within the deadline")


def unreadable(place: str, reason: object) -> errors.Internal:
    return errors.Internal(f"{place} gave an answer that cannot be read: {reason}")


def _seconds(text: str) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:  # a date
        return 0.0
