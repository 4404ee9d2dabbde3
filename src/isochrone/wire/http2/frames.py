"""HTTP/2 frames (RFC 9113 §4, §6): constants, and encoders of the frames that we send."""

from __future__ import annotations

from struct import Struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITISED = 0x20

SETTINGS_HEADER_TABLE_SIZE = 1
SETTINGS_ENABLE_PUSH = 2
SETTINGS_MAX_CONCURRENT_STREAMS = 3
SETTINGS_INITIAL_WINDOW_SIZE = 4
SETTINGS_MAX_FRAME_SIZE = 5
SETTINGS_MAX_HEADER_LIST_SIZE = 6

NO_ERROR = 0
PROTOCOL_ERROR = 1
INTERNAL_ERROR = 2
FLOW_CONTROL_ERROR = 3
STREAM_CLOSED = 5
FRAME_SIZE_ERROR = 6
REFUSED_STREAM = 7
CANCEL = 8
COMPRESSION_ERROR = 9
ENHANCE_YOUR_CALM = 11

MAX_WINDOW = (1 << 31) - 1
MAX_STREAM_ID = (1 << 31) - 1
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME = 16_384

#: The header of every frame: length (two high bytes, one low), type, flags, stream.
frame_header = Struct(">HBBBI")
uint32 = Struct(">I")
setting = Struct(">HI")
goaway_fields = Struct(">II")

SETTINGS_ACK = frame_header.pack(0, 0, SETTINGS, ACK, 0)


class ConnectionFault(Exception):
    """A connection error of the peer: answered by GOAWAY with this code and reason, then closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    length = len(payload)
    return frame_header.pack(length >> 8, length & 0xFF, kind, flags, stream) + payload


def settings_frame(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(setting.pack(key, value) for key, value in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, uint32.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, uint32.pack(code))


def goaway(last_stream: int, code: int, debug: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, goaway_fields.pack(last_stream, code) + debug)


def ping_ack(payload: bytes) -> bytes:
    return frame(PING, ACK, 0, payload)
