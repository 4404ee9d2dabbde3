"""Connections to one endpoint: reused, waited for, given up, and never handed to two requests at once."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from offline import Answer, OfflineLoop, offline, turns

from isochrone.errors import ConnectionLost
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.gateway.upstream.connections import Connections, Sent, Waiting
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http2.client import request_block

HEAD = b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
BLOCK = request_block(b"POST", b"http", b"x", b"/", ())


def make(**keywords: int) -> Connections:
    return Connections(Upstream("worker", 8000, 8001), WireLimits(), **keywords)  # type: ignore[arg-type]


def test_a_connection_is_used_again() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = make()
        for _ in range(3):
            answer = Answer()
            sent = connections.send(HEAD, (), answer)
            await turns()
            loop.transports[0].protocol.data_received(OK)
            assert (answer.status, answer.body, answer.is_complete) == (200, b"hi", True)
            connections.release(sent)
        assert len(loop.transports) == 1
        assert loop.transports[0].written == HEAD * 3
        assert connections.open == 1

    offline(run)


def test_who_waits_gets_the_next_one_that_is_free() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = make(max_connections=2)
        answers = [Answer() for _ in range(5)]
        sent = [connections.send(HEAD, (), answer) for answer in answers]
        await turns()
        assert len(loop.transports) == 2
        served: list[int] = []
        while len(served) < 5:
            for transport in loop.transports:
                transport.protocol.data_received(OK)
                (number,) = (n for n, answer in enumerate(answers) if answer.is_complete and n not in served)
                served.append(number)
                connections.release(sent[number])
                if len(served) == 5:
                    break
        assert served == [0, 1, 2, 3, 4]

    offline(run)


def test_a_cancelled_wait_takes_no_connection() -> None:
    async def run(loop: OfflineLoop) -> None:
        loop.gate = asyncio.Event()
        connections = make(max_connections=1)
        first, second = Answer(), Answer()
        waiting = connections.send(HEAD, (), first)
        connections.send(HEAD, (), second)
        assert isinstance(waiting, Waiting)
        waiting.cancel()
        loop.gate.set()
        await turns()
        assert loop.transports[0].written == HEAD
        loop.transports[0].protocol.data_received(OK)
        assert second.is_complete
        assert not first.is_complete
        assert first.error is None

    offline(run)


def test_nobody_answers_the_door() -> None:
    async def run(loop: OfflineLoop) -> None:
        loop.refuses = True
        connections = make()
        answers = [Answer() for _ in range(3)]
        for answer in answers:
            connections.send(HEAD, (), answer)
        grpc = Answer()
        connections.open_stream(BLOCK, (), grpc)
        await turns()
        for answer in (*answers, grpc):
            assert isinstance(answer.error, ConnectionLost)
            assert answer.error.unprocessed, "it may go elsewhere"
            assert "worker:800" in str(answer.error)
        loop.refuses = False
        again = Answer()
        connections.send(HEAD, (), again)
        await turns()
        loop.transports[0].protocol.data_received(OK)
        assert again.is_complete

    offline(run)


def test_too_many_may_not_wait() -> None:
    async def run(loop: OfflineLoop) -> None:
        loop.gate = asyncio.Event()
        connections = make(max_connections=1)
        answers = [Answer() for _ in range(4097)]
        for answer in answers:
            connections.send(HEAD, (), answer)
        await turns()
        assert [answer.error is not None for answer in answers] == [False] * 4096 + [True]
        connections.close()
        await turns()
        assert all(answer.error is not None for answer in answers)

    offline(run)


def test_a_removed_endpoint_takes_nothing_new() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = make()
        connections.close()
        answer = Answer()
        connections.send(HEAD, (), answer)
        await turns()
        assert answer.error is not None
        assert loop.transports == []

    offline(run)


def test_streams_share_a_connection() -> None:
    async def run(loop: OfflineLoop) -> None:
        connections = make()
        for _ in range(10):
            connections.open_stream(BLOCK, (b"body",), Answer())
        await turns()
        connections.open_stream(BLOCK, (), Answer())
        assert len(loop.transports) == 1
        assert connections.open == 1
        loop.transports[0].protocol.connection_lost(None)
        assert connections.open == 0

    offline(run)


@given(st.lists(st.sampled_from(("send", "answer", "cancel", "lose")), max_size=40))
def test_no_two_requests_ever_share_an_http1_connection(steps: list[str]) -> None:
    """Whatever happens: every answer goes to the request that was sent last on its connection."""

    async def run(loop: OfflineLoop) -> None:
        connections = make(max_connections=3)
        live: list[tuple[Sent, Answer]] = []
        for number, step in enumerate(steps):
            if step == "send":
                answer = Answer()
                live.append((connections.send(HEAD.replace(b"/ ", b"/%d " % number), (), answer), answer))
            elif step == "cancel" and live:
                live.pop(number % len(live))[0].cancel()
            elif live:
                sent, answer = live.pop(number % len(live))
                call = sent.launched if isinstance(sent, Waiting) else sent
                if call is None:
                    live.append((sent, answer))
                elif step == "answer":
                    call.connection.data_received(OK)  # type: ignore[attr-defined]
                    assert answer.is_complete
                    connections.release(sent)
                else:
                    call.connection.connection_lost(None)  # type: ignore[attr-defined]
                    assert answer.error is not None
            await turns()
            assert connections.open <= 3
            busy = [sent.launched if isinstance(sent, Waiting) else sent for sent, _ in live]
            held = [id(call.connection) for call in busy if call is not None]  # type: ignore[attr-defined]
            assert len(held) == len(set(held))

    offline(run)
