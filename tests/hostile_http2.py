"""A raw HTTP/2 end for the hostile suites: frames byte by byte, and what the server sends back in order."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import hpack

from hostile_client import connected

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITISED = 0x1, 0x1, 0x4, 0x8, 0x20
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 1, 3, 5, 6
REFUSED_STREAM, CANCEL, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 8, 9, 11
#: Frames of a flood: many times the 2,000 that a connection may send in a second. On a slow machine they take several.
FLOOD = 64_000


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame; ``length`` lies about the payload's."""
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def settings(values: dict[int, int] | None = None) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", key, value) for key, value in (values or {}).items()))


def block(*fields: tuple[str, str]) -> bytes:
    """A header block that uses no dynamic table, so that any order of blocks decodes."""
    return bytes(hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(name, value) for name, value in fields]))


def rest_block(method: str, path: str, *fields: tuple[str, str]) -> bytes:
    return block((":method", method), (":scheme", "http"), (":path", path), (":authority", "test"), *fields)


def grpc_block(method: str, *fields: tuple[str, str]) -> bytes:
    return rest_block(
        "POST",
        f"/inference.GRPCInferenceService/{method}",
        ("content-type", "application/grpc"),
        ("te", "trailers"),
        *fields,
    )


def grpc_message(payload: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + struct.pack(">I", len(payload)) + payload


@dataclass(frozen=True)
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes


@dataclass
class Response:
    """What came on one stream."""

    headers: dict[str, str]
    body: bytes
    trailers: dict[str, str]
    reset: int | None = None

    @property
    def status(self) -> int:
        return int(self.headers[":status"])

    @property
    def grpc_status(self) -> int:
        return int(self.trailers.get("grpc-status") or self.headers["grpc-status"])

    @property
    def grpc_text(self) -> str:
        return self.trailers.get("grpc-message") or self.headers.get("grpc-message", "")


class GoneAway(Exception):
    """The server ended the connection: code and reason of its GOAWAY, or code -1 when it only closed."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"GOAWAY {code}: {reason}")
        self.code = code
        self.reason = reason


class RawHttp2:
    """One connection."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._decoder = hpack.Decoder()
        self._received = b""

    def send(self, *pieces: bytes) -> None:
        try:
            self.socket.sendall(b"".join(pieces))
        except (BrokenPipeError, ConnectionResetError):
            pass  # told by the next read

    def frames(self) -> Iterator[Frame]:
        """Frames until the server closes."""
        while True:
            while len(self._received) >= 9:
                length = int.from_bytes(self._received[:3], "big")
                if len(self._received) < 9 + length:
                    break
                kind, flags, stream = struct.unpack_from(">BBI", self._received, 3)
                payload = self._received[9 : 9 + length]
                self._received = self._received[9 + length :]
                yield Frame(kind, flags, stream, payload)
            try:
                piece = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return
            if not piece:
                return
            self._received += piece

    def response(self, stream: int) -> Response:
        """The whole answer on one stream; ``GoneAway`` when the connection ends first."""
        return self.responses(stream)[stream]

    def responses(self, *streams: int) -> dict[int, Response]:
        waiting = set(streams)
        found = {stream: Response({}, b"", {}) for stream in streams}
        gone = GoneAway(-1, "closed without GOAWAY")
        for received in self.frames():
            if received.kind == GOAWAY:
                _, code = struct.unpack_from(">II", received.payload)
                gone = GoneAway(code, received.payload[8:].decode())
            if received.kind == HEADERS:
                fields = {str(name): str(value) for name, value in self._decoder.decode(received.payload)}
                if received.stream in found:
                    target = found[received.stream]
                    (target.trailers if target.headers else target.headers).update(fields)
            if received.kind == DATA and received.stream in found:
                found[received.stream].body += received.payload
            if received.kind == RST_STREAM and received.stream in waiting:
                found[received.stream].reset = int.from_bytes(received.payload, "big")
                waiting.discard(received.stream)
            if received.kind in (HEADERS, DATA) and received.flags & END_STREAM:
                waiting.discard(received.stream)
            if not waiting:
                return found
        raise gone

    def until_gone(self) -> GoneAway:
        """Reads until the server ends the connection."""
        gone = GoneAway(-1, "closed without GOAWAY")
        for received in self.frames():
            if received.kind == GOAWAY:
                gone = GoneAway(struct.unpack_from(">II", received.payload)[1], received.payload[8:].decode())
        return gone

    def call(self, stream: int, method: str, payload: bytes, *fields: tuple[str, str], flag: int = 0) -> Response:
        """A unary gRPC call."""
        self.send(
            frame(HEADERS, END_HEADERS, stream, grpc_block(method, *fields)),
            *_data(stream, grpc_message(payload, flag)),
        )
        return self.response(stream)


def _data(stream: int, body: bytes) -> Iterator[bytes]:
    size = 16_384
    for start in range(0, max(len(body), 1), size):
        last = start + size >= len(body)
        yield frame(DATA, END_STREAM if last else 0, stream, body[start : start + size])


@contextmanager
def http2(port: int, first: bytes = PREFACE + settings()) -> Iterator[RawHttp2]:
    with connected(port) as connection:
        end = RawHttp2(connection)
        end.send(first)
        yield end
