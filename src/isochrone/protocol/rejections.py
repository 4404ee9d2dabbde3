"""How a worker marks rejections of which nothing has run: a header field of REST answers, a trailer of gRPC calls.

A gateway repeats a marked request on another worker, whatever it is. Without the mark it repeats only requests that may
run twice.
"""

from __future__ import annotations

from isochrone.errors import IsochroneError
from isochrone.wire.exchange import Header, Headers

UNPROCESSED_HEADER = b"x-isochrone-unprocessed"
_MARK: tuple[Header, ...] = ((UNPROCESSED_HEADER, b"1"),)


def mark(error: IsochroneError) -> tuple[Header, ...]:
    """The fields that an error adds to its answer."""
    return _MARK if error.unprocessed else ()


def is_marked(fields: Headers) -> bool:
    return any(name == UNPROCESSED_HEADER for name, _ in fields)
