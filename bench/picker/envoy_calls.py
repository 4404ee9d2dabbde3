"""Calls to a picker as Envoy makes them, over our own HTTP/2 client: request headers, decision, response headers, end.

A closed loop keeps a number of calls in flight. An open loop starts calls at a fixed rate, whatever becomes of earlier
ones, and counts from when each was due: a picker that is late is late for all that wait. Its generator
spins, on a core of its own: one that slept between calls would send them in bursts after they were due, and count its
own delay as the picker's.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count

from isochrone.errors import IsochroneError
from isochrone.gateway.picker.replies import field as proto_field
from isochrone.protocol.grpc.calls import frame_message
from isochrone.wire.connect import connect_http2
from isochrone.wire.exchange import Buffer, Headers
from isochrone.wire.http2.client import ClientStream, Http2ClientConnection, request_block
from isochrone.wire.receiver import Receiver

_PATH = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process"
_FIELDS: Headers = ((b"te", b"trailers"), (b"content-type", b"application/grpc"))
_BLOCK = request_block(b"POST", b"http", b"picker", _PATH, _FIELDS)
_DESTINATION = b"x-gateway-destination-endpoint"


def _headers(number: int, pairs: Headers) -> bytes:
    """A ProcessingRequest with request headers (2) or response headers (3)."""
    values = b"".join(proto_field(1, proto_field(1, name) + proto_field(3, value)) for name, value in pairs)
    return proto_field(number, proto_field(1, values))


class Messages:
    """What Envoy says of each request: fifteen headers, of which the request id is another one each time."""

    def __init__(self, model: str, timeout_ms: float) -> None:
        self._numbers = count()
        self._mark = b"0" * 36
        pairs: Headers = (
            (b":authority", b"inference.example.com"),
            (b":path", f"/v2/models/{model}/infer".encode()),
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b"user-agent", b"tritonclient/2.51"),
            (b"accept", b"*/*"),
            (b"accept-encoding", b"identity"),
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"452"),
            (b"inference-header-content-length", b"196"),
            (b"x-agent-id", b"robot-0017"),
            (b"x-forwarded-proto", b"http"),
            (b"x-envoy-expected-rq-timeout-ms", b"15000"),
            (b"x-request-id", self._mark),
        )
        if timeout_ms:
            pairs = (*pairs, (b"x-request-timeout-ms", b"%g" % timeout_ms))
        config = proto_field(11, b"")
        self._before, self._after = frame_message(_headers(2, pairs) + config).split(self._mark)
        self.response = frame_message(
            _headers(3, ((b":status", b"200"), (b"content-type", b"application/octet-stream"), (b"server", b"envoy")))
        )

    def next(self) -> bytes:
        return b"%b%036d%b" % (self._before, next(self._numbers), self._after)


@dataclass
class Taken:
    """What the calls of one run took."""

    decisions_ns: list[int] = field(default_factory=list)
    ended: int = 0
    #: What went wrong, and how often.
    failures: Counter[str] = field(default_factory=Counter)


class Call(Receiver):
    """One request of a client of Envoy's."""

    def __init__(self, load: "Load", connection: Http2ClientConnection, due_ns: int) -> None:
        self._load = load
        self._connection = connection
        self._due_ns = due_ns
        self._is_decided = False
        self._stream: ClientStream = connection.open(_BLOCK, [load.messages.next()], self, end=False)

    def head(self, status: int, headers: Headers) -> None: ...

    def data(self, data: Buffer) -> None:
        if not self._is_decided:
            self._is_decided = True
            taken = self._load.taken
            taken.decisions_ns.append(time.monotonic_ns() - self._due_ns)
            if _DESTINATION not in bytes(data):
                taken.failures[f"no destination: {bytes(data)[:200]!r}"] += 1
            self._stream.send_data(self._load.messages.response)

    def complete(self, trailers: Headers) -> None:
        if (b"grpc-status", b"0") not in trailers:
            self._load.taken.failures[f"trailers {trailers!r}"] += 1
        self._load.ended(self._connection)

    def failed(self, error: IsochroneError) -> None:
        self._load.taken.failures[str(error)] += 1
        self._load.ended(self._connection)


class Load:
    """Connections of one Envoy, and the calls on them."""

    def __init__(self, port: int, connections: int, messages: Messages) -> None:
        self.messages = messages
        self.taken = Taken()
        self._port = port
        self._count = connections
        self._connections: list[Http2ClientConnection] = []
        self._repeats = False
        self._open = 0

    async def connect(self) -> None:
        self._connections = [await connect_http2("127.0.0.1", self._port) for _ in range(self._count)]

    def ended(self, connection: Http2ClientConnection) -> None:
        self.taken.ended += 1
        self._open -= 1
        if self._repeats:
            self._start(connection, time.monotonic_ns())

    def _start(self, connection: Http2ClientConnection, due_ns: int) -> None:
        self._open += 1
        Call(self, connection, due_ns)

    async def closed(self, in_flight: int, seconds: float) -> Taken:
        """Keep so many calls in flight."""
        self.taken = Taken()
        self._repeats = True
        for number in range(in_flight):
            self._start(self._connections[number % self._count], time.monotonic_ns())
        await asyncio.sleep(seconds)
        taken, self._repeats = self.taken, False
        await self._settle()
        return taken

    async def at_rate(self, rate: float, seconds: float) -> Taken:
        """Start calls when they are due. Spins: a core is in use all the while."""
        self.taken = Taken()
        began, started = time.monotonic_ns(), 0
        total = int(rate * seconds)
        while started < total:
            now = time.monotonic_ns()
            due = min(total, int((now - began) * rate / 1e9) + 1)
            for number in range(started, due):
                self._start(self._connections[number % self._count], began + int(number * 1e9 / rate))
            started = due
            await asyncio.sleep(0)
        await self._settle()
        return self.taken

    async def _settle(self) -> None:
        ends = time.monotonic() + 10
        while self._open and time.monotonic() < ends:  # noqa: ASYNC110 (a bench: it waits for calls, not for an event)
            await asyncio.sleep(0.01)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
