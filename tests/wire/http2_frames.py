"""HTTP/2 frames as bytes, written and read by hand, and a server end that takes them."""

from __future__ import annotations

from typing import Any

from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http2 import frames
from isochrone.wire.http2.frames import DATA, GOAWAY, HEADERS, PREFACE, frame, settings_frame
from isochrone.wire.http2.hpack import Decoder, Encoder
from isochrone.wire.http2.server import Http2ServerConnection

FIELDS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"a")]
encode = Encoder().encode
BLOCK = encode(FIELDS)


def headers(stream: int, fields: list[tuple[bytes, bytes]] | None = None, *, end: bool = False) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if end else 0)
    return frame(HEADERS, flags, stream, encode(FIELDS if fields is None else fields))


def opened(limits: WireLimits | None = None, answer: object = None) -> ServerEnd:
    """A connection past its preface, whose requests the test answers."""
    end = ServerEnd(Http2ServerConnection, answer, limits)  # type: ignore[arg-type]
    end.feed(PREFACE + settings_frame({}))
    return end


def parse(data: bytes) -> list[tuple[int, int, int, bytes]]:
    """(kind, flags, stream, payload) of each frame."""
    result = []
    while data:
        high, low, kind, flags, stream = frames.frame_header.unpack_from(data)
        length = high << 8 | low
        result.append((kind, flags, stream, data[9 : 9 + length]))
        data = data[9 + length :]
    return result


def goaway_of(data: bytes) -> tuple[int, str] | None:
    for kind, _, _, payload in parse(data):
        if kind == GOAWAY:
            return frames.goaway_fields.unpack_from(payload)[1], payload[8:].decode()
    return None


def data_of(sent: bytes, stream: int = 1) -> bytes:
    return b"".join(payload for kind, _, number, payload in parse(sent) if kind == DATA and number == stream)


def exchange_of(end: ServerEnd, index: int = 0) -> Any:
    return end.route.exchanges[index]


def advance(end: ServerEnd, ticks: int) -> bytes:
    end.listener.tick += ticks
    end.connection.check_timeouts(end.listener.tick)
    return end.turn()


def statuses(sent: bytes) -> list[bytes]:
    decoder = Decoder()
    blocks = [payload for kind, _, _, payload in parse(sent) if kind == HEADERS]
    return [value for block in blocks for name, value in decoder.decode(block) if name == b":status"]
