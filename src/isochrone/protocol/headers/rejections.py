"""What an error says to whoever may send its request again: nothing of it has run, or when to try again.

Header fields of REST answers, and trailers of gRPC calls. A gateway repeats a marked request on another worker,
whatever it is. Without the mark it repeats only requests that may run twice.
"""

from __future__ import annotations

from math import ceil

from isochrone.errors import IsochroneError, Unauthenticated
from isochrone.wire.exchange import Header, Headers

UNPROCESSED_HEADER = b"x-isochrone-unprocessed"
#: RFC 6750, section 3.
_CHALLENGE: tuple[Header, ...] = ((b"www-authenticate", b"Bearer"),)
_MARK: tuple[Header, ...] = ((UNPROCESSED_HEADER, b"1"),)


def mark(error: IsochroneError) -> tuple[Header, ...]:
    """The fields that an error adds to its answer."""
    return _MARK if error.unprocessed else ()


def rest_fields(error: IsochroneError) -> tuple[Header, ...]:
    """The same of HTTP: the mark, the seconds after which to try again, and the credential that is missing."""
    if isinstance(error, Unauthenticated):
        return _CHALLENGE
    if not error.retry_after:
        return mark(error)
    return (*mark(error), (b"retry-after", b"%d" % ceil(error.retry_after)))


def is_marked(fields: Headers) -> bool:
    return any(name == UNPROCESSED_HEADER for name, _ in fields)
