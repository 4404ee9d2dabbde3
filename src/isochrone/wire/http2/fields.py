"""Validation of the header fields of requests and responses (RFC 9113 §8.2, §8.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from isochrone.wire.exchange import Head, Header, Headers
from isochrone.wire.hosts import is_malformed_host

_CONNECTION_HEADERS = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))


class AnswerBlock(NamedTuple):
    """A decoded header block; ``status`` is 0 for trailers and -1 for a malformed block."""

    status: int
    headers: Headers
    content_length: int


MALFORMED = AnswerBlock(-1, (), -1)


def request_head(headers: Sequence[Header]) -> Head | None:
    """The head of a request with these fields; None: malformed."""
    pseudo: dict[bytes, bytes] = {}
    regular: list[Header] = []
    for name, value in headers:
        if name.startswith(b":"):
            if regular or name in pseudo or name not in (b":method", b":scheme", b":path", b":authority"):
                return None
            pseudo[name] = value
            continue
        if malformed(name, value):
            return None
        if name == b"te" and value.lower() != b"trailers":
            return None
        if name == b"host" and is_malformed_host(value):
            return None
        regular.append((name, value))
    method, path = pseudo.get(b":method"), pseudo.get(b":path")
    if not method or not path or b":scheme" not in pseudo:
        return None
    if not path.startswith(b"/") and path != b"*":
        return None
    # Bytes that would split a message if it were forwarded over HTTP/1.1 are not allowed.
    if not method.isalpha() or any(byte <= 0x20 or byte == 0x7F for byte in path):
        return None
    if is_malformed_host(pseudo.get(b":authority", b"")):
        return None
    head = Head(method, path, tuple(regular))
    head.is_http2 = True
    head.authority = pseudo.get(b":authority", b"")
    head.is_grpc = (head.get(b"content-type") or b"").startswith(b"application/grpc")
    length = head.get(b"content-length")
    if length is not None:
        if not length.isdigit() or len(length) > 18:
            return None
        if any(name == b"content-length" and value != length for name, value in regular):
            return None
        head.content_length = int(length)
    return head


def malformed(name: bytes, value: bytes) -> bool:
    """Whether no HTTP/2 message may contain this field: upper case, a connection-specific field, or bytes that would
    split a message if it were forwarded over HTTP/1.1."""
    return (
        not name
        or name in _CONNECTION_HEADERS
        or name != name.lower()
        or b"\0" in value
        or b"\r" in value
        or b"\n" in value
        or b":" in name
        or any(byte <= 0x20 or byte >= 0x7F for byte in name)
    )


def answer_block(fields: Headers) -> AnswerBlock:
    """The status and headers of a response with these fields (RFC 9113 §8.3.2)."""
    status, length = 0, -1
    start = 0
    if fields and fields[0][0] == b":status":
        code = fields[0][1]
        if len(code) != 3 or not code.isdigit() or code < b"100":
            return MALFORMED
        status, start = int(code), 1
    headers = fields[start:]
    for name, value in headers:
        if name.startswith(b":") or malformed(name, value):
            return MALFORMED
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or length not in (-1, int(value)):
                return MALFORMED
            length = int(value)
    return AnswerBlock(status, headers, length)
