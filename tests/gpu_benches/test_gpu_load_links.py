"""The load generators' connections: what they send is what a server reads, whatever its windows and frames."""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.gpu.load.links import Link
from bench.realistic.messages import ID_DIGITS, Message
from bench.worker.conversations import frame

DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8
END_STREAM, END_HEADERS = 1, 4


class Server:
    """Answers each call with its own id, after its whole body has come."""

    def __init__(self, frame_bytes: int, window: int) -> None:
        self._frame_bytes, self._window = frame_bytes, window
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        #: Of each stream.
        self.bodies: dict[int, bytes] = {}
        self.largest_frame = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            settings = struct.pack(">HIHI", 4, self._window, 5, self._frame_bytes)
            connection.sendall(frame(SETTINGS, 0, 0, settings))
            connection.sendall(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._window)))
            buffer = b""
            parts: dict[int, bytes] = defaultdict(bytes)
            while piece := connection.recv(65_536):
                buffer += piece
                if buffer.startswith(b"PRI"):
                    if len(buffer) < 24:
                        continue
                    buffer = buffer[24:]
                while len(buffer) >= 9 and len(buffer) >= 9 + (size := int.from_bytes(buffer[:3], "big")):
                    kind, flags, stream = buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big")
                    payload, buffer = buffer[9 : 9 + size], buffer[9 + size :]
                    if kind != DATA:
                        continue
                    self.largest_frame = max(self.largest_frame, size)
                    parts[stream] += payload
                    for target in (0, stream):
                        connection.sendall(frame(WINDOW_UPDATE, 0, target, struct.pack(">I", size)))
                    if flags & END_STREAM:
                        self.bodies[stream] = parts.pop(stream)
                        connection.sendall(frame(DATA, 0, stream, b"12345answer"))
                        connection.sendall(frame(HEADERS, END_STREAM | END_HEADERS, stream, b"\x00"))

    def close(self) -> None:
        self._thread.join()
        self._listener.close()


@contextmanager
def connected(messages: list[Message], *, frame_bytes: int, window: int) -> Iterator[tuple[Server, Link]]:
    server = Server(frame_bytes, window)
    link = Link(server.address, messages)
    try:
        yield server, link
    finally:
        link.close()
        server.close()


def message_of(size: int, id_at: int) -> Message:
    body = bytearray(bytes(range(256)) * (size // 256 + 1))[:size]
    body[id_at : id_at + ID_DIGITS] = b"0" * ID_DIGITS
    return Message(bytes(body), id_at)


def ended(link: Link, count: int) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < count:
        wants = [] if link.flush() else [link.socket]
        select.select([link.socket], wants, [], 10)
        over = link.receive()
        while over:
            call = over.popleft()
            assert (call.body, call.problem) == (b"12345answer", "")
            tokens.append(call.token)
    return tokens


@pytest.mark.parametrize("window", [70_000, 1 << 22])
@pytest.mark.parametrize("id_at", [20, 32_768 - 5, 99_980])
def test_bodies_come_whole_and_with_their_ids(id_at: int, window: int) -> None:
    messages = [message_of(100_000, id_at), message_of(600, 20)]
    with connected(messages, frame_bytes=32_768, window=window) as (server, link):
        number = 0
        for together in (1, 1, 2, 7, 1):
            begun = number
            for _ in range(together):
                number += 1
                link.call(number % 2, number, token=number)
            assert sorted(ended(link, together)) == list(range(begun + 1, number + 1))
        assert not link.in_flight
        assert server.largest_frame == 32_768
        assert len(server.bodies) == number
        for position, body in enumerate(server.bodies[stream] for stream in sorted(server.bodies)):
            message = messages[(position + 1) % 2]
            expected = bytearray(message.data)
            expected[message.id_at : message.id_at + ID_DIGITS] = b"%012d" % (position + 1)
            assert body == expected
