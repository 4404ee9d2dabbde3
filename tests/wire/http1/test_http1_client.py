"""HTTP/1.1, client side: answers in order whatever their framing and split, endings, and what a lost one is told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_fakes import FakeTransport, RecordingReceiver, ServerEnd

from isochrone.errors import ConnectionLost, DeadlineExceeded, PayloadTooLarge
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.direct_receiver import LARGE_BODY
from isochrone.wire.http1.client import Http1ClientConnection, request_head
from isochrone.wire.http1.server import Http1Connection
from isochrone.wire.receiver import Response

GET = request_head(b"GET", b"/", ((b"host", b"a"),), 0)
HEAD = request_head(b"HEAD", b"/", ((b"host", b"a"),), 0)


class ClientEnd:
    def __init__(self, limits: WireLimits | None = None) -> None:
        self.connection = Http1ClientConnection(limits)
        self.transport = FakeTransport(self.connection)

    def ask(self, head: bytes = GET, body: list[bytes] | None = None) -> RecordingReceiver:
        receiver = RecordingReceiver()
        self.connection.send(head, body or [], receiver)
        return receiver


def answer(body: bytes, framing: str) -> bytes:
    if framing == "length":
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    if framing == "empty":
        return b"HTTP/1.1 204 No Content\r\n\r\n"
    half = len(body) // 2
    chunks = [chunk for chunk in (body[:half], body[half:]) if chunk]
    return b"".join(
        [
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            *(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks),
            b"0\r\n\r\n",
        ]
    )


@given(
    answers=st.lists(
        st.tuples(st.binary(max_size=40), st.sampled_from(["length", "chunked", "empty"])), min_size=1, max_size=5
    ),
    cuts=st.lists(st.integers(0, 800), max_size=10),
)
def test_any_split_gives_the_same_answers_in_order(answers: list[tuple[bytes, str]], cuts: list[int]) -> None:
    end = ClientEnd()
    receivers = [end.ask() for _ in answers]
    end.transport.feed_in_pieces(b"".join(answer(body, framing) for body, framing in answers), cuts)
    for receiver, (body, framing) in zip(receivers, answers, strict=True):
        assert receiver.is_complete
        assert receiver.body == (b"" if framing == "empty" else body)
        assert receiver.status == (204 if framing == "empty" else 200)
    assert end.connection.is_reusable


def test_a_request_goes_out_whole() -> None:
    end = ClientEnd()
    end.ask(request_head(b"POST", b"/v2", ((b"host", b"a"), (b"x", b"1")), 6), [b"abc", b"def"])
    assert end.transport.take() == b"POST /v2 HTTP/1.1\r\nhost: a\r\nx: 1\r\ncontent-length: 6\r\n\r\nabcdef"
    assert end.transport.writes == 1
    end.ask(request_head(b"POST", b"/", (), 100_000), [bytes(100_000)])
    assert end.transport.take().endswith(bytes(100_000))


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 3 * LARGE_BODY), max_size=4))
def test_a_large_body_arrives_in_one_piece_of_its_own(cuts: list[int]) -> None:
    end = ClientEnd()
    first, second = end.ask(), end.ask()
    body = bytes(range(256)) * (2 * LARGE_BODY // 256)
    end.transport.feed_in_pieces(answer(body, "length") + answer(b"next", "length"), [50, *cuts])
    assert first.pieces == [body]
    assert second.body == b"next"
    assert end.transport.buffered_protocols == 1
    assert end.transport.protocol is end.connection.receiver


def test_head_has_no_body_whatever_it_announces() -> None:
    end = ClientEnd()
    first, second = end.ask(HEAD), end.ask()
    end.transport.feed(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n" + answer(b"next", "length"))
    assert first.calls == ["head", "complete"]
    assert second.body == b"next"


@pytest.mark.parametrize("status", [204, 304])
def test_statuses_without_a_body(status: int) -> None:
    end = ClientEnd()
    first, second = end.ask(), end.ask()
    end.transport.feed(b"HTTP/1.1 %d X\r\ncontent-length: 5\r\n\r\n" % status + answer(b"next", "length"))
    assert first.calls == ["head", "complete"]
    assert second.body == b"next"


def test_a_body_may_end_with_its_connection() -> None:
    end = ClientEnd()
    first = end.ask()
    end.transport.feed(b"HTTP/1.1 200 OK\r\n\r\nall of")
    end.transport.feed(b" it")
    assert not first.is_complete
    end.connection.connection_lost(None)
    assert first.is_complete
    assert first.body == b"all of it"


def test_a_broken_connection_does_not_complete_such_a_body() -> None:
    end = ClientEnd()
    first = end.ask()
    end.transport.feed(b"HTTP/1.1 200 OK\r\n\r\nall of")
    end.connection.connection_lost(ConnectionResetError("reset"))
    assert isinstance(first.error, ConnectionLost)
    assert "reset" in str(first.error)


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nconnection: close\r\n", b"HTTP/1.0 200 OK\r\n"])
def test_requests_behind_a_closing_answer_are_told_they_were_not_processed(head: bytes) -> None:
    end = ClientEnd()
    first, second = end.ask(), end.ask()
    end.transport.feed(head + b"content-length: 2\r\n\r\nok")
    assert first.body == b"ok"
    assert isinstance(second.error, ConnectionLost)
    assert second.error.unprocessed
    assert not end.connection.is_reusable
    assert end.transport.closing
    late = end.ask()
    assert isinstance(late.error, ConnectionLost)
    assert late.error.unprocessed


def test_a_lost_connection_fails_what_was_asked_and_says_so_to_its_owner() -> None:
    end = ClientEnd()
    told: list[str] = []
    end.connection.on_closed = lambda: told.append("closed")
    receivers = [end.ask(), end.ask()]
    end.transport.feed(answer(b"whole", "length")[:-2])
    end.connection.connection_lost(None)
    for receiver in receivers:
        assert isinstance(receiver.error, ConnectionLost)
        assert not receiver.error.unprocessed
    assert told == ["closed"]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+1\r\na\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 70_000,
        b"HTTP/1.1 200 OK\r\n" + b"x: a\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    ],
)
def test_an_answer_that_cannot_be_read_ends_the_connection(data: bytes) -> None:
    end = ClientEnd()
    first = end.ask()
    end.transport.feed(data)
    assert isinstance(first.error, ConnectionLost)
    assert end.transport.closing


def test_an_answer_to_nothing_ends_the_connection() -> None:
    end = ClientEnd()
    end.transport.feed(answer(b"x", "length"))
    assert not end.connection.is_reusable


def test_an_answer_over_the_limit_is_named() -> None:
    end = ClientEnd(WireLimits(max_body_bytes=10))
    first = end.ask()
    end.transport.feed(answer(b"x" * 11, "length"))
    assert isinstance(first.error, PayloadTooLarge)
    assert "max_body_bytes (10)" in str(first.error)


def test_cancelling_the_only_request_ends_the_connection() -> None:
    end = ClientEnd()
    receiver = RecordingReceiver()
    call = end.connection.send(GET, [], receiver)
    call.cancel()
    call.cancel()
    assert end.transport.aborted
    assert receiver.calls == []


def test_cancelling_one_of_several_leaves_the_others() -> None:
    end = ClientEnd()
    receivers = [RecordingReceiver() for _ in range(3)]
    calls = [end.connection.send(GET, [], receiver) for receiver in receivers]
    calls[0].cancel()
    calls[2].cancel()
    end.transport.feed(b"".join(answer(b"%d" % index, "length") for index in range(3)))
    assert [receiver.body for receiver in receivers] == [b"", b"1", b""]
    assert receivers[0].calls == []
    assert end.connection.is_reusable


def test_a_receiver_may_cancel_within_a_call() -> None:
    class Impatient(RecordingReceiver):
        def head(self, status: int, headers: Any) -> None:
            super().head(status, headers)
            calls[0].cancel()

    end = ClientEnd()
    receiver = Impatient()
    calls = [end.connection.send(GET, [], receiver)]
    end.transport.feed(answer(b"body", "length"))
    assert receiver.calls == ["head"]
    assert end.transport.aborted


def test_a_producer_is_told_when_it_may_go_on() -> None:
    end = ClientEnd()
    told: list[str] = []
    end.connection.pause_writing()
    assert end.connection.is_congested
    end.connection.on_writable = lambda: told.append("go")
    end.connection.resume_writing()
    end.connection.resume_writing()
    assert told == ["go"]


def test_a_receiver_may_hold_the_reading() -> None:
    end = ClientEnd()
    receiver = end.ask()
    end.connection.pause_reading()
    end.transport.feed(answer(b"late", "length"))
    assert receiver.calls == []
    end.connection.resume_reading()
    end.transport.feed(b"")
    assert receiver.body == b"late"


def test_the_same_head_is_parsed_at_most_twice() -> None:
    end = ClientEnd()
    heads = []
    for _ in range(4):
        receiver = end.ask()
        end.transport.feed(answer(b"abc", "length"))
        heads.append(receiver.headers)
    assert heads[0] == heads[3]
    assert heads[1] is heads[3]


@given(bodies=st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_client_and_server_understand_each_other(bodies: list[bytes]) -> None:
    client, server = ClientEnd(), ServerEnd(Http1Connection)
    receivers = [client.ask(request_head(b"POST", b"/", ((b"host", b"a"),), len(body)), [body]) for body in bodies]
    client.transport.feed(server.feed(client.transport.take()))
    assert [receiver.body for receiver in receivers] == bodies


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_request_awaits_the_whole_answer() -> None:
    async def scenario() -> Response:
        end = ClientEnd()
        task = asyncio.ensure_future(end.connection.request(b"POST", b"/v2", ((b"host", b"a"),), [b"body"]))
        await asyncio.sleep(0)
        assert end.transport.take().endswith(b"content-length: 4\r\n\r\nbody")
        end.transport.feed(b"HTTP/1.1 201 Created\r\nX-A: b\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n")
        end.transport.feed(b"0\r\n\r\n")
        return await task

    response = run(scenario())
    assert (response.status, response.body, response.get(b"x-a")) == (201, b"abc", b"b")
    assert response.get(b"absent") is None


def test_request_gives_up_at_its_timeout_and_tells_the_server() -> None:
    async def scenario() -> FakeTransport:
        end = ClientEnd()
        with pytest.raises(DeadlineExceeded, match="0"):
            await end.connection.request(b"GET", b"/", (), timeout=0)
        return end.transport

    assert run(scenario()).aborted


def test_request_raises_what_was_lost() -> None:
    async def scenario() -> None:
        end = ClientEnd(WireLimits(max_body_bytes=3))
        task = asyncio.ensure_future(end.connection.request(b"GET", b"/", ()))
        await asyncio.sleep(0)
        end.transport.feed(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n")
        with pytest.raises(PayloadTooLarge):
            await task
        task = asyncio.ensure_future(end.connection.request(b"GET", b"/", ()))
        await asyncio.sleep(0)
        end.connection.close()
        with pytest.raises(ConnectionLost):
            await task

    run(scenario())
