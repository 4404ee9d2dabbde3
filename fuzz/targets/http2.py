"""HTTP/2: frames at both ends of a connection, and header compression."""

from __future__ import annotations

import hpack

from fuzz.target import Target, cuts, parts
from fuzz.targets.ends import FakeTransport, ManualLoop, RecordingReceiver, ServerEnd
from isochrone.errors import IsochroneError
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http2 import frames
from isochrone.wire.http2.client import Http2ClientConnection, request_block
from isochrone.wire.http2.frames import PREFACE, frame, settings_frame, window_update
from isochrone.wire.http2.hpack import Decoder, Encoder, HeaderListTooLarge, HpackError, encode_integer
from isochrone.wire.http2.server import Http2ServerConnection

_LIMITS = WireLimits(max_head_bytes=4096, max_headers=30, max_body_bytes=8192)
_encode = Encoder().encode
_FIELDS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/v2"), (b":authority", b"a")]
_UNLIMITED = 1 << 40


def server(data: bytes) -> None:
    seed, data = data[0] if data else 0, data[1:]
    assert _served(data, []) == _served(data, cuts(data, seed)), "cut into pieces, it is other requests"


def _served(data: bytes, places: list[int]) -> object:
    end = ServerEnd(Http2ServerConnection, limits=_LIMITS)
    end.transport.feed(PREFACE + settings_frame({}))
    end.transport.feed_in_pieces(data, places)
    sent = end.turn()
    found = zip(end.route.exchanges, end.route.bodies, strict=True)
    requests = [(each.head.method, each.head.target, each.head.headers, body) for each, body in found]
    assert all(len(body) <= _LIMITS.max_body_bytes for *_, body in requests)
    assert len(sent) <= 64 * 1024 + 64 * len(data), "it answers with far more than it was sent"
    end.connection.connection_lost(None)
    assert end.listener.budget.free == end.listener.budget.limit
    return requests, _goaway(sent)


def _goaway(sent: bytes) -> int | None:
    """The code with which the connection ended."""
    while len(sent) >= 9:
        high, low, kind, _, _ = frames.frame_header.unpack_from(sent)
        length = high << 8 | low
        if kind == frames.GOAWAY:
            code: int = frames.goaway_fields.unpack_from(sent[9 : 9 + length])[1]
            return code
        sent = sent[9 + length :]
    return None


def client(data: bytes) -> None:
    seed, data = data[0] if data else 0, data[1:]
    assert _asked(data, []) == _asked(data, cuts(data, seed)), "cut into pieces, it is other answers"


_BLOCK = request_block(b"POST", b"http", b"a", b"/v2", ((b"te", b"trailers"),))


def _asked(data: bytes, places: list[int]) -> object:
    connection = Http2ClientConnection(_LIMITS, ManualLoop())
    transport = FakeTransport(connection)
    receivers = [RecordingReceiver() for _ in range(3)]
    for receiver in receivers:
        connection.open(_BLOCK, [b"body"], receiver)
    transport.feed_in_pieces(data, places)
    connection.loop.run()
    connection.connection_lost(None)
    for receiver in receivers:
        assert receiver.is_complete != (receiver.error is not None), "neither answered nor failed"
        assert receiver.error is None or isinstance(receiver.error, IsochroneError)
    return [(each.status, each.headers, each.body, each.trailers) for each in receivers if each.is_complete]


def header_blocks(data: bytes) -> None:
    """One connection's blocks, read by the package ``hpack`` as well."""
    ours, plain = (Decoder(max_header_list_size=_UNLIMITED, max_headers=_UNLIMITED) for _ in range(2))
    theirs = hpack.Decoder(max_header_list_size=_UNLIMITED)
    for block in parts(data)[:8]:
        found = _block(ours, block)
        # A second connection with the same past; it reads no block twice, so that it has no use for its memo.
        plain._memo.clear()
        assert _block(plain, block) == found, "the memo says something else"
        expected: list[tuple[bytes, bytes]] | None
        try:
            expected = [(bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True)]
        except hpack.HPACKError:
            expected = None
        # RFC 7541 section 4.2 knows at most two updates of the size; the package takes more.
        if found is None and _size_updates(block) > 2:
            return
        assert found == expected, "hpack reads other headers"
        if found is None:
            return
        assert _block(ours, block) == _block(plain, block)
        theirs.decode(block, raw=True)
        assert Decoder(max_headers=_UNLIMITED, max_header_list_size=_UNLIMITED).decode(_encode(found)) == tuple(found)


def _block(decoder: Decoder, block: bytes) -> list[tuple[bytes, bytes]] | None:
    try:
        return list(decoder.decode(block))
    except (HpackError, HeaderListTooLarge):
        return None


def _size_updates(block: bytes) -> int:
    count = position = 0
    while position < len(block) and block[position] & 0xE0 == 0x20:
        count += 1
        if block[position] == 0x3F:
            position += 1
            while position < len(block) and block[position] >= 0x80:
                position += 1
        position += 1
    return count


def _headers(stream: int, *, end: bool = False, more: tuple[tuple[bytes, bytes], ...] = ()) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frame(frames.HEADERS, flags, stream, _encode([*_FIELDS, *more]))


def _answer(stream: int, *, end: bool = False) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frame(frames.HEADERS, flags, stream, _encode([(b":status", b"200"), (b"content-type", b"application/grpc")]))


_TRAILERS = frame(frames.HEADERS, 5, 1, _encode([(b"grpc-status", b"0")]))
_package = hpack.Encoder()
_BLOCKS = [bytes(_package.encode([*_FIELDS, (b"x-trace", value)])) for value in (b"one", b"two", b"one")]

TARGETS = (
    Target(
        "http2_server",
        ("isochrone.wire.http2.server", "isochrone.wire.http2.connection", "isochrone.wire.http2.control_frames"),
        "the same requests and the same end however the bytes are cut; bodies within the limit; answers no larger than "
        "64 times the input; no exception; memory is given back",
        server,
        (
            b"\0" + _headers(1) + frame(frames.DATA, 1, 1, b"body") + _headers(3, end=True),
            b"\7" + _headers(1, more=((b"content-length", b"4"),)) + frame(frames.DATA, 9, 1, b"\2body\0\0"),
            b"\1" + settings_frame({1: 0, 3: 5, 4: 100}) + window_update(0, 1000) + _headers(1) + window_update(1, 5),
            b"\2" + frame(frames.HEADERS, 1, 1, _encode(_FIELDS)[:5]) + frame(9, 4, 1, _encode(_FIELDS)[5:]),
            b"\3" + _headers(1) + frame(frames.RST_STREAM, 0, 1, bytes(4)) + frame(frames.PING, 0, 0, bytes(8)),
            b"\4" + frame(frames.GOAWAY, 0, 0, bytes(8)) + frame(frames.PRIORITY, 0, 3, bytes(5)),
            b"\5" + _headers(1) + _headers(1, end=True, more=((b"grpc-status", b"0"),)) + frame(22, 0, 0, b"unknown"),
        ),
    ),
    Target(
        "http2_client",
        ("isochrone.wire.http2.client", "isochrone.wire.http2.fields"),
        "every request is answered or failed, once; the same answers however the bytes are cut; no exception",
        client,
        (
            b"\0" + settings_frame({}) + _answer(1) + frame(frames.DATA, 0, 1, b"\0\0\0\0\1x") + _TRAILERS,
            b"\7" + settings_frame({3: 1, 4: 100}) + _answer(1, end=True) + _answer(3, end=True) + _answer(5, end=True),
            b"\1" + settings_frame({}) + frame(frames.GOAWAY, 0, 0, b"\0\0\0\1\0\0\0\0bye") + _answer(1, end=True),
            b"\2" + settings_frame({}) + frame(frames.RST_STREAM, 0, 3, b"\0\0\0\7") + window_update(0, 9),
            b"\3" + settings_frame({}) + frame(1, 4, 1, _encode([(b":status", b"100")])) + _answer(1) + _TRAILERS,
        ),
    ),
    Target(
        "hpack",
        ("isochrone.wire.http2.hpack",),
        "the headers that the package hpack reads, block by block on one connection; with and without the memo; only "
        "HpackError; what is encoded again reads the same",
        header_blocks,
        (
            b"\xff\xfe".join(_BLOCKS),
            _encode(_FIELDS) + b"\xff\xfe\x20" + _encode([(b"a", b"b")]),
            b"\x40\x83\x1d\x85\x4f\x03abc" + b"\xff\xfe" + encode_integer(62, 7, 0x80),
            b"\x3f\xe1\x1f" + _BLOCKS[0] + b"\xff\xfe\x20\x3f\xe1\x1f\x82",
        ),
    ),
)
