"""The failures that both protocols have: no connection, a lost one, no answer in time, one that cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from isochrone import errors
from isochrone.errors import ConnectionLost, IsochroneError, Unavailable
from isochrone.protocol.headers.rejections import UNPROCESSED_HEADER

_UNPROCESSED = UNPROCESSED_HEADER.decode()
_NO_HEADERS: Mapping[str, str] = {}

#: OpenSSL's words for it.
_UNKNOWN_AUTHORITY = ("local issuer certificate", "self-signed certificate", "self signed certificate")

Failure = TypeVar("Failure", bound=IsochroneError)


def received(error: Failure, status: str, request_id: str, headers: Mapping[str, str] = _NO_HEADERS) -> Failure:
    """The error with what else the answer says; ``headers`` are its headers, or the trailers of gRPC."""
    error.status, error.request_id = status, request_id
    if _UNPROCESSED in headers:
        error.not_begun()
    error.retry_after = _seconds(headers.get("retry-after", ""))
    return error


def unreachable(place: str, reason: str) -> Unavailable:
    """Nothing was sent: the request can be repeated."""
    return Unavailable(f"cannot connect to {place}: {reason}{hint_of_authority(reason)}").not_begun()


def hint_of_authority(reason: str) -> str:
    """For a certificate that nobody signed whom the client trusts. "": the reason is another."""
    if "CERTIFICATE_VERIFY_FAILED" not in reason or not any(words in reason for words in _UNKNOWN_AUTHORITY):
        return ""
    return "; name the certificate of the server's authority with ca="


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
