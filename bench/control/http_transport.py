"""HTTP/1.1 over kept-alive connections, by hand on asyncio protocols: a request costs tens of microseconds.

One request at a time per connection; when none is free, one more is opened. A connection that ends under a request is
an explicit error of that request. Must never send a request twice.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

from bench.control.flights import CONNECTION, Crew, Flight, Transport
from isochrone.gateway.traffic.affinity import AGENT_HEADER

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_CONNECT_SECONDS = 10.0


class _Output(msgspec.Struct):
    name: str
    data: list[float] = []


class _Body(msgspec.Struct):
    model_version: str = ""
    outputs: list[_Output] = []


_decode = msgspec.json.Decoder(_Body).decode


def request_bytes(flight: Flight) -> bytes:
    """The whole request."""
    body = b'{"inputs":[{"name":"X","shape":[1,1],"datatype":"FP32","data":[%d]}]}' % int(flight.value)
    agent = f"{AGENT_HEADER}: {flight.agent}\r\n" if flight.agent else ""
    return b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\n%b%b%d\r\n\r\n%b" % (
        flight.model.encode(),
        flight.gateway.encode(),
        agent.encode(),
        b"Content-Length: ",
        len(body),
        body,
    )


class _Connection(asyncio.Protocol):
    def __init__(self, owner: HttpTransport, gateway: str) -> None:
        self._owner = owner
        self.gateway = gateway
        self.flight: Flight | None = None
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._expected = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but name.
        self._transport = cast(asyncio.Transport, transport)

    def send(self, flight: Flight) -> None:
        assert self._transport is not None
        self.flight = flight
        self._transport.write(request_bytes(flight))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._expected:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._received, 0, end)
            self._expected = end + 4 + (int(length[1]) if length else 0)
        if len(self._received) < self._expected:
            return
        whole, self._received, self._expected = self._received[: self._expected], b"", 0
        flight, self.flight = self.flight, None
        head, _, body = whole.partition(b"\r\n\r\n")
        if flight is None:
            self.abort()  # no request is waiting
            return
        if _CLOSES.search(head):
            self.abort()
        else:
            self._owner.is_free(self)
        self._owner.read(flight, int(head[9:12]), body)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        flight, self.flight = self.flight, None
        self._owner.is_gone(self)
        if flight is not None:
            self._owner.fail(flight, f"{CONNECTION}: {error or 'closed before the answer'}")


class HttpTransport(Transport):
    """Connections to several gateways."""

    def __init__(self, crew: Crew, landed: Callable[[Flight, str], None], gateways: list[str], ready: int) -> None:
        self._crew = crew
        self._landed = landed
        self._ready = ready
        self._free: dict[str, deque[_Connection]] = {gateway: deque() for gateway in gateways}
        self._all: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        gateways = [gateway for gateway in self._free for _ in range(self._ready)]
        opened = await asyncio.gather(*map(self._connect, gateways), return_exceptions=True)
        for connection in opened:
            if isinstance(connection, _Connection):
                self.is_free(connection)

    def send(self, flight: Flight) -> None:
        free = self._free[flight.gateway]
        if free:
            free.pop().send(flight)
            return
        task = asyncio.get_running_loop().create_task(self._send_on_a_new_one(flight))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def give_up(self, flight: Flight) -> None:
        for connection in [each for each in self._all if each.flight is flight]:
            connection.flight = None
            connection.abort()

    async def close(self) -> None:
        for task in list(self._opening):
            task.cancel()
        for connection in list(self._all):
            connection.abort()
        await asyncio.sleep(0)

    def is_free(self, connection: _Connection) -> None:
        self._free[connection.gateway].append(connection)

    def is_gone(self, connection: _Connection) -> None:
        self._all.discard(connection)
        free = self._free[connection.gateway]
        if connection in free:
            free.remove(connection)

    def read(self, flight: Flight, status: int, body: bytes) -> None:
        if status != 200:
            self.fail(flight, f"{status} {body[:300].decode(errors='replace')}")
            return
        try:
            answer = _decode(body)
        except msgspec.DecodeError as error:
            self.fail(flight, f"an answer that is no answer: {error}")
            return
        outputs = {output.name: output.data[0] for output in answer.outputs if output.data}
        self._crew.answered(flight, answer.model_version, outputs)
        self._landed(flight, "")

    def fail(self, flight: Flight, error: str) -> None:
        self._crew.failed(flight, error)
        self._landed(flight, error)

    async def _send_on_a_new_one(self, flight: Flight) -> None:
        try:
            connection = await self._connect(flight.gateway)
        except (OSError, TimeoutError) as error:
            self.fail(flight, f"{CONNECTION}: {error or 'not made in time'}")
            return
        if flight.is_over:
            self.is_free(connection)
        else:
            connection.send(flight)

    async def _connect(self, gateway: str) -> _Connection:
        host, _, port = gateway.rpartition(":")
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, connection = await loop.create_connection(lambda: _Connection(self, gateway), host, int(port))
        self._all.add(connection)
        return connection
