"""What etcd's errors mean: for the caller, and for the question whether another member may be asked the same."""

from __future__ import annotations

from typing import Any

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.store.base import StoreUnavailable
from isochrone.store.etcd.address import PASSWORD_VARIABLE

# gRPC status codes, as etcd puts them into its JSON.
_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED, _RESOURCE_EXHAUSTED = 3, 5, 7, 8
_UNAUTHENTICATED = 16


class EndpointFailed(Exception):
    """One member did not answer, or could not. ``unprocessed``: it certainly did nothing of what was asked."""

    def __init__(self, endpoint: str, reason: str, *, unprocessed: bool) -> None:
        super().__init__(f"{endpoint}: {reason}")
        self.unprocessed = unprocessed


class LeaseNotFound(Exception):
    """Of a lease that has ended."""


class TokenRefused(Exception):
    """The login has run out: log in again."""


def refusal(shown_url: str, endpoint: str, status: int, answer: Any) -> Exception:
    """The error of an answer other than 200."""
    fields = answer if isinstance(answer, dict) else {}
    if isinstance(fields.get("error"), dict):
        # Inside a stream, one level deeper.
        fields = fields["error"]
    code = int(fields.get("code") or fields.get("grpc_code") or -1)
    words = str(fields.get("message") or fields.get("error") or f"HTTP status {status}")
    if code == _NOT_FOUND and "lease not found" in words:
        return LeaseNotFound(words)
    if code == _UNAUTHENTICATED:
        return TokenRefused(words)
    told = _final(shown_url, code, words)
    if told is not None:
        return told
    # With the header "hasleader" a member that knows no leader refuses before it begins.
    return EndpointFailed(endpoint, words, unprocessed=words == "etcdserver: no leader")


def _final(shown_url: str, code: int, words: str) -> IsochroneError | None:
    """What another member would answer too."""
    if code == _PERMISSION_DENIED or "user name is empty" in words or "authentication failed" in words:
        return StoreUnavailable(
            f"store {shown_url}: {words}; give a user with rights on the fleet's keys: etcd:http://USER@HOST:2379, "
            f"and the password in {PASSWORD_VARIABLE}"
        )
    if code == _RESOURCE_EXHAUSTED and "space exceeded" in words:
        return StoreUnavailable(f"store {shown_url}: {words}; compact and defragment etcd, then: etcdctl alarm disarm")
    if code == _INVALID_ARGUMENT:
        return InvalidArgument(f"store {shown_url}: {words}")
    return None
