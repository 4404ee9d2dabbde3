"""Compressed requests and answers: what is large is worked on beside the event loop, and nothing is done for nobody."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from isochrone.errors import IsochroneError, PayloadTooLarge, Unavailable, Unsupported
from isochrone.protocol import inflating as module
from isochrone.protocol.deflating import deflated
from isochrone.protocol.inflating import inflating, inflating_messages
from isochrone.wire.compression import AT_ONCE, LEAST, decompress
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers, Route

LIMIT = 1 << 26
GZIP = Head(b"POST", b"/", ((b"content-encoding", b"gzip"),))


class Answered(asyncio.Event):
    """An exchange: its body, who owns it, and the answer."""

    def __init__(self, body: bytes = b"") -> None:
        super().__init__()
        self.head = GZIP
        self.body: Buffer = body
        self.arrived = 0
        self.owner: Any = None
        self.on_writable: Callable[[], None] | None = None
        self.status = 0
        self.headers: Headers = ()
        self.answer = b""

    is_congested = False

    def respond(self, status: int, headers: Headers, body: Sequence[Buffer]) -> None:
        self.status, self.headers, self.answer = status, headers, b"".join(body)
        self.set()

    def start(self, status: int, headers: Headers) -> None:
        raise NotImplementedError

    def write(self, body: Sequence[Buffer]) -> None:
        raise NotImplementedError

    def end(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError


class Echo(Route):
    """Answers with the body, on the thread it is called on."""

    def handle(self, exchange: Exchange) -> None:
        assert threading.current_thread() is threading.main_thread()
        exchange.respond(200, (), [bytes(exchange.body)])


def fails(exchange: Any, error: IsochroneError) -> None:
    exchange.respond(error.http_status, (), [error.message.encode()])


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 30))  # type: ignore[arg-type]


def test_a_small_body_is_handed_on_at_once() -> None:
    exchange = Answered(gzip.compress(b"tensor" * 100))
    inflating(Echo(), GZIP, LIMIT).handle(exchange)
    assert exchange.answer == b"tensor" * 100


def test_the_loop_goes_on_while_a_large_body_is_decompressed() -> None:
    async def scenario() -> None:
        content = bytes(8 * AT_ONCE)
        exchanges = [Answered(gzip.compress(content)) for _ in range(5)]
        route = inflating(Echo(), GZIP, LIMIT)
        for exchange in exchanges:
            route.handle(exchange)
            # It has returned, and nothing of the work is done here.
            assert not exchange.is_set()
        for exchange in exchanges:
            await exchange.wait()
            assert (exchange.status, exchange.answer) == (200, content)

    run(scenario)


def test_a_message_of_grpc_gets_its_prefix_back() -> None:
    async def scenario() -> None:
        for size in (10, 8 * AT_ONCE):
            packed = gzip.compress(bytes(size))
            body = b"\1" + len(packed).to_bytes(4, "big") + packed
            exchange = Answered(body)
            inflating_messages(Echo(), b"gzip", LIMIT, fails).handle(exchange)
            await exchange.wait()
            assert exchange.answer == b"\0" + size.to_bytes(4, "big") + bytes(size)
        plain = Answered(b"\0\0\0\0\1x")
        inflating_messages(Echo(), b"gzip", LIMIT, fails).handle(plain)
        assert plain.answer == b"\0\0\0\0\1x"
        cut_off = Answered(b"\1\0\0\0\1xyz")
        inflating_messages(Echo(), b"gzip", LIMIT, fails).handle(cut_off)
        assert cut_off.answer == b"the gRPC message announces 1 bytes, given 3"

    run(scenario)


def test_what_is_wrong_is_answered_from_wherever_it_is_found() -> None:
    async def scenario() -> None:
        route = inflating(Echo(), GZIP, 1 << 20)
        for body, status in ((b"nonsense", 400), (gzip.compress(bytes(1 << 21)), PayloadTooLarge.http_status)):
            exchange = Answered(body)
            route.handle(exchange)
            await exchange.wait()
            assert exchange.status == status
        unknown = Answered(b"x")
        inflating(Echo(), Head(b"POST", b"/", ((b"content-encoding", b"br"),)), LIMIT).handle(unknown)
        assert unknown.status == Unsupported.http_status
        assert (b"accept-encoding", b"gzip, deflate") in unknown.headers

    run(scenario)


def test_identity_and_no_encoding_are_the_route_itself() -> None:
    route = Echo()
    assert inflating(route, Head(b"POST", b"/", ()), LIMIT) is route
    assert inflating(route, Head(b"POST", b"/", ((b"content-encoding", b"identity"),)), LIMIT) is route
    assert inflating_messages(route, b"identity", LIMIT, fails) is route


def test_a_caller_that_has_gone_is_not_served() -> None:
    async def scenario() -> None:
        gone, next_one = Answered(gzip.compress(bytes(8 * AT_ONCE))), Answered(gzip.compress(bytes(8 * AT_ONCE)))
        route = inflating(Echo(), GZIP, LIMIT)
        route.handle(gone)
        gone.owner.abandoned()
        route.handle(next_one)
        await next_one.wait()
        assert not gone.is_set()

    run(scenario)


def test_large_bodies_that_are_held_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeps(Route):
        def __init__(self) -> None:
            self.kept: list[Buffer] = []

        def handle(self, exchange: Exchange) -> None:
            self.kept.append(exchange.body)
            exchange.body = b""
            exchange.respond(200, (), [])

    async def scenario() -> None:
        monkeypatch.setattr(module, "_LARGEST_HELD", 0)
        keeps = Keeps()
        route = inflating(keeps, GZIP, LIMIT)
        packed = gzip.compress(bytes(8 * AT_ONCE))
        first = Answered(packed)
        route.handle(first)
        await first.wait()
        second = Answered(packed)
        route.handle(second)
        assert second.status == Unavailable.http_status
        # Small ones are not counted.
        small = Answered(gzip.compress(b"x"))
        route.handle(small)
        assert small.status == 200
        keeps.kept.clear()
        gc.collect()
        third = Answered(packed)
        route.handle(third)
        await third.wait()
        assert third.status == 200

    run(scenario)


# Answers.


@pytest.mark.parametrize("size", [LEAST // 2, LEAST + 100, 20 * LEAST])
def test_an_answer_is_compressed_where_it_pays(size: int) -> None:
    async def scenario() -> None:
        content = json.dumps([1.5] * size).encode()[:size]
        exchange = Answered()
        deflated(exchange, b"gzip", ((b"content-type", b"application/json"),), [content], lambda: ((b"x", b"y"),))
        # A large one is compressed elsewhere.
        assert exchange.is_set() == (size < 2 * LEAST)
        await exchange.wait()
        assert exchange.headers[-1] == (b"x", b"y")
        if size < LEAST:
            assert exchange.answer == content
            assert b"content-encoding" not in dict(exchange.headers)
        else:
            assert dict(exchange.headers)[b"content-encoding"] == b"gzip"
            assert decompress(b"gzip", exchange.answer, LIMIT) == content

    run(scenario)


def test_tensors_of_noise_are_sent_as_they_are() -> None:
    noise = random.Random(1).randbytes(20 * LEAST)
    exchange = Answered()
    deflated(exchange, b"gzip", (), [b'{"outputs": []}', noise], lambda: ())
    assert exchange.answer == b'{"outputs": []}' + noise
    assert exchange.headers == ()
