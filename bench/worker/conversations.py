"""The client's side of HTTP/1.1 and gRPC as plain objects: bytes in, bytes out, frames made once.

Load generators use it between their sockets and a server. One request at a time per conversation. It never touches a
socket or a clock, and never encodes a message per request.
"""

import re
import struct

from bench.worker.payloads import GRPC_INFER_PATH, HttpRequest

_CONTENT_LENGTH = re.compile(rb"\r\n[cC]ontent-[lL]ength: *(\d+)")
_FRAME_BYTES = 16_384  # every HTTP/2 server accepts frames of this size
_LARGEST_WINDOW = (1 << 31) - 1
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1


class ConversationFailed(RuntimeError):
    """The server broke the conversation off, or answered what no client can read."""


def http_bytes(request: HttpRequest, host: str, extra_headers: str = "") -> bytes:
    """A request as it goes over the wire; `extra_headers` are whole lines, each with its line end."""
    headers = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    head = f"POST {request.path} HTTP/1.1\r\nHost: {host}\r\n{headers}{extra_headers}"
    return f"{head}Content-Length: {len(request.body)}\r\n\r\n".encode() + request.body


class HttpConversation:
    """Reads one answer after another; `feed` gives the status once an answer is whole, 0 before."""

    __slots__ = ("_head", "_missing", "answer")

    def __init__(self) -> None:
        self._head = b""
        self._missing = 0
        #: The bytes of the last answer as far as they came with its head: enough for an error's message.
        self.answer = b""

    def feed(self, data: bytes) -> int:
        if self._missing:
            self._missing -= len(data)
        else:
            if self._head:
                data = self._head + data
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._head = data
                return 0
            self._head = b""
            length = _CONTENT_LENGTH.search(data, 0, end)
            if length is None:
                raise ConversationFailed(f"answer without Content-Length: {data[:end]!r}")
            self.answer = data
            self._missing = end + 4 + int(length[1]) - len(data)
        if self._missing < 0:
            raise ConversationFailed(f"{-self._missing} bytes after the end of an answer")
        return 0 if self._missing else int(self.answer[9:12])


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _literal(index: int, value: str) -> bytes:
    """A field whose name is in HPACK's static table, added to the dynamic table (RFC 7541, 6.2.1)."""
    return bytes([0x40 | index, len(value)]) + value.encode()


def header_blocks(authority: str, path: str) -> tuple[bytes, bytes]:
    """The block of a connection's first request, and of every later one: all indexed, as stock clients send it."""
    first = b"\x83\x86" + _literal(4, path) + _literal(1, authority) + _literal(31, "application/grpc")
    first += b"\x40\x02te\x08trailers"
    # 62 is the field added last.
    return first, b"\x83\x86" + bytes(0x80 | index for index in (65, 64, 63, 62))


OPENING = (
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + frame(_SETTINGS, 0, 0, struct.pack(">HIHI", 2, 0, 4, _LARGEST_WINDOW))
    + frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _LARGEST_WINDOW - 65_535))
)


class GrpcConversation:
    """One unary call after another on one connection.

    `request` gives the bytes to send now; `feed` takes what arrived and gives the answer's DATA bytes once the
    stream ended, -1 before. `outgoing` collects what the protocol wants sent in between (acknowledgements, and
    the rest of a body that did not fit the server's windows).
    """

    def __init__(self, authority: str, message: bytes, path: str = GRPC_INFER_PATH) -> None:
        self._message = message
        self._blocks = header_blocks(authority, path)
        self._calls = 0
        self._template, self._offsets = self._frames(self._blocks[0])
        self._stream = -1
        self._rest = b""
        self._received = 0
        self._unread_credit = 0
        self._initial_window = 65_535
        self._connection_window = 65_535
        self._stream_window = 0
        self._sent = len(message)
        self.settings_seen = False
        self.outgoing = bytearray()

    def _frames(self, block: bytes) -> tuple[bytearray, list[int]]:
        """The whole request as frames, and where its stream number stands in them."""
        frames, offsets = bytearray(), []
        pieces = [self._message[at : at + _FRAME_BYTES] for at in range(0, len(self._message), _FRAME_BYTES)]
        for kind, payload, flags in [(_HEADERS, block, _END_HEADERS), *((_DATA, piece, 0) for piece in pieces)]:
            offsets.append(len(frames) + 5)
            frames += frame(kind, flags, 0, payload)
        frames[offsets[-1] - 1] |= _END_STREAM
        return frames, offsets

    def use(self, message: bytes) -> None:
        """The next calls send this message."""
        if message is not self._message:
            self._message = message
            self._template, self._offsets = self._frames(self._blocks[self._calls > 0])

    def request(self) -> bytes | bytearray:
        """The next call."""
        self._stream += 2
        self._calls += 1
        if self._calls == 2:
            self._template, self._offsets = self._frames(self._blocks[1])
        size = len(self._message)
        self._received = 0
        if size <= self._connection_window and size <= self._initial_window:
            self._connection_window -= size
            self._stream_window = self._initial_window - size
            self._sent = size
            for offset in self._offsets:
                struct.pack_into(">I", self._template, offset, self._stream)
            return self._template
        self._sent = 0
        self._stream_window = self._initial_window
        headers = frame(_HEADERS, _END_HEADERS, self._stream, self._blocks[self._calls > 1])
        return headers + self._sendable()

    def _sendable(self) -> bytes:
        """As much of the body as the server's windows allow now."""
        frames = []
        while self._sent < len(self._message):
            size = min(_FRAME_BYTES, len(self._message) - self._sent, self._connection_window, self._stream_window)
            if size <= 0:
                break
            piece = self._message[self._sent : self._sent + size]
            self._sent += size
            self._connection_window -= size
            self._stream_window -= size
            frames.append(frame(_DATA, _END_STREAM if self._sent == len(self._message) else 0, self._stream, piece))
        return b"".join(frames)

    def feed(self, data: bytes) -> int:
        buffer = self._rest + data if self._rest else data
        position, size, ended = 0, len(buffer), False
        while size - position >= 9:
            length = int.from_bytes(buffer[position : position + 3], "big")
            end = position + 9 + length
            if end > size:
                break
            kind, flags = buffer[position + 3], buffer[position + 4]
            if kind == _DATA:
                self._received += length
                self._unread_credit += length
                ended = ended or bool(flags & _END_STREAM)
            elif kind == _HEADERS:
                ended = ended or bool(flags & _END_STREAM)
            else:
                self._control(kind, flags, buffer[position + 5 : end])
            position = end
        self._rest = buffer[position:]
        if self._unread_credit > 1 << 29:
            self.outgoing += frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unread_credit))
            self._unread_credit = 0
        return self._received if ended else -1

    def _control(self, kind: int, flags: int, rest: bytes) -> None:
        stream = int.from_bytes(rest[:4], "big")
        payload = rest[4:]
        if kind == _SETTINGS and not flags & _ACK:
            self.settings_seen = True
            for key, value in struct.iter_unpack(">HI", payload):
                if key == 4:
                    self._stream_window += value - self._initial_window
                    self._initial_window = value
            self.outgoing += frame(_SETTINGS, _ACK, 0)
        elif kind == _PING and not flags & _ACK:
            self.outgoing += frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big")
            if stream == 0:
                self._connection_window += increment
            elif stream == self._stream:
                self._stream_window += increment
        elif kind in (_RST_STREAM, _GOAWAY):
            raise ConversationFailed(f"{'RST_STREAM' if kind == _RST_STREAM else 'GOAWAY'} {payload[:64]!r}")
        if self._sent < len(self._message):
            self.outgoing += self._sendable()


PING = frame(_PING, 0, 0, b"isochron")
PING_ACK = frame(_PING, _ACK, 0, b"isochron")
