"""How a request to the gateway ended, as its access log and its audit log say it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from isochrone.errors import Cancelled, IsochroneError

if TYPE_CHECKING:
    from isochrone.gateway.caller_requests import UpstreamAttempt

_GRPC_OK: Final = b"0"


class Ending:
    """The outcome of one request; ``worker`` is the one that answered it, or was the last to get it."""

    __slots__ = ("error", "outcome", "status", "version", "worker")

    def __init__(self, outcome: str, status: int | str, error: str, version: str, worker: str) -> None:
        self.outcome = outcome
        self.status = status
        self.error = error
        self.version = version
        self.worker = worker


def status_of(attempt: UpstreamAttempt) -> tuple[int | str, bool]:
    """The status of an answer, gRPC's where it has one, and whether it is a failure."""
    status: int | str = attempt.status
    is_failure = attempt.status >= 400
    for name, value in attempt.trailers or attempt.headers:
        if name == b"grpc-status":
            status, is_failure = value.decode("latin-1")[:10], value != _GRPC_OK
    return status, is_failure


def answer_ending(attempt: UpstreamAttempt, outcome: str, status: int | str) -> Ending:
    """The caller has a worker's answer."""
    return Ending(outcome, status, "", attempt.replica_set.version, attempt.replica.endpoint.address)


def error_ending(request: Any, error: IsochroneError) -> Ending:
    """The caller has an error of the gateway, or has gone."""
    is_gone = isinstance(error, Cancelled)
    status: int | str = str(error.grpc_status) if request.head.is_grpc else error.http_status
    replica_set = getattr(request, "replica_set", None)
    version = replica_set.version if replica_set is not None else request.version
    worker = request.tried[-1].endpoint.address if request.tried else ""
    outcome = "cancelled" if is_gone else "rejected" if not request.tried else "failed"
    return Ending(outcome, "" if is_gone else status, error.code, version, worker)
