"""ModelStreamInfer and the process's memory budget: what a stream has received and not answered is held, then free."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import numpy as np
import pytest
from http2_frames import FIELDS, headers, parse
from tritonclient.grpc import service_pb2
from wire_fakes import ServerEnd

from isochrone.protocol.grpc.calls import OK_TRAILERS, CallHead
from isochrone.protocol.grpc.decoder import InferDecoder
from isochrone.protocol.grpc.stream import StreamInferRoute
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import SMALL, Share
from isochrone.wire.exchange import Consumer, Exchange, Route
from isochrone.wire.http2 import frames
from isochrone.wire.http2.frames import DATA, HEADERS, frame, settings_frame, window_update
from isochrone.wire.http2.server import Http2ServerConnection

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
        self.decoder = InferDecoder(self.service)

    def open(self, exchange: Exchange) -> Consumer:
        return StreamInferRoute(self.service, LIMITS.max_body_bytes, self.decoder, CallHead(exchange.head)).open(
            exchange
        )


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


def framed(payload: bytes) -> bytes:
    return b"\0" + len(payload).to_bytes(4, "big") + payload


class Served:
    model_version = "1"
    fixed_size = True


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


def errors(sent: bytes) -> list[str]:
    """The errors of responses on the stream."""
    body = b"".join(payload for kind, _, _, payload in parse(sent) if kind == DATA)
    found = []
    while body:
        end = 5 + int.from_bytes(body[1:5], "big")
        found.append(service_pb2.ModelStreamInferResponse.FromString(body[5:end]).error_message)
        body = body[end:]
    return found


def trailers(sent: bytes) -> list[bytes]:
    return [payload for kind, flags, _, payload in parse(sent) if kind == HEADERS and flags & frames.END_STREAM]


def test_a_request_beyond_the_share_gets_an_error_and_the_stream_goes_on() -> None:
    call = Call()
    call.send(message(1_000_000))
    others = Share(call.end.listener.budget)
    others.add(37_500_000)
    assert call.send(message(1_000_000)) == b""
    call.send(message(100))
    # The small one fits.
    assert [request.cancelled for request in call.requests] == [False, False]
    others.close()
    call.send(message(1_000_000))
    assert len(call.requests) == 3
    for request in call.requests:
        request.served_by = Served
        request.complete({"OUT": np.zeros(1, np.uint8)})
    sent = call.end.turn()
    assert ["max_buffered_bytes" in error for error in errors(sent)] == [False, True, False, False]
    assert call.held == 0
    assert trailers(call.end.feed(frame(DATA, frames.END_STREAM, 1, b""))) == [OK_TRAILERS]


def test_small_requests_there_is_no_memory_for_get_an_error_each_in_their_order() -> None:
    call = Call()
    others = Share(call.end.listener.budget)
    others.add(40_000_000)
    sent = b"".join(call.send(message(1_000)) for _ in range(20))
    taken = len(call.requests)
    assert 14 <= taken <= 16  # up to 16 KiB cost nothing
    assert (errors(sent), call.end.connection.share.held) == ([], 0)
    others.close()
    call.send(message(1_000))
    for request in call.requests:
        request.served_by = Served
        request.complete({"OUT": np.zeros(1, np.uint8)})
    sent = call.end.turn()
    assert ["max_buffered_bytes" in error for error in errors(sent)] == [False] * taken + [True] * (20 - taken) + [
        False
    ]
    assert call.held == 0


def test_requests_behind_a_full_stream_are_dropped_while_there_is_no_memory_and_refused_in_their_order() -> None:
    call = Call()
    others = Share(call.end.listener.budget)
    for _ in range(260):
        call.send(message(10))
    assert len(call.requests) == 256
    others.add(call.end.listener.budget.free)
    for _ in range(1000):
        call.send(message(100))
    held = call.held - others.held
    assert held < 40_000
    # Some of those behind wait as bytes, the others as a number.
    assert len(call.requests) == 256
    others.close()
    call.send(message(10))
    sent = b""
    answered = 0
    while answered < len(call.requests):
        answer(call.requests[answered])
        answered += 1
        sent += call.end.turn()
        sent += call.end.feed(window_update(0, 1 << 20) + window_update(1, 1 << 20))
    found = errors(sent)
    assert len(found) == 260 + 1000 + 1
    refused = ["max_buffered_bytes" in error for error in found]
    assert refused.count(False) == answered
    # One run: whatever comes behind a dropped one is dropped until its turn has come.
    assert "".join("x" if one else "." for one in refused).strip(".").strip("x") == ""
    assert call.held == 0


def test_a_half_closed_stream_whose_answers_are_not_read_yet_is_not_malformed() -> None:
    call = Call()
    call.send(message(100))
    others = Share(call.end.listener.budget)
    others.add(39_000_000)
    first = call.requests[0]
    first.served_by = Served
    # Its windows (64 KiB) are shut.
    first.complete({"OUT": np.zeros(3_000_000, np.uint8)})
    call.send(message(100))
    call.end.feed(frame(DATA, frames.END_STREAM, 1, b""))
    assert len(call.requests) == 1
    sent = call.end.feed(window_update(0, 1 << 24) + window_update(1, 1 << 24))
    assert trailers(sent) == []
    assert len(call.requests) == 2
    answer(call.requests[1])
    assert trailers(call.end.turn()) == [OK_TRAILERS]


@pytest.mark.parametrize(
    ("last", "is_whole"),
    [(framed(message(100))[:-1], False), (framed(b"\xff"), True)],
    ids=["cut off", "unreadable"],
)
def test_a_half_closed_stream_ends_when_its_answers_are_read(last: bytes, is_whole: bool) -> None:
    call = Call()
    call.send(message(100))
    Share(call.end.listener.budget).add(39_000_000)
    first = call.requests[0]
    first.served_by = Served
    first.complete({"OUT": np.zeros(3_000_000, np.uint8)})
    assert trailers(call.end.feed(frame(DATA, frames.END_STREAM, 1, last))) == []
    [block] = trailers(call.end.feed(window_update(0, 1 << 24) + window_update(1, 1 << 24)))
    assert (block == OK_TRAILERS) == is_whole
    assert (b"the stream ends inside a message" in block) != is_whole


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

    asyncio.run(asyncio.wait_for(scenario(), 100))
