"""HTTP/2, client side, with the ``h2`` package as server: answers intact, limits kept, endings told truly."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from h2_peers import Fields, H2Peer, Message, Sending, feed_pieces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wire_fakes import FakeTransport, ManualLoop, RecordingReceiver

from isochrone.errors import ConnectionLost, DeadlineExceeded, Internal, NotFound, PayloadTooLarge
from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.http2 import frames
from isochrone.wire.http2.client import Http2ClientConnection, request_block
from isochrone.wire.http2.grpc_client import grpc_timeout, unary
from isochrone.wire.http2.hpack import Encoder

PATTERN = bytes(index * 7 % 251 for index in range(90_000))
BLOCK = request_block(b"POST", b"http", b"test", b"/echo", ((b"te", b"trailers"),))
OK: Fields = [(b":status", b"200"), (b"content-type", b"application/grpc")]
STATUS: Fields = [(b"grpc-status", b"0")]


class ClientEnd:
    """Our client, joined to an ``h2`` server."""

    def __init__(self, limits: WireLimits | None = None, server: dict[int, int] | None = None) -> None:
        self.loop: Any = ManualLoop()
        self.connection = Http2ClientConnection(limits, self.loop)
        self.transport = FakeTransport(self.connection)
        self.peer = H2Peer(client=False, settings=server)

    def ask(self, body: bytes = b"", **options: Any) -> RecordingReceiver:
        receiver = RecordingReceiver()
        self.connection.open(BLOCK, [body] if body else [], receiver, **options)
        return receiver

    def join(self, inward: list[int] | None = None, outward: list[int] | None = None) -> bool:
        """One exchange of bytes both ways; whether any passed."""
        self.loop.run()
        sent = self.transport.take()
        feed_pieces(self.peer.receive, sent, outward or [1 << 20])
        reply = self.peer.take()
        feed_pieces(self.transport.feed, reply, inward or [1 << 20])
        return bool(sent or reply)

    def settle(self) -> None:
        while self.join():
            pass

    def answer(self, stream_id: int, body: bytes = b"", trailers: Fields | None = None, head: Fields = OK) -> None:
        connection = self.peer.connection
        connection.send_headers(stream_id, head, end_stream=not body and not trailers)
        if body:
            connection.send_data(stream_id, body, end_stream=not trailers)
        if trailers:
            connection.send_headers(stream_id, trailers, end_stream=True)


answers = st.builds(
    lambda size, padding, trailers: Message(OK, PATTERN[:size], STATUS if trailers else [], padding),
    st.one_of(st.integers(0, 50), st.integers(0, 5000), st.sampled_from([16_384, 65_535, 65_536, 90_000])),
    st.one_of(st.none(), st.integers(0, 255)),
    st.booleans(),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    exchanges=st.lists(st.tuples(st.sampled_from([0, 1, 300, 16_385, 70_000]), answers), min_size=1, max_size=6),
    steps=st.lists(st.integers(1, 20_000), min_size=1, max_size=5),
    inward=st.lists(st.sampled_from([1, 9, 10, 1000, 16_393, 100_000]), min_size=1, max_size=4),
    outward=st.lists(st.sampled_from([1, 9, 100, 5000, 100_000]), min_size=1, max_size=3),
    window=st.sampled_from([100, 5000, 65_535, 1_000_000]),
    streams=st.sampled_from([1, 2, 100]),
    table=st.sampled_from([0, 4096]),
    limits=st.sampled_from([WireLimits(), WireLimits(stream_window=20_000, connection_window=70_000)]),
)
def test_requests_and_answers_arrive_intact(
    exchanges: list[tuple[int, Message]],
    steps: list[int],
    inward: list[int],
    outward: list[int],
    window: int,
    streams: int,
    table: int,
    limits: WireLimits,
) -> None:
    total = sum(size + len(message.body) for size, message in exchanges)
    steps = [max(size, total // 100) for size in steps]
    if total > 5000:
        inward = [max(size, 50) for size in inward]
        outward = [max(size, 100) for size in outward]
    if window == 100:
        exchanges = [(min(size, 300), message) for size, message in exchanges]
    end = ClientEnd(limits, {1: table, 3: streams, 4: window})
    end.settle()
    receivers = [end.ask(PATTERN[:size]) for size, _ in exchanges]
    sending: dict[int, Sending] = {}
    most = 0
    for turn in range(5_000):
        moved = end.join(inward, outward)
        end.connection.flood.forget(end.connection.highest_stream)
        for stream_id in sorted(end.peer.ended - set(sending)):
            message = exchanges[stream_id // 2][1]
            sending[stream_id] = Sending(end.peer.connection, stream_id, message, is_request=False)
        most = max(most, len(end.connection.streams))
        for one in sending.values():
            moved |= one.step(steps[turn % len(steps)])
        if not moved:
            break
    assert most <= streams
    for index, (size, message) in enumerate(exchanges):
        receiver = receivers[index]
        assert receiver.error is None
        assert bytes(end.peer.bodies[2 * index + 1]) == PATTERN[:size]
        assert receiver.is_complete
        assert receiver.body == message.body
        assert receiver.status == 200
        assert list(receiver.trailers or ()) == message.trailers
    assert end.connection.streams == {}
    assert not end.connection.ready
    assert end.connection.unsent == 0
    assert end.connection.is_reusable


def test_streams_wait_for_the_servers_settings_above_a_hundred() -> None:
    end = ClientEnd()
    receivers = [end.ask(b"x") for _ in range(150)]
    assert len(end.connection.streams) == 100
    end.settle()
    assert len(end.peer.heads) == 150 if end.connection.peer_max_streams >= 150 else 100
    for stream_id in sorted(end.peer.ended):
        end.answer(stream_id, b"a")
    end.settle()
    for stream_id in sorted(end.peer.ended)[100:]:
        if stream_id // 2 >= 100:
            end.answer(stream_id, b"a")
    end.settle()
    assert sum(receiver.is_complete for receiver in receivers) == 150


def test_a_waiting_stream_keeps_what_is_sent_on_it_and_can_be_cancelled() -> None:
    end = ClientEnd(server={3: 1})
    end.settle()
    first = end.ask(b"1")
    streamed, cancelled = RecordingReceiver(), RecordingReceiver()
    second = end.connection.open(BLOCK, [b"2"], streamed, end=False)
    third = end.connection.open(BLOCK, [b"3"], cancelled)
    second.send_data(b"22", True)
    third.cancel()
    end.settle()
    assert list(end.peer.heads) == [1]
    end.answer(1, b"one")
    end.settle()
    end.answer(3, b"two")
    end.settle()
    assert first.body == b"one"
    assert streamed.body == b"two"
    assert bytes(end.peer.bodies[3]) == b"222"
    assert cancelled.calls == []
    assert list(end.peer.heads) == [1, 3]
    assert end.connection.unsent == 0


def test_goaway_tells_which_requests_were_not_processed() -> None:
    end = ClientEnd(server={3: 2})
    end.settle()
    told: list[str] = []
    end.connection.on_going_away = lambda: told.append("going")
    end.connection.on_closed = lambda: told.append("closed")
    first, second, waiting = end.ask(b"1"), end.ask(b"2"), end.ask(b"3")
    end.settle()
    end.transport.feed(frames.goaway(1, 0, b"bye"))
    for receiver in (second, waiting):
        assert isinstance(receiver.error, ConnectionLost)
        assert receiver.error.unprocessed
        assert "bye" in str(receiver.error)
    assert not end.connection.is_reusable
    assert not end.transport.closing
    late = end.ask(b"4")
    assert isinstance(late.error, ConnectionLost)
    assert late.error.unprocessed
    end.answer(1, b"still")
    end.settle()
    assert first.body == b"still"
    assert end.transport.closing
    end.connection.connection_lost(None)
    assert told == ["going", "closed"]


def test_resets() -> None:
    end = ClientEnd()
    receivers = [end.ask(b"x") for _ in range(3)]
    end.settle()
    end.peer.connection.reset_stream(1, frames.REFUSED_STREAM)
    end.peer.connection.reset_stream(3, frames.INTERNAL_ERROR)
    end.settle()
    refused, failed, open_still = receivers
    assert isinstance(refused.error, ConnectionLost)
    assert refused.error.unprocessed
    assert isinstance(failed.error, ConnectionLost)
    assert not failed.error.unprocessed
    assert open_still.calls == []
    assert end.connection.is_reusable


def test_cancelling_resets_the_stream() -> None:
    end = ClientEnd()
    receiver = RecordingReceiver()
    stream = end.connection.open(BLOCK, [b"x"], receiver)
    end.settle()
    stream.cancel()
    stream.cancel()
    end.settle()
    assert end.peer.resets == {1: frames.CANCEL}
    assert receiver.calls == []


def test_a_lost_connection_fails_open_and_waiting_requests() -> None:
    end = ClientEnd(server={3: 1})
    end.settle()
    first, waiting = end.ask(b"1"), end.ask(b"2")
    end.connection.connection_lost(ConnectionResetError("reset"))
    assert isinstance(first.error, ConnectionLost)
    assert not first.error.unprocessed
    assert "reset" in str(first.error)
    assert isinstance(waiting.error, ConnectionLost)
    assert waiting.error.unprocessed


def test_an_answer_before_the_request_is_whole_stops_the_request() -> None:
    end = ClientEnd(server={4: 10})
    end.settle()
    receiver = end.ask(bytes(1000))
    end.loop.run()
    end.peer.receive(end.transport.take())
    end.answer(1, b"too much", head=[(b":status", b"413")])
    end.transport.feed(end.peer.take())
    assert receiver.status == 413
    assert receiver.body == b"too much"
    assert receiver.is_complete
    end.settle()
    assert end.peer.resets == {1: frames.NO_ERROR}
    assert end.connection.unsent == 0


def test_interim_answers_are_passed_over() -> None:
    end = ClientEnd()
    receiver = end.ask(b"x")
    end.settle()
    end.peer.connection.send_headers(1, [(b":status", b"103"), (b"link", b"x")])
    end.answer(1, b"body")
    end.settle()
    assert receiver.status == 200
    assert receiver.body == b"body"


def test_head_and_not_modified_have_no_body_whatever_they_announce() -> None:
    end = ClientEnd()
    receiver = RecordingReceiver()
    block = request_block(b"HEAD", b"http", b"a", b"/", ())
    end.connection.open(block, [], receiver, head=True)
    end.settle()
    end.answer(1, head=[(b":status", b"200"), (b"content-length", b"5")])
    end.settle()
    assert receiver.is_complete


def raw_answer(block_fields: Fields, *, ends: bool) -> bytes:
    flags = frames.END_HEADERS | (frames.END_STREAM if ends else 0)
    return frames.frame(frames.HEADERS, flags, 1, Encoder().encode(block_fields))


@pytest.mark.parametrize(
    "data",
    [
        frames.frame(frames.DATA, frames.END_STREAM, 1, b"before the head"),
        raw_answer([(b"content-type", b"a")], ends=True),
        raw_answer([(b":status", b"20")], ends=True),
        raw_answer([(b":status", b"abc")], ends=True),
        raw_answer([(b":status", b"200"), (b":status", b"200")], ends=True),
        raw_answer([(b":status", b"200"), (b":path", b"/")], ends=True),
        raw_answer([(b"x", b"1"), (b":status", b"200")], ends=True),
        raw_answer([(b":status", b"200"), (b"Upper", b"x")], ends=True),
        raw_answer([(b":status", b"200"), (b"connection", b"close")], ends=True),
        raw_answer([(b":status", b"200"), (b"x", b"a\r\nb")], ends=True),
        raw_answer([(b":status", b"103")], ends=True),
        raw_answer([(b":status", b"200")], ends=False) * 2,
        raw_answer([(b":status", b"200")], ends=False) + raw_answer([(b"x", b"1")], ends=False),
        raw_answer([(b":status", b"200"), (b"content-length", b"3")], ends=True),
        raw_answer([(b":status", b"200"), (b"content-length", b"3")], ends=False)
        + frames.frame(frames.DATA, frames.END_STREAM, 1, b"four"),
        raw_answer([(b":status", b"200"), (b"content-length", b"x")], ends=True),
        raw_answer([(b":status", b"200"), (b"x", b"a" * 70_000)], ends=True),
    ],
)
def test_a_malformed_answer_is_reset_alone(data: bytes) -> None:
    end = ClientEnd()
    receiver, other = end.ask(b"x"), end.ask(b"y")
    end.settle()
    end.transport.feed(data)
    end.loop.run()
    assert isinstance(receiver.error, ConnectionLost)
    assert frames.rst_stream(1, frames.PROTOCOL_ERROR) in end.transport.take()
    assert other.calls == []
    assert end.connection.is_reusable


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frames.frame(frames.PUSH_PROMISE, 4, 1, b"\0\0\0\2\x88"), frames.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 5, 2, b"\x88"), frames.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 5, 9, b"\x88"), frames.PROTOCOL_ERROR),
        (frames.frame(frames.DATA, 0, 9, b"x"), frames.PROTOCOL_ERROR),
        (frames.settings_frame({frames.SETTINGS_ENABLE_PUSH: 1}), frames.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 5, 1, b"\xff\xff\xff\xff\xff"), frames.COMPRESSION_ERROR),
    ],
)
def test_connection_errors(data: bytes, code: int) -> None:
    end = ClientEnd()
    receiver = end.ask(b"x")
    end.settle()
    end.transport.feed(data)
    sent = end.transport.take()
    assert sent[3] == frames.GOAWAY
    assert frames.goaway_fields.unpack_from(sent, 9)[1] == code
    assert end.transport.closing
    end.connection.connection_lost(None)
    assert isinstance(receiver.error, ConnectionLost)


def test_an_answer_over_the_limit_is_named() -> None:
    end = ClientEnd(WireLimits(max_body_bytes=10))
    receiver = end.ask(b"x")
    end.settle()
    end.peer.connection.send_headers(1, [*OK, (b"content-length", b"11")])
    end.settle()
    assert isinstance(receiver.error, PayloadTooLarge)
    assert end.peer.resets == {1: frames.CANCEL}


def test_a_receiver_may_hold_the_window() -> None:
    end = ClientEnd(WireLimits(stream_window=1000))
    receiver = RecordingReceiver()
    stream = end.connection.open(BLOCK, [], receiver)
    stream.hold_window()
    end.settle()
    connection = end.peer.connection
    connection.send_headers(1, OK)
    connection.send_data(1, bytes(1000))
    end.settle()
    assert connection.local_flow_control_window(1) == 0
    stream.release_window()
    end.settle()
    assert connection.local_flow_control_window(1) == 1000


def test_control_frames_are_counted_by_the_second() -> None:
    end = ClientEnd(WireLimits(max_control_frames_per_second=10))
    end.settle()
    ping = frames.frame(frames.PING, 0, 0, bytes(8))
    for _ in range(5):
        end.loop.now += 1.0
        end.transport.feed(ping * 9)
    assert not end.transport.closing
    end.transport.feed(ping * 21)
    assert end.transport.closing


def test_repeated_blocks_are_decoded_once() -> None:
    end = ClientEnd()
    receivers = [end.ask(b"x") for _ in range(6)]
    end.settle()
    for index in range(6):
        end.answer(2 * index + 1, b"a", STATUS)
        end.settle()
    assert receivers[4].headers is receivers[5].headers
    assert receivers[0].headers == receivers[5].headers
    assert all(receiver.trailers == ((b"grpc-status", b"0"),) for receiver in receivers)


def call(answering: Any, *, timeout: float | None = None, limits: WireLimits | None = None) -> Any:
    """A unary call to a server that ``answering`` plays: (peer's connection) after the request has come."""

    async def scenario() -> Any:
        connection = Http2ClientConnection(limits)
        transport = FakeTransport(connection)
        peer = H2Peer(client=False)
        task = asyncio.ensure_future(unary(connection, b"host", b"/s/m", b"question", ((b"x", b"1"),), timeout))
        for _ in range(6):
            await asyncio.sleep(0)
            peer.receive(transport.take())
            transport.feed(peer.take())
            if 1 in peer.ended:
                peer.ended.clear()
                fields = dict(peer.heads[1])
                assert fields[b":path"] == b"/s/m"
                assert fields[b"te"] == b"trailers"
                assert bytes(peer.bodies[1]) == b"\0\0\0\0\x08question"
                answering(peer.connection)
        return await task

    return asyncio.run(scenario())


def answer_call(connection: Any, body: bytes, trailers: Fields) -> None:
    connection.send_headers(1, OK)
    connection.send_data(1, body)
    connection.send_headers(1, trailers, end_stream=True)


def test_unary() -> None:
    message, trailers = call(lambda connection: answer_call(connection, b"\0\0\0\0\x02hi", STATUS))
    assert message == b"hi"
    assert trailers == ((b"grpc-status", b"0"),)


def test_unary_raises_what_the_status_stands_for() -> None:
    refusal = [*OK, (b"grpc-status", b"5"), (b"grpc-message", b"no model %27a%27")]
    with pytest.raises(NotFound, match="no model 'a'"):
        call(lambda connection: connection.send_headers(1, refusal, end_stream=True))


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0\x03hi", b"\0\0\0\0\x01hi"])
def test_unary_refuses_a_message_of_another_length(body: bytes) -> None:
    with pytest.raises(Internal):
        call(lambda connection: answer_call(connection, body, STATUS))


def test_unary_gives_up_at_its_timeout() -> None:
    with pytest.raises(DeadlineExceeded):
        call(lambda connection: None, timeout=0.001)


@pytest.mark.parametrize(
    ("seconds", "value"),
    [(0.05, b"50000000n"), (0.5, b"500000u"), (1, b"1000000u"), (1000, b"1000000m"), (1e6, b"1000000S"), (0, b"1n")],
)
def test_grpc_timeout(seconds: float, value: bytes) -> None:
    assert grpc_timeout(seconds) == value
