"""Compressed requests and answers: what is large is worked on beside the event loop, and nothing is done for nobody."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from isochrone.errors import IsochroneError, PayloadTooLarge, Unavailable, Unsupported
from isochrone.protocol.compression import inflating as module
from isochrone.protocol.compression.codec import ACCEPTED, INLINE_BYTES, MIN_COMPRESSED, decompress
from isochrone.protocol.compression.deflating import respond_compressed
from isochrone.protocol.compression.inflating import inflating_messages
from isochrone.protocol.rest.headers import inflating
from isochrone.wire.bodies.budget import SMALL, MemoryBudget, Share
from isochrone.wire.exchange import Buffer, Exchange, Head, Headers, Route

LIMIT = 1 << 26
GZIP = Head(b"POST", b"/", ((b"content-encoding", b"gzip"),))


class Answered(asyncio.Event):
    """An exchange: its body, who owns it, what it holds of a budget, and the answer."""

    def __init__(self, body: bytes = b"", budget: MemoryBudget | None = None) -> None:
        super().__init__()
        self.share = Share(budget or MemoryBudget(1 << 40))
        self.reserved = 0
        self.gave_back = asyncio.Event()
        self.head = GZIP
        self.body: Buffer = body
        self.arrived = 0
        self.owner: Any = None
        self.on_writable: Callable[[], None] | None = None
        self.status = 0
        self.headers: Headers = ()
        self.answer = b""

    is_congested = False

    def reserve(self, size: int) -> bool:
        if not self.share.reserve(size):
            return False
        self.reserved += size
        return True

    def give_back(self, size: int) -> None:
        self.reserved -= size
        self.share.give_back(size)
        self.gave_back.set()

    def no_memory(self) -> str:
        return "no memory"

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
    asyncio.run(asyncio.wait_for(scenario(), 100))  # type: ignore[arg-type]


def test_a_small_body_is_handed_on_at_once() -> None:
    exchange = Answered(gzip.compress(b"tensor" * 100))
    inflating(Echo(), GZIP, LIMIT).handle(exchange)
    assert exchange.answer == b"tensor" * 100


def test_a_call_without_a_body_is_handed_on_as_it_is() -> None:
    """Some clients announce an encoding with every call; an encoding that is not known is no matter then."""
    for encoding in (b"gzip", b"br"):
        exchange = Answered(b"")
        inflating(Echo(), Head(b"GET", b"/", ((b"content-encoding", encoding),)), LIMIT).handle(exchange)
        assert (exchange.status, exchange.answer) == (200, b"")


def test_the_loop_goes_on_while_a_large_body_is_decompressed() -> None:
    async def scenario() -> None:
        content = bytes(8 * INLINE_BYTES)
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
        for size in (10, 8 * INLINE_BYTES):
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
        assert (b"accept-encoding", ACCEPTED) in unknown.headers

    run(scenario)


def test_identity_and_no_encoding_are_the_route_itself() -> None:
    route = Echo()
    assert inflating(route, Head(b"POST", b"/", ()), LIMIT) is route
    assert inflating(route, Head(b"POST", b"/", ((b"content-encoding", b"identity"),)), LIMIT) is route
    assert inflating_messages(route, b"identity", LIMIT, fails) is route


def test_a_caller_that_has_gone_is_not_served() -> None:
    async def scenario() -> None:
        gone, next_one = (
            Answered(gzip.compress(bytes(8 * INLINE_BYTES))),
            Answered(gzip.compress(bytes(8 * INLINE_BYTES))),
        )
        route = inflating(Echo(), GZIP, LIMIT)
        route.handle(gone)
        gone.owner.abandoned()
        route.handle(next_one)
        await next_one.wait()
        assert not gone.is_set()

    run(scenario)


class Keeps(Route):
    """Answers later."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()

    def handle(self, exchange: Exchange) -> None:
        self.arrived.set()


def test_what_a_body_grows_to_is_held_until_its_request_is_answered() -> None:
    async def scenario() -> None:
        size = 2 * module._SLICE + 1000
        packed = gzip.compress(bytes(size))
        budget = MemoryBudget(1 << 30)
        for message in (False, True):
            body = b"\1" + len(packed).to_bytes(4, "big") + packed if message else packed
            exchange = Answered(body, budget)
            # As the wire reserves a compressed body that is large.
            assert exchange.reserve(len(body))
            keeps = Keeps()
            route = inflating_messages(keeps, b"gzip", LIMIT, fails) if message else inflating(keeps, GZIP, LIMIT)
            route.handle(exchange)
            assert budget.held == len(body) + module._SLICE
            await keeps.arrived.wait()
            assert abs(budget.held - size) <= 5
            exchange.share.close()

    run(scenario)


def test_a_body_that_grows_beyond_its_share_is_refused_and_nothing_stays_held() -> None:
    async def scenario() -> None:
        # Half of it is one connection's: two slices fit, a third does not.
        budget = MemoryBudget(5 * module._SLICE)
        route = inflating(Echo(), GZIP, LIMIT)
        for slices, status in ((2, 200), (3, Unavailable.http_status)):
            exchange = Answered(gzip.compress(bytes(slices * module._SLICE - 1000)), budget)
            route.handle(exchange)
            await exchange.wait()
            assert exchange.status == status
            exchange.give_back(exchange.reserved if status == 200 else 0)
            assert budget.held == 0
        assert b"no memory" in exchange.answer
        # Nothing is begun for one that finds no memory at all.
        other = Share(budget)
        other.add(5 * module._SLICE)
        late = Answered(gzip.compress(bytes(module._SLICE)), budget)
        route.handle(late)
        assert late.status == Unavailable.http_status
        # One that is inflated at once counts as a plain body of its size does.
        for size, status in ((SMALL + 1, Unavailable.http_status), (SMALL, 200)):
            small = Answered(gzip.compress(bytes(size)), budget)
            route.handle(small)
            assert small.status == status

    run(scenario)


def test_a_caller_that_goes_while_its_body_grows_leaves_nothing_held() -> None:
    async def scenario() -> None:
        budget = MemoryBudget(1 << 30)
        gone = Answered(gzip.compress(bytes(3 * module._SLICE)), budget)
        inflating(Echo(), GZIP, LIMIT).handle(gone)
        gone.owner.abandoned()
        await gone.gave_back.wait()
        assert budget.held == 0
        assert not gone.is_set()

    run(scenario)


# Answers.


@pytest.mark.parametrize("size", [MIN_COMPRESSED // 2, MIN_COMPRESSED + 100, 20 * MIN_COMPRESSED])
def test_an_answer_is_compressed_where_it_pays(size: int) -> None:
    async def scenario() -> None:
        content = json.dumps([1.5] * size).encode()[:size]
        exchange = Answered()
        respond_compressed(
            exchange, b"gzip", ((b"content-type", b"application/json"),), [content], lambda: ((b"x", b"y"),)
        )
        # A large one is compressed elsewhere.
        assert exchange.is_set() == (size < 2 * MIN_COMPRESSED)
        await exchange.wait()
        assert exchange.headers[-1] == (b"x", b"y")
        if size < MIN_COMPRESSED:
            assert exchange.answer == content
            assert b"content-encoding" not in dict(exchange.headers)
        else:
            assert dict(exchange.headers)[b"content-encoding"] == b"gzip"
            assert decompress(b"gzip", exchange.answer, LIMIT) == content

    run(scenario)


def test_tensors_of_noise_are_sent_as_they_are() -> None:
    noise = random.Random(1).randbytes(20 * MIN_COMPRESSED)
    exchange = Answered()
    respond_compressed(exchange, b"gzip", (), [b'{"outputs": []}', noise], lambda: ())
    assert exchange.answer == b'{"outputs": []}' + noise
    assert exchange.headers == ()
