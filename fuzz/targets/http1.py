"""HTTP/1.1: requests as a listener receives them, chunked bodies, and answers as a gateway receives them.

Smuggling is two readers that disagree about where a message ends. So what a request is must not depend on how its bytes
were cut, on the memo of heads, or, where h11 accepts it as well, on who reads it.
"""

from __future__ import annotations

from itertools import pairwise

import h11

from fuzz.target import Target, cuts
from fuzz.targets.ends import FakeTransport, RecordingReceiver, ServerEnd
from isochrone.errors import IsochroneError
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http1.chunked import ChunkedDecoder, ChunkedError
from isochrone.wire.http1.client import Http1ClientConnection, request_head
from isochrone.wire.http1.server import Http1Connection

_LIMITS = WireLimits(max_head_bytes=1024, max_headers=20, max_body_bytes=2048)

Requests = list[tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...], bytes]]


def _received(end: ServerEnd) -> Requests:
    found = zip(end.route.exchanges, end.route.bodies, strict=True)
    return [(each.head.method, each.head.target, each.head.headers, body) for each, body in found]


def requests(data: bytes) -> None:
    seed, data = data[0] if data else 0, data[1:]
    whole = ServerEnd(Http1Connection, limits=_LIMITS)
    whole.transport.feed(data)
    found = _received(whole)
    answered = whole.turn()
    assert answered.count(b"HTTP/1.1 200 ") >= len(found) or whole.transport.aborted or b"HTTP/1.1 200" in data
    assert all(len(body) <= _LIMITS.max_body_bytes for _, _, _, body in found)

    cut = ServerEnd(Http1Connection, limits=_LIMITS)
    cut.transport.feed_in_pieces(data, cuts(data, seed))
    assert _received(cut) == found, "cut into pieces, it is other requests"

    # The heads that the first connection has made known.
    again = Http1Connection(whole.listener)
    whole.listener.connections.add(again)
    FakeTransport(again).feed(data)
    assert _received(whole)[len(found) :] == found, "read with the memo of heads, it is other requests"

    theirs = _first_of_h11(data)
    if theirs is not None and found:
        assert (found[0][0], found[0][3]) == theirs, "h11 reads another first request"
    for end in (whole, cut):
        end.connection.connection_lost(None)
        assert end.listener.budget.free == end.listener.budget.limit


def _first_of_h11(data: bytes) -> tuple[bytes, bytes] | None:
    connection = h11.Connection(h11.SERVER)
    method, body = b"", b""
    try:
        connection.receive_data(data)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                method = event.method
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return method, body
            else:
                return None
    except h11.RemoteProtocolError:
        return None


def chunked(data: bytes) -> None:
    seed, data = data[0] if data else 0, data[1:]
    found = _decoded([data])
    edges = [0, *cuts(data, seed), len(data)]
    pieces = [data[start:end] for start, end in pairwise(edges)]
    assert _decoded(pieces) == found
    if found is not None:
        theirs = _first_of_h11(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + data)
        assert theirs is None or theirs[1] == found[0], "h11 reads another body"


def _decoded(pieces: list[bytes]) -> tuple[bytes, int] | None:
    """The body and where it ends; None: it is rejected, or not complete."""
    decoder, consumed = ChunkedDecoder(), 0
    try:
        for piece in pieces:
            position = decoder.feed(piece)
            consumed += position
            assert decoder.total <= consumed
            if decoder.done:
                return bytes(decoder.take()), consumed
            assert position == len(piece)
    except ChunkedError:
        return None
    return None


_GET = request_head(b"GET", b"/", ((b"host", b"a"),), 0)
_HEAD = request_head(b"HEAD", b"/", ((b"host", b"a"),), 0)


def responses(data: bytes) -> None:
    seed, data = data[0] if data else 0, data[1:]
    first, second = _asked(data, [], seed), _asked(data, cuts(data, seed), seed)
    assert first == second, "cut into pieces, it is other answers"


def _asked(data: bytes, places: list[int], seed: int) -> list[object]:
    connection = Http1ClientConnection(_LIMITS)
    transport = FakeTransport(connection)
    receivers = [RecordingReceiver() for _ in range(3)]
    for index, receiver in enumerate(receivers):
        connection.send(_HEAD if index == seed % 4 else _GET, [], receiver)
    transport.feed_in_pieces(data, places)
    connection.connection_lost(None)
    for receiver in receivers:
        assert receiver.is_complete != (receiver.error is not None), "neither answered nor failed"
        assert receiver.error is None or isinstance(receiver.error, IsochroneError)
    # A piece of a body that an error cuts off may have been handed on, or not.
    return [(each.is_complete, each.status, each.headers, each.body) for each in receivers if each.is_complete]


_REQUEST = b"POST /v2/models/m/infer HTTP/1.1\r\nhost: a\r\n"
_ANSWER = b"HTTP/1.1 200 OK\r\n"

TARGETS = (
    Target(
        "http1_requests",
        ("isochrone.wire.http1.server", "isochrone.wire.http1.request_heads"),
        "the same requests however the bytes are cut, with and without the memo of heads; h11 agrees on the first; no "
        "exception; memory is given back",
        requests,
        (
            b"\0" + _REQUEST + b"content-length: 3\r\n\r\nabc" + _REQUEST + b"\r\n",
            b"\7" + _REQUEST + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nx: y\r\n\r\n",
            b"\1\r\n\r\nGET http://a.test:80/v2/health?x=1 HTTP/1.1\r\nhost: a.test\r\nconnection: close\r\n\r\n",
            b"\2POST / HTTP/1.0\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nxGET / HTTP/1.0\r\n\r\n",
            b"\5" + _REQUEST + b"expect: 100-continue\r\ncontent-length: 2\r\n\r\nxy",
            b"\0" + _REQUEST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            b"\3OPTIONS * HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\n\r\n",
        ),
    ),
    Target(
        "http1_chunked",
        ("isochrone.wire.http1.chunked",),
        "the same body however it is cut; h11 agrees; only ChunkedError; never more body than bytes",
        chunked,
        (b"\0" + b"3\r\nabc\r\n0\r\n\r\n", b"\2a;x=y \r\n0123456789\r\n00\r\ntrailer: x\r\n\r\nnext", b"\1F\r\nabc"),
    ),
    Target(
        "http1_responses",
        ("isochrone.wire.http1.client", "isochrone.wire.http1.response_heads"),
        "every request is answered or failed, once; the same answers however the bytes are cut; no exception",
        responses,
        (
            b"\0" + (_ANSWER + b"content-length: 2\r\n\r\nab") * 3,
            b"\4"
            + b"HTTP/1.1 100 Continue\r\n\r\n"
            + _ANSWER
            + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
            b"\1HTTP/1.1 204 No Content\r\n\r\n" + _ANSWER + b"\r\nto the end",
            b"\2HTTP/1.1 503 Service Unavailable\r\ncontent-length: 1\r\nretry-after: 1\r\nconnection: close\r\n\r\nx",
            b"\3HTTP/1.0 200 OK\r\nserver-timing: compute;dur=1.5\r\ncontent-length: 0\r\n\r\n",
        ),
    ),
)
