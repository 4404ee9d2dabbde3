"""Whether an answer follows the Open Inference Protocol, by its head and its first bytes. Pure.

Another server may take over a worker's port and answer everything with 200 and its own pages. Such an answer must never
reach a caller as a result. The check runs once per distinct head of a connection, and parses no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.errors import Unavailable
from isochrone.wire.exchange import Buffer, Headers

_JSON = b"application/json"
_BINARY = b"application/octet-stream"
_EVENTS = b"text/event-stream"
_JSON_LENGTH = b"inference-header-content-length"
#: Bytes at the start of a JSON answer that are searched first, and at most: a long id may come first. The end of a
#: larger answer may not have arrived yet.
_GLANCE, _SEARCHED = 512, 64 * 1024
#: Fields of every inference result.
_MODEL_NAME, _OUTPUTS = b'"model_name"', b'"outputs"'
#: The field of every error.
_ERROR = b'"error"'


class ForeignAnswer(Unavailable):
    """A worker's port sent an answer that does not follow the protocol."""

    code = "foreign_answer"


def foreign_http(status: int, headers: Headers, body: Sequence[Buffer], is_inference: bool) -> str:
    """Why an HTTP answer does not follow the protocol; "": it does. ``body``: the part that has arrived.

    ``is_inference``: it answers ``infer``, whose result names its model. The content of JSON errors is not checked:
    servers differ in it.
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
        # Triton labels some of its JSON errors text/plain.
        is_error = status >= 400 and _starts_as_object(body) and _ERROR in bytes(body[0][:_GLANCE])
        return "" if is_error else f"content-type {kind[:60].decode('latin-1')}"
    if status != 200 or not is_inference or encoding is not None:
        return ""
    if kind is not None and kind.startswith(_BINARY):
        return "" if length is not None else "binary data without inference-header-content-length"
    return "" if _is_result(body) else "a result without model_name"


def _is_result(body: Sequence[Buffer]) -> bool:
    if not _starts_as_object(body):
        return False
    if _MODEL_NAME in bytes(body[0][:_GLANCE]):
        return True
    start = _first(body, _SEARCHED + 1)
    # In a large answer whose tensors come first, the model's name comes after them.
    return _MODEL_NAME in start or (len(start) > _SEARCHED and _OUTPUTS in start)


def _first(body: Sequence[Buffer], most: int) -> bytes:
    found = bytearray()
    for piece in body:
        found += piece[: most - len(found)]
        if len(found) == most:
            break
    return bytes(found)


def _starts_as_object(body: Sequence[Buffer]) -> bool:
    return bool(body) and bytes(body[0][:_GLANCE]).lstrip().startswith(b"{")
