"""One HTTP/2 connection of a load generator: many gRPC calls at once, of any size, never blocking.

``realistic.grpc_generator`` sends what fits the server's first windows; pictures do not. Here a body waits for the
server's windows, and the bytes of an answer are kept until it is whole. A call that fails is reported, not raised: a
rollout counts them. A small call costs about 10 µs. A large one that the windows admit is sent from frames that were
made before: copies of it would be counted as the server's time.
"""

from __future__ import annotations

import select
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from bench.realistic.messages import ID_DIGITS, Message
from bench.worker.conversations import OPENING, ConversationFailed, frame, header_blocks
from bench.worker.payloads import GRPC_INFER_PATH

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_HIGHEST_STREAM = (1 << 31) - 1
_pack_stream = struct.Struct(">I").pack_into


#: Every server takes frames of this size.
_SMALLEST_FRAME_LIMIT = 16_384


class Ended(NamedTuple):
    """A call that is over: its token, its answer in its gRPC frame, or the reason why there is none."""

    token: int
    body: bytes
    problem: str


class _Template:
    """A message as the frames of one call, where only stream and id change."""

    __slots__ = ("frames", "id_at", "message", "offsets", "size")

    def __init__(self, message: Message, block: bytes, frame_bytes: int) -> None:
        self.message = message
        self.size = len(message.data)
        self.frames = bytearray(frame(_HEADERS, _END_HEADERS, 0, block))
        self.offsets = [5]
        # As stock clients do: frames as large as the server takes them.
        for at in range(0, self.size, frame_bytes):
            piece = message.data[at : at + frame_bytes]
            self.offsets.append(len(self.frames) + 5)
            self.frames += frame(_DATA, _END_STREAM if at + frame_bytes >= self.size else 0, 0, piece)
        #: Where each digit of the id is: frames may divide it.
        before = len(frame(_HEADERS, _END_HEADERS, 0, block))
        digits = range(message.id_at, message.id_at + ID_DIGITS)
        self.id_at = [before + 9 * (at // frame_bytes + 1) + at for at in digits]

    def fill(self, stream: int, digits: bytes) -> bytearray:
        """The frames of a call; they are overwritten by the next one."""
        frames, at = self.frames, self.id_at
        for offset in self.offsets:
            _pack_stream(frames, offset, stream)
        if at[-1] - at[0] == ID_DIGITS - 1:
            frames[at[0] : at[0] + ID_DIGITS] = digits
        else:
            for place, digit in zip(at, digits, strict=True):
                frames[place] = digit
        return frames


class Link:
    """The socket is not blocking: ``flush`` after calls, ``receive`` when it is readable."""

    def __init__(self, address: str, messages: Sequence[Message], timeout_seconds: float = 30.0) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._blocks = header_blocks(address, GRPC_INFER_PATH)
        self._templates: list[_Template] = []
        self._stream = -1
        self._tokens: dict[int, int] = {}
        self._bodies: dict[int, bytes] = {}
        #: Bodies that wait for a window: stream → what is left of it, in the order of the calls.
        self._waiting: dict[int, memoryview] = {}
        self._stream_windows: dict[int, int] = {}
        self._initial_window = self._window = 65_535
        self._frame_bytes = _SMALLEST_FRAME_LIMIT
        self._credit = 0
        self._rest = b""
        self._settled = False
        #: The reason after which it takes no more calls.
        self.broken = ""
        #: The rest of a large call's frames, which is sent before ``_out``.
        self._direct = memoryview(b"")
        self._out = bytearray(OPENING)
        self._ended: deque[Ended] = deque()
        self._open()
        self._templates = [_Template(message, self._blocks[1], self._frame_bytes) for message in messages]

    def _open(self) -> None:
        self.socket.sendall(self._out)
        self._out.clear()
        while not self._settled:
            self._scan(self.socket.recv(65_536) or self._closed())
        self.socket.setblocking(False)

    def _closed(self) -> bytes:
        raise ConversationFailed(f"{self.address} closed the connection")

    @property
    def in_flight(self) -> int:
        return len(self._tokens)

    def call(self, kind: int, number: int, token: int) -> None:
        """Send a message with an id; the token comes back with the answer."""
        template = self._templates[kind]
        self._stream = stream = self._stream + 2
        self._tokens[stream] = token
        digits = b"%012d" % number
        size = template.size
        is_small = size <= _SMALLEST_FRAME_LIMIT
        is_free = is_small or not (self._out or self._direct)
        if stream > 1 and is_free and size <= self._window and size <= self._initial_window:
            self._window -= size
            self._stream_windows[stream] = self._initial_window - size
            if is_small:
                self._out += template.fill(stream, digits)
            else:
                self._direct = memoryview(template.fill(stream, digits))
            return
        body = bytearray(template.message.data)
        at = template.message.id_at
        body[at : at + ID_DIGITS] = digits
        self._out += frame(_HEADERS, _END_HEADERS, stream, self._blocks[stream > 1])
        self._stream_windows[stream] = self._initial_window
        self._waiting[stream] = memoryview(body)
        self._send_waiting()

    def _send_waiting(self) -> None:
        for stream in list(self._waiting):
            if self._window <= 0:
                return
            rest = self._waiting[stream]
            size = min(len(rest), self._window, self._stream_windows[stream])
            if size <= 0:
                continue
            ends = size == len(rest)
            # As stock clients do: frames as large as the server takes them.
            for at in range(0, size, self._frame_bytes):
                piece = rest[at : min(at + self._frame_bytes, size)]
                last = ends and at + self._frame_bytes >= size
                self._out += frame(_DATA, _END_STREAM if last else 0, stream)
                self._out[-9:-6] = struct.pack(">I", len(piece))[1:]
                self._out += piece
            self._window -= size
            self._stream_windows[stream] -= size
            if ends:
                del self._waiting[stream]
            else:
                self._waiting[stream] = rest[size:]

    def flush(self) -> bool:
        """Send what can be sent now; False: more is left, wait until the socket is writable."""
        while self._direct or self._out:
            try:
                if self._direct:
                    self._direct = self._direct[self.socket.send(self._direct) :]
                else:
                    del self._out[: self.socket.send(self._out)]
            except BlockingIOError:
                return False
            except OSError as error:
                self._break(f"cannot send: {error}")
                return True
        return True

    def receive(self) -> deque[Ended]:
        """The calls that ended with what has arrived; the caller empties it."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return self._ended
        except OSError as error:
            self._break(f"cannot receive: {error}")
            return self._ended
        if not data:
            self._break("the server closed the connection")
        else:
            self._scan(data)
        return self._ended

    def abandon(self, reason: str) -> deque[Ended]:
        """Give up: every call in flight fails."""
        self._break(reason)
        return self._ended

    def _break(self, reason: str) -> None:
        self.broken = self.broken or reason
        self._ended.extend(Ended(token, b"", reason) for token in self._tokens.values())
        self._tokens.clear()
        self._waiting.clear()
        self._out.clear()
        self._direct = memoryview(b"")

    def _scan(self, data: bytes) -> None:
        buffer = self._rest + data if self._rest else data
        position, size = 0, len(buffer)
        while size - position >= 9:
            length = (buffer[position] << 16) | (buffer[position + 1] << 8) | buffer[position + 2]
            end = position + 9 + length
            if end > size:
                break
            kind, flags = buffer[position + 3], buffer[position + 4]
            if kind <= _HEADERS:
                stream = int.from_bytes(buffer[position + 5 : position + 9], "big")
                if kind == _DATA:
                    body = self._bodies.get(stream)
                    piece = buffer[position + 9 : end]
                    self._bodies[stream] = piece if body is None else body + piece
                    self._credit += length
                if flags & _END_STREAM:
                    self._end(stream, buffer[position + 9 : end])
            else:
                self._control(kind, flags, buffer[position + 5 : end])
            position = end
        self._rest = buffer[position:]
        if self._credit > 1 << 29:
            self._out += frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._credit))
            self._credit = 0

    def _end(self, stream: int, trailers: bytes, reason: str = "") -> None:
        token = self._tokens.pop(stream, None)
        body = self._bodies.pop(stream, b"")
        self._waiting.pop(stream, None)
        self._stream_windows.pop(stream, None)
        if token is None:
            return
        # A gRPC error is trailers without a message.
        problem = "" if len(body) > 5 and not reason else reason or f"an error: {trailers[:300]!r}"
        self._ended.append(Ended(token, body, problem))

    def _control(self, kind: int, flags: int, rest: bytes) -> None:
        stream, payload = int.from_bytes(rest[:4], "big") & _HIGHEST_STREAM, rest[4:]
        if kind == _SETTINGS and not flags & _ACK:
            self._settled = True
            for key, value in struct.iter_unpack(">HI", payload):
                if key == 5:
                    self._frame_bytes = value
                elif key == 4:
                    for each in self._stream_windows:
                        self._stream_windows[each] += value - self._initial_window
                    self._initial_window = value
            self._out += frame(_SETTINGS, _ACK, 0)
        elif kind == _PING and not flags & _ACK:
            self._out += frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            increment = int.from_bytes(payload, "big")
            if stream == 0:
                self._window += increment
            elif stream in self._stream_windows:
                self._stream_windows[stream] += increment
        elif kind == _RST_STREAM:
            self._end(stream, b"", f"RST_STREAM {int.from_bytes(payload, 'big')}")
        elif kind == _GOAWAY:
            self.broken = self.broken or f"GOAWAY {payload[:64]!r}"
        if self._waiting:
            self._send_waiting()

    def close(self) -> None:
        self.socket.close()


class Links:
    """The connections of a generator, over its addresses in turn, and the wait for any of them."""

    def __init__(self, addresses: Sequence[str], count: int, messages: Sequence[Message]) -> None:
        self.epoll = select.epoll()
        self._links: dict[int, Link] = {}
        self._messages = messages
        self._writing: set[int] = set()
        for number in range(count):
            self._connect(addresses[number % len(addresses)])

    def _connect(self, address: str) -> Link:
        link = Link(address, self._messages)
        self._links[link.socket.fileno()] = link
        self.epoll.register(link.socket, select.EPOLLIN)
        return link

    def all(self) -> list[Link]:
        return list(self._links.values())

    def flush(self, link: Link) -> None:
        file = link.socket.fileno()
        if link.flush():
            if file in self._writing:
                self._writing.discard(file)
                self.epoll.modify(file, select.EPOLLIN)
        elif file not in self._writing:
            self._writing.add(file)
            self.epoll.modify(file, select.EPOLLIN | select.EPOLLOUT)

    def of(self, file: int) -> Link | None:
        return self._links.get(file)

    def replace(self, link: Link) -> Link:
        """A new connection in the place of a broken one."""
        file = link.socket.fileno()
        self.epoll.unregister(file)
        self._writing.discard(file)
        del self._links[file]
        link.close()
        return self._connect(link.address)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self.epoll.close()
