"""REST responses that every route shares: errors as JSON, and load reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import structlog

from isochrone.errors import Internal, IsochroneError, Unsupported
from isochrone.protocol.compression import codec
from isochrone.protocol.headers.orca import ORCA_HEADER
from isochrone.protocol.headers.rejections import rest_fields
from isochrone.wire.exchange import Exchange, Headers, Route

if TYPE_CHECKING:
    from isochrone.protocol.services.service import InferenceService

log = structlog.get_logger(__name__)

JSON: Headers = ((b"content-type", b"application/json"),)
#: The code of an error, by which a process of the same server tells errors of one status apart. Control calls only.
ERROR_CODE = b"x-isochrone-error"


def respond_error(exchange: Exchange, error: IsochroneError, *, with_code: bool = False, extras: Headers = ()) -> None:
    """``extras``: further header fields."""
    headers: Headers = JSON + rest_fields(error) + extras
    if isinstance(error, Unsupported):
        headers = (*headers, (b"accept-encoding", codec.ACCEPTED))
    if with_code:
        headers = (*headers, (ERROR_CODE, error.code.encode()))
    exchange.respond(error.http_status, headers, [msgspec.json.encode({"error": error.message})])


def load_fields(service: InferenceService, model: str, version: str, form: bytes) -> Headers:
    """A model's load report as a header field; ``form``: the one that the caller asks for, empty: it asks for none."""
    return ((ORCA_HEADER, service.load_report(model, version).header(form)),) if form else ()


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
