"""ModelStreamInfer and the process's memory budget: what a stream has received and not answered is held, then free."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import numpy as np
from test_http2_strictness import FIELDS, headers, parse
from tritonclient.grpc import service_pb2
from wire_fakes import ServerEnd

from isochrone.protocol.grpc import CallHead
from isochrone.protocol.grpc_stream import StreamInferRoute
from isochrone.settings import WireLimits
from isochrone.wire import frames
from isochrone.wire.budget import SMALL, Share
from isochrone.wire.exchange import Consumer, Exchange, Route
from isochrone.wire.frames import DATA, frame, settings_frame
from isochrone.wire.http2_server import Http2ServerConnection

LIMITS = WireLimits(max_body_bytes=10_000_000, max_buffered_bytes=40_000_000)


class Service:
    """Takes requests; the test answers them."""

    shared_memory = None

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.came = asyncio.Event()

    def infer(self, request: Any) -> None:
        self.requests.append(request)
        self.came.set()

    def is_decoupled(self, name: str, version: str) -> bool:
        return False


class Streams(Route):
    """Every request is a ModelStreamInfer call."""

    streaming = True

    def __init__(self) -> None:
        self.service: Any = Service()
        self.max_body_bytes = LIMITS.max_body_bytes

    def open(self, exchange: Exchange) -> Consumer:
        return StreamInferRoute(self, CallHead(exchange.head)).open(exchange)  # type: ignore[arg-type]


class Call:
    """One stream of one connection."""

    def __init__(self, encoding: bytes = b"identity") -> None:
        self.route = Streams()
        self.end = ServerEnd(Http2ServerConnection, None, LIMITS, self.route)
        self.end.feed(frames.PREFACE + settings_frame({}))
        self.end.feed(headers(1, [*FIELDS, (b"grpc-encoding", encoding)]))

    @property
    def held(self) -> int:
        return self.end.listener.budget.held

    @property
    def requests(self) -> list[Any]:
        return self.route.service.requests

    def send(self, message: bytes, flag: int = 0) -> bytes:
        """As a client does: in frames of 16 KiB."""
        body = bytes((flag,)) + len(message).to_bytes(4, "big") + message
        parts = [frame(DATA, 0, 1, body[at : at + 16_384]) for at in range(0, len(body), 16_384)]
        return b"".join(self.end.feed(part) for part in parts)

    def reset(self) -> None:
        self.end.feed(frames.rst_stream(1, frames.CANCEL))


def message(size: int) -> bytes:
    request = service_pb2.ModelInferRequest(model_name="m", raw_input_contents=[bytes(size)])
    request.inputs.add(name="IN", datatype="UINT8", shape=[size])
    return bytes(request.SerializeToString())


class Served:
    model_version = "1"


def answer(request: Any) -> None:
    request.served_by = Served
    request.complete({"OUT": np.zeros(1, np.uint8)})


def test_requests_are_held_until_they_are_answered() -> None:
    call = Call()
    for index in range(1, 4):
        call.send(message(1_000_000))
        assert index * 1_000_000 <= call.held <= index * 1_001_000
    for request in call.requests:
        answer(request)
    assert call.held == 0
    call.send(message(1_000_000))
    call.reset()
    assert call.held == 0


def test_bytes_behind_what_is_in_progress_are_held() -> None:
    call = Call()
    for _ in range(10):
        call.send(message(1_000_000))
    # Nine of them are as much as a stream has in progress; the tenth waits as bytes.
    assert len(call.requests) == 9
    assert call.held >= 10_000_000
    for request in call.requests:
        answer(request)
    assert len(call.requests) == 10
    assert call.held == 0


def test_many_small_requests_are_held_together_and_one_costs_nothing() -> None:
    call = Call()
    call.send(message(1_000))
    assert call.held == 0
    for _ in range(99):
        call.send(message(1_000))
    assert 100_000 - SMALL <= call.held <= 105_000
    for request in call.requests:
        answer(request)
    assert call.held == 0


def test_a_stream_beyond_its_share_ends_with_a_status() -> None:
    call = Call()
    Share(call.end.listener.budget).add(39_000_000)
    sent = call.send(message(600_000))
    assert b"max_buffered_bytes" in b"".join(payload for *_, payload in parse(sent))
    assert call.requests == []
    assert call.end.connection.share.held == 0


def test_compressed_requests_are_held_by_what_they_grow_to() -> None:
    async def scenario() -> None:
        call = Call(b"gzip")
        for size in (100, 50_000, 6_000_000):
            call.send(gzip.compress(message(size)), 1)
            await call.route.service.came.wait()
            call.route.service.came.clear()
            assert max(0, size - SMALL) <= call.held <= size + 2 * SMALL
            answer(call.requests.pop())
            assert call.held == 0
        # One that is too large for its share is answered with an error; the stream goes on.
        Share(call.end.listener.budget).add(35_000_000)
        assert b"max_buffered_bytes" in call.send(gzip.compress(message(6_000_000)), 1)
        assert call.held == 35_000_000

    asyncio.run(asyncio.wait_for(scenario(), 30))
