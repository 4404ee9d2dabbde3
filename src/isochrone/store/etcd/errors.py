"""Translates etcd's errors, and decides whether another member may process the same call."""

from __future__ import annotations

from typing import Any

from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.store.base import StoreUnavailable
from isochrone.store.etcd.address import PASSWORD_VARIABLE

# gRPC status codes, as etcd puts them into its JSON.
_INVALID_ARGUMENT, _NOT_FOUND, _PERMISSION_DENIED, _RESOURCE_EXHAUSTED = 3, 5, 7, 8
_UNAUTHENTICATED = 16


class EndpointFailed(Exception):
    """One member failed. ``unprocessed``: it certainly did not process the call."""

    def __init__(self, endpoint: str, reason: str, *, unprocessed: bool) -> None:
        super().__init__(f"{endpoint}: {reason}")
        self.unprocessed = unprocessed


class LeaseNotFound(Exception):
    """The lease has ended."""


class TokenRefused(Exception):
    """The login has expired: log in again."""


def refusal(shown_url: str, endpoint: str, status: int, answer: Any) -> Exception:
    """The error of an answer other than 200."""
    fields = answer if isinstance(answer, dict) else {}
    if isinstance(fields.get("error"), dict):
        # In a stream, one level deeper.
        fields = fields["error"]
    code = int(fields.get("code") or fields.get("grpc_code") or -1)
    text = str(fields.get("message") or fields.get("error") or f"HTTP status {status}")
    if code == _NOT_FOUND and "lease not found" in text:
        return LeaseNotFound(text)
    if code == _UNAUTHENTICATED:
        return TokenRefused(text)
    final = _final(shown_url, code, text)
    if final is not None:
        return final
    # With the header "hasleader", a member without a leader rejects a call before processing it.
    return EndpointFailed(endpoint, text, unprocessed=text == "etcdserver: no leader")


def _final(shown_url: str, code: int, text: str) -> IsochroneError | None:
    """The error that every member would return; None: another member may succeed."""
    if code == _PERMISSION_DENIED or "user name is empty" in text or "authentication failed" in text:
        return StoreUnavailable(
            f"store {shown_url}: {text}; give a user with rights on the fleet's keys: etcd:http://USER@HOST:2379, "
            f"and the password in {PASSWORD_VARIABLE}"
        )
    if code == _RESOURCE_EXHAUSTED and "space exceeded" in text:
        return StoreUnavailable(f"store {shown_url}: {text}; compact and defragment etcd, then: etcdctl alarm disarm")
    if code == _INVALID_ARGUMENT:
        return InvalidArgument(f"store {shown_url}: {text}")
    return None
