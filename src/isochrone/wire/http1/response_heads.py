"""HTTP/1.1 response heads: parsed by httptools, and memoised by their bytes.

The client-side counterpart of ``request_heads``: a server sends the same head bytes with similar answers.
"""

from __future__ import annotations

import httptools

from isochrone.errors import ConnectionLost
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.exchange import Header, Headers
from isochrone.wire.head_memo import remember_second

_MAX_MEMOISED_BYTES = 2048
_MAX_MEMOISED_HEADS = 1024


class ResponseHead:
    """A parsed response head. Shared between answers, so immutable after parsing."""

    __slots__ = ("chunked", "content_length", "direct", "headers", "keep_alive", "status")

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        #: -1: not announced; the body ends with the connection unless it is chunked.
        self.content_length = -1
        self.chunked = False
        self.keep_alive = True
        #: A final answer with a body of announced length on a persistent connection: the fast path applies.
        self.direct = False


class _Collector:
    __slots__ = ("complete", "headers")

    def __init__(self) -> None:
        self.headers: list[Header] = []
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


class ResponseHeads:
    """The memoised response heads of similar servers."""

    __slots__ = ("_limits", "_memo", "_seen", "get")

    def __init__(self, limits: WireLimits) -> None:
        self._limits = limits
        self._memo: dict[bytes, ResponseHead] = {}
        self._seen: set[int] = set()
        #: The lookup of the hot path, bound once.
        self.get = self._memo.get

    def parse(self, raw: bytes) -> ResponseHead:
        """Parse a head that is not memoised; raises ``ConnectionLost``, since the bytes after it cannot be parsed."""
        head = _parse(raw, self._limits)
        if len(raw) <= _MAX_MEMOISED_BYTES:
            remember_second(raw, head, self._memo, self._seen, _MAX_MEMOISED_HEADS)
        return head


def _parse(raw: bytes, limits: WireLimits) -> ResponseHead:
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        raise ConnectionLost("the server switches protocols, which was not requested") from None
    except httptools.HttpParserError as error:
        raise ConnectionLost(f"malformed HTTP/1.1 answer: {error}") from None
    if not collector.complete:
        raise ConnectionLost("malformed HTTP/1.1 answer: the head ends early")
    if len(collector.headers) > limits.max_headers:
        raise ConnectionLost(
            f"the answer has {len(collector.headers)} header fields; max_headers is {limits.max_headers}"
        )
    head = ResponseHead(parser.get_status_code(), tuple(collector.headers))
    # Not the parser's own result: it treats an answer to HEAD, which has a length and no body, as incomplete.
    head.keep_alive = parser.get_http_version() == "1.1"
    for name, value in head.headers:
        if name == b"content-length":
            head.content_length = int(value)
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked" or head.chunked:
                raise ConnectionLost(f"transfer-encoding {value!r} of an answer is not supported")
            head.chunked = True
        elif name == b"connection":
            options = value.lower()
            if b"close" in options:
                head.keep_alive = False
            elif b"keep-alive" in options:
                head.keep_alive = True
    if head.status < 200 or head.status in (204, 304):
        # RFC 9112 §6.3: these have no body, whatever the head announces.
        head.content_length, head.chunked = 0, False
    elif head.chunked and head.content_length >= 0:
        raise ConnectionLost("an answer announces both content-length and transfer-encoding")
    head.direct = head.status >= 200 and 0 < head.content_length <= limits.max_body_bytes and head.keep_alive
    return head
