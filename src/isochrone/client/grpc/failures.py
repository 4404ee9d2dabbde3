"""The errors of servers over gRPC, as exceptions: by the status, or, inside a stream, by the text alone."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone import errors
from isochrone.client.failures import late, received, unreachable
from isochrone.client.scheme_hints import hint_of_plain, hint_of_tls, is_cut
from isochrone.errors import IsochroneError

_BY_GRPC: dict[str, type[IsochroneError]] = {
    "CANCELLED": errors.Cancelled,
    "INVALID_ARGUMENT": errors.InvalidArgument,
    "DEADLINE_EXCEEDED": errors.DeadlineExceeded,
    "NOT_FOUND": errors.NotFound,
    "ALREADY_EXISTS": errors.AlreadyExists,
    "PERMISSION_DENIED": errors.PermissionDenied,
    "UNAUTHENTICATED": errors.Unauthenticated,
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
#: What gRPC's library says when the deadline passes without an answer; servers explain theirs.
_GIVEN_UP = "Deadline Exceeded"


def grpc_failure(code: str, text: str, trailers: Mapping[str, str], place: str, request_id: str = "") -> IsochroneError:
    """The error of a call that ended with a status; ``code`` is its name. One without an answer has none: ``status`` is
    the server's."""
    # The library reports a connection that was never made as UNAVAILABLE, which a server may answer, too.
    if code == "UNAVAILABLE" and ("failed to connect" in text or "DNS resolution failed" in text):
        reason = text.rpartition("; last error: ")[2][:200]
        hint = hint_of_tls(place) if is_cut(reason) else ""
        return received(unreachable(place, f"{reason}{hint or hint_of_plain(place, text)}"), "", request_id)
    if code == "DEADLINE_EXCEEDED" and text == _GIVEN_UP:
        return received(late(place), "", request_id)
    error = _BY_GRPC.get(code, errors.Internal)(text or f"{place} answered {code} without an explanation")
    return received(error, f"gRPC {code}", request_id, trailers)


def stream_failure(text: str, request_id: str) -> IsochroneError:
    """The error of a response in a stream, which has only a text."""
    kind = next((each for start, each in _BY_TEXT if start in text), errors.Internal)
    return received(kind(text), "gRPC stream", request_id)
