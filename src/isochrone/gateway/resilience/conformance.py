"""Whether an answer is one of the Open Inference Protocol's, by its head and a glance at its first bytes. Pure.

A port may be taken over by another server, which answers everything with 200 and a page of its own. Such an answer must
never reach a caller as a result. Called once per distinct head of a connection, since memoised heads have passed
before; no tensor is parsed.
"""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.errors import Unavailable
from isochrone.wire.exchange import Buffer, Headers

_JSON = b"application/json"
_BINARY = b"application/octet-stream"
_EVENTS = b"text/event-stream"
_JSON_LENGTH = b"inference-header-content-length"
#: Bytes at the start of a JSON answer that are searched before all of it is: a long id may stand first.
_GLANCE = 512
#: A field that every inference answer has.
_MODEL_NAME = b'"model_name"'
#: And every error.
_ERROR = b'"error"'


class ForeignAnswer(Unavailable):
    """A worker's port answered with something that is not the protocol's."""

    code = "foreign_answer"


def foreign_http(status: int, headers: Headers, body: Sequence[Buffer], is_inference: bool) -> str:
    """Why an HTTP answer is not the protocol's; "": it is. ``body``: what has come of it so far.

    ``is_inference``: it answers ``infer``, whose result names its model. Errors in JSON are not looked into: servers of
    the protocol differ in them.
    """
    kind = encoding = length = None
    for name, value in headers:
        if name == b"content-type":
            kind = value
        elif name == b"content-encoding":
            encoding = value
        elif name == _JSON_LENGTH:
            length = value
    if kind is not None and not kind.startswith((_JSON, _BINARY, _EVENTS)):
        # Triton calls some of its errors text/plain, and writes them in JSON all the same.
        is_error = status >= 400 and _starts_as_object(body) and _ERROR in bytes(body[0][:_GLANCE])
        return "" if is_error else f"content-type {kind[:60].decode('latin-1')}"
    if status != 200 or not is_inference or encoding is not None:
        return ""
    if kind is not None and kind.startswith(_BINARY):
        return "" if length is not None else "binary data without inference-header-content-length"
    return "" if _names_its_model(body) else "a result without model_name"


def _names_its_model(body: Sequence[Buffer]) -> bool:
    return _starts_as_object(body) and (_MODEL_NAME in bytes(body[0][:_GLANCE]) or _MODEL_NAME in b"".join(body))


def _starts_as_object(body: Sequence[Buffer]) -> bool:
    return bool(body) and bytes(body[0][:_GLANCE]).lstrip().startswith(b"{")
