"""Answers that Envoy gives to clients by itself, as a gateway answers: rejections with a reason code, and readiness.

The codes are those of llm-d's router, which clients of other pickers know.
"""

from __future__ import annotations

import msgspec

from isochrone.errors import DeadlineExceeded, IsochroneError, NotFound, QueueFull, Unavailable
from isochrone.gateway.picker.calls import Call, Form
from isochrone.gateway.picker.replies import immediate
from isochrone.protocol.headers.rejections import mark, rest_fields
from isochrone.protocol.openai.answers import ModelNotFound, error_object
from isochrone.protocol.rest.answers import JSON
from isochrone.protocol.rest.control import MODEL_NOT_READY
from isochrone.wire.exchange import Headers

REASON_HEADER = b"x-llm-d-request-dropped-reason"


def refusal(error: IsochroneError, call: Call | None, *, is_grpc: bool, stopping: bool = False) -> bytes:
    """The reply to Envoy. ``call``: None: it is none that is known."""
    headers: Headers = ((REASON_HEADER, reason),) if (reason := _reason(error, stopping)) else ()
    details = b"isochrone_" + error.code.encode()
    if is_grpc:
        text = error.message[:1024]
        if isinstance(error, DeadlineExceeded):
            # grpcio's words, which clients match.
            text = f"Deadline Exceeded: {text}"
        return immediate(error.http_status, headers + mark(error), text.encode(), error.grpc_status, details)
    if call is not None and call.form is Form.OPENAI:
        shown = ModelNotFound(str(error)) if isinstance(error, NotFound) else error
        body = msgspec.json.encode(error_object(shown))
    else:
        body = msgspec.json.encode({"error": error.message})
    return immediate(error.http_status, JSON + rest_fields(error) + headers, body, None, details)


def readiness(is_ready: bool) -> bytes:
    """The reply to Envoy when a client asks whether a model is ready."""
    if is_ready:
        return immediate(200, (), b"", None, b"isochrone_ready")
    return immediate(400, JSON, msgspec.json.encode({"error": MODEL_NOT_READY}), None, b"isochrone_not_ready")


def _reason(error: IsochroneError, stopping: bool) -> bytes:
    if isinstance(error, DeadlineExceeded):
        return b"rejected-ttl-expired"
    if isinstance(error, QueueFull):
        return b"rejected-saturated"
    if isinstance(error, Unavailable):
        return b"rejected-shutting-down" if stopping else b"rejected-no-endpoints"
    return b""
