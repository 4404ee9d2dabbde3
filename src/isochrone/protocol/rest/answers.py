"""REST responses that every route shares: errors as JSON."""

from __future__ import annotations

import msgspec
import structlog

from isochrone.errors import Internal, IsochroneError, Unsupported
from isochrone.protocol.compression import codec
from isochrone.protocol.rejections import rest_fields
from isochrone.wire.exchange import Exchange, Headers, Route

log = structlog.get_logger(__name__)

JSON: Headers = ((b"content-type", b"application/json"),)
#: The code of an error, by which a process of the same server tells errors of one status apart. Control calls only.
ERROR_CODE = b"x-isochrone-error"


def respond_error(exchange: Exchange, error: IsochroneError, *, with_code: bool = False) -> None:
    headers: Headers = JSON + rest_fields(error)
    if isinstance(error, Unsupported):
        headers = (*headers, (b"accept-encoding", codec.ACCEPTED))
    if with_code:
        headers = (*headers, (ERROR_CODE, error.code.encode()))
    exchange.respond(error.http_status, headers, [msgspec.json.encode({"error": error.message})])


def respond_unexpected(exchange: Exchange, error: Exception) -> None:
    """Answer with an internal error, and log the unexpected exception with its traceback."""
    log.error("a request failed unexpectedly", exc_info=error)
    respond_error(exchange, Internal(f"{type(error).__name__}: {error}"))


class ErrorRoute(Route):
    """Answers every request with the same error."""

    def __init__(self, error: IsochroneError) -> None:
        self._error = error

    def handle(self, exchange: Exchange) -> None:
        respond_error(exchange, self._error)
