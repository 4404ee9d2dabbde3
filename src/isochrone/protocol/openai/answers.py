"""Errors under ``/v1`` in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``.

Workers and gateways answer with it. The stock clients choose the class of their exception by the status.
"""

from __future__ import annotations

from typing import Any

import msgspec
import structlog

from isochrone.errors import DeadlineExceeded, Internal, InvalidArgument, IsochroneError, NotFound
from isochrone.protocol.compression.codec import is_identity
from isochrone.protocol.compression.inflating import InflatingRoute
from isochrone.protocol.headers.rejections import rest_fields
from isochrone.protocol.rest.answers import JSON
from isochrone.wire.exchange import Exchange, Head, Headers, Route

log = structlog.get_logger(__name__)

PREFIX = b"/v1/"

_TYPES = {403: "permission_error", 429: "rate_limit_error", 504: "timeout_error"}
#: The stock clients repeat a request after a 504, two times unless told otherwise: its deadline has passed by then.
_NO_RETRY: Headers = ((b"x-should-retry", b"false"),)


class InvalidParameter(InvalidArgument):
    """A parameter of a call is wrong, or is not served."""

    def __init__(self, parameter: str, message: str, error_code: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter
        self.error_code = error_code


class ModelNotFound(NotFound):
    """The model of a call is not served."""


def is_openai(head: Head) -> bool:
    """Whether a request is one of this front."""
    return head.target.startswith(PREFIX)


def error_object(error: IsochroneError) -> dict[str, Any]:
    parameter: str | None = None
    code: str | None = error.code
    if isinstance(error, InvalidParameter):
        parameter, code = error.parameter, error.error_code
    elif isinstance(error, ModelNotFound):
        parameter, code = "model", "model_not_found"
    elif isinstance(error, InvalidArgument):
        code = None
    status = error.http_status
    kind = _TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": error.message, "type": kind, "param": parameter, "code": code}}


def respond_error(exchange: Exchange, error: IsochroneError, extras: Headers = ()) -> None:
    """``extras``: further header fields."""
    headers: Headers = JSON + rest_fields(error) + extras
    if isinstance(error, DeadlineExceeded):
        headers += _NO_RETRY
    exchange.respond(error.http_status, headers, [msgspec.json.encode(error_object(error))])


def inflating(route: Route, head: Head, limit: int) -> Route:
    """The route for requests with this head: ``route`` itself, or a route that decompresses bodies for it."""
    encoding = head.get(b"content-encoding")
    if encoding is None or is_identity(encoding):
        return route
    return InflatingRoute(route, encoding, limit, respond_error)


def unexpected(error: Exception) -> IsochroneError:
    """The internal error to answer with; the exception is logged with its traceback."""
    log.error("a request failed unexpectedly", exc_info=error)
    return Internal(f"{type(error).__name__}: {error}")


class OpenAIErrorRoute(Route):
    """Answers every request with the same error."""

    def __init__(self, error: IsochroneError) -> None:
        self._error = error

    def handle(self, exchange: Exchange) -> None:
        respond_error(exchange, self._error)
