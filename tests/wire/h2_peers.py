"""The ``h2`` package as the other end of a connection: plays a client or a server frame by frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings

Fields = list[tuple[bytes, bytes]]


@dataclass
class Message:
    """What one stream carries in one direction."""

    fields: Fields
    body: bytes = b""
    trailers: Fields = field(default_factory=list)
    padding: int | None = None
    priority: bool = False
    #: Reset after this many bytes of the body; None: never.
    reset_after: int | None = None


class Sending:
    """One message on its way through ``h2``: each ``step`` sends one frame if the windows allow."""

    def __init__(self, connection: Any, stream_id: int, message: Message, *, is_request: bool) -> None:
        self.connection, self.stream_id, self.message = connection, stream_id, message
        self.sent = 0
        self.done = False
        self._headers_sent = False
        self._is_request = is_request

    def step(self, size: int) -> bool:
        """Whether anything was sent."""
        connection, message = self.connection, self.message
        if self.done:
            return False
        if not self._headers_sent:
            self._headers_sent = True
            priority = {"priority_weight": 10, "priority_depends_on": 0} if message.priority else {}
            self.done = not message.body and not message.trailers and message.reset_after is None
            connection.send_headers(self.stream_id, message.fields, end_stream=self.done, **priority)
            return True
        if message.reset_after is not None and self.sent >= message.reset_after:
            connection.reset_stream(self.stream_id, 8)
            self.done = True
            return True
        if self.sent < len(message.body):
            overhead = 0 if message.padding is None else message.padding + 1
            room = min(connection.local_flow_control_window(self.stream_id), connection.max_outbound_frame_size)
            size = min(size, room - overhead, len(message.body) - self.sent)
            if size <= 0:
                return False
            piece = message.body[self.sent : self.sent + size]
            self.sent += size
            last = self.sent == len(message.body) and not message.trailers and message.reset_after is None
            connection.send_data(self.stream_id, piece, end_stream=last, pad_length=message.padding)
            self.done = last
            return True
        if message.trailers:
            connection.send_headers(self.stream_id, message.trailers, end_stream=True)
            self.done = True
            return True
        if message.reset_after is not None:
            connection.reset_stream(self.stream_id, 8)
        else:
            connection.end_stream(self.stream_id)
        self.done = True
        return True


class H2Peer:
    """Gathers what comes, gives windows back, and records how streams ended."""

    def __init__(self, *, client: bool, settings: dict[int, int] | None = None) -> None:
        config = h2.config.H2Configuration(client_side=client, header_encoding=None)
        self.connection: Any = h2.connection.H2Connection(config)
        self.connection.initiate_connection()
        if settings:
            self.connection.update_settings({h2.settings.SettingCodes(key): value for key, value in settings.items()})
        self.heads: dict[int, Fields] = {}
        self.bodies: dict[int, bytearray] = {}
        self.trailers: dict[int, Fields] = {}
        self.ended: set[int] = set()
        self.resets: dict[int, int] = {}
        self.terminated: tuple[int, int] | None = None
        self.events: list[Any] = []

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self.events.append(event)
            match event:
                case h2.events.ResponseReceived() | h2.events.RequestReceived():
                    self.heads[event.stream_id] = list(event.headers)
                    self.bodies[event.stream_id] = bytearray()
                case h2.events.DataReceived():
                    self.bodies[event.stream_id] += event.data
                    self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                case h2.events.TrailersReceived():
                    self.trailers[event.stream_id] = list(event.headers)
                case h2.events.StreamEnded():
                    self.ended.add(event.stream_id)
                case h2.events.StreamReset():
                    self.resets[event.stream_id] = int(event.error_code)
                case h2.events.ConnectionTerminated():
                    self.terminated = (int(event.error_code), event.last_stream_id)
                case _:
                    pass

    def take(self) -> bytes:
        return bytes(self.connection.data_to_send())


def feed_pieces(receive: Any, data: bytes, sizes: list[int]) -> None:
    """Hands ``data`` over in pieces of these sizes, again and again."""
    position = turn = 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        receive(data[position : position + size])
        position += size
        turn += 1
