"""A staged loop turn must answer exactly what an unstaged one answers, in fewer and later writes."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_fakes import FakeTransport, HoldingRoute, OneRoute, UnboundListener, echo

from isochrone.wire.exchange import Exchange
from isochrone.wire.http1.server import Http1Connection
from isochrone.wire.turn import Turn

#: Larger than any gap: every reading is staged.
ALWAYS = 1 << 62


def post(body: bytes) -> bytes:
    return b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)


def answer_to(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def listener_with(answer: Any = echo, burst_ns: int = ALWAYS) -> UnboundListener:
    listener = UnboundListener(OneRoute(HoldingRoute(answer)))
    listener.turn = Turn(listener.loop, burst_ns)
    return listener


def connect(listener: UnboundListener) -> FakeTransport:
    connection = Http1Connection(listener)
    listener.connections.add(connection)
    return FakeTransport(connection)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0, 10, 70_000, 200_000])), min_size=1, max_size=8),
    st.lists(st.integers(1, 300_000), max_size=4),
    st.booleans(),
)
def test_staged_connections_are_answered_as_if_each_were_alone(
    requests: list[tuple[int, int]], cuts: list[int], one_turn: bool
) -> None:
    listener = listener_with()
    transports = [connect(listener) for _ in range(3)]
    sent: list[list[bytes]] = [[], [], []]
    for number, (index, size) in enumerate(requests):
        body = bytes([number + 1]) * size
        sent[index].append(body)
        # Several reads of one connection can fall into one turn: uvloop reads on while there is something.
        transports[index].feed_in_pieces(post(body), cuts)
        if not one_turn:
            listener.loop.run()
    listener.loop.run()
    for transport, bodies in zip(transports, sent, strict=True):
        assert transport.take() == b"".join(answer_to(body) for body in bodies)
        # The transport belongs to the connection again: the next request is heard.
        transport.feed(post(b"next"))
    listener.loop.run()
    assert [transport.take() for transport in transports] == [answer_to(b"next")] * 3


def test_nothing_is_written_before_everything_read_has_been_worked_on() -> None:
    order: list[str] = []

    def answer(exchange: Exchange) -> None:
        order.append("work")
        echo(exchange)

    listener = listener_with(answer)
    transports = [connect(listener) for _ in range(3)]
    for transport in transports:
        write = transport.write
        transport.write = lambda data, write=write: (order.append("write"), write(data))  # type: ignore[method-assign,misc]
        transport.feed(post(b"a"))
    listener.loop.run()
    assert order == ["work"] * 3 + ["write"] * 3


def test_a_lone_connection_is_answered_at_once() -> None:
    listener = listener_with(burst_ns=0)
    transport = connect(listener)
    transport.feed(post(b"a"))
    assert transport.take() == answer_to(b"a")


def test_staging_ends_when_connections_come_alone_again() -> None:
    listener = listener_with()
    transport = connect(listener)
    for _ in range(4):
        transport.feed(post(b"a"))
        assert transport.take() == b""
        listener.loop.run()
        assert transport.take() == answer_to(b"a")
    listener.turn._burst_ns = -1
    transport.feed(post(b"b"))
    assert transport.take() == answer_to(b"b")


def test_a_fault_on_one_connection_costs_the_others_nothing() -> None:
    def answer(exchange: Exchange) -> None:
        if bytes(exchange.body) == b"bad":
            raise RuntimeError("a fault of ours")
        echo(exchange)

    listener = listener_with(answer)
    bad, good = connect(listener), connect(listener)
    bad.feed(post(b"bad"))
    good.feed(post(b"good"))
    listener.loop.run()
    assert bad.aborted
    assert good.take() == answer_to(b"good")


def test_a_connection_that_is_gone_by_the_end_of_the_turn_is_passed_over() -> None:
    listener = listener_with()
    gone, here = connect(listener), connect(listener)
    gone.feed(post(b"a"))
    here.feed(post(b"b"))
    gone.protocol.connection_lost(None)
    listener.loop.run()
    assert gone.take() == b""
    assert here.take() == answer_to(b"b")


def test_answers_from_outside_a_reading_are_written_together() -> None:
    held: list[Exchange] = []
    listener = listener_with(held.append)
    transports = [connect(listener) for _ in range(5)]
    for transport in transports:
        transport.feed(post(b"x"))
    listener.loop.run()
    for exchange in held:
        echo(exchange)
    assert all(transport.take() == b"" for transport in transports)
    listener.loop.run()
    assert [transport.take() for transport in transports] == [answer_to(b"x")] * 5


def test_a_flush_writes_what_was_marked_once() -> None:
    held: list[Exchange] = []
    listener = listener_with(held.append)
    transports = [connect(listener) for _ in range(2)]
    for transport in transports:
        transport.feed(post(b"x"))
    listener.loop.run()
    for exchange in held:
        echo(exchange)
    assert not any(transport.writes for transport in transports)
    listener.turn.flush()
    assert [transport.take() for transport in transports] == [answer_to(b"x")] * 2
    # The write that was scheduled has nothing left to do.
    listener.loop.run()
    assert [transport.writes for transport in transports] == [1, 1]


def test_a_flush_leaves_answers_to_the_end_of_a_turn_that_has_more_of_them() -> None:
    held: list[Exchange] = []
    listener = listener_with(lambda exchange: held.append(exchange) if not held else echo(exchange))
    transport = connect(listener)
    transport.feed(post(b"x"))
    listener.loop.run()
    transport.feed(post(b"y"))
    echo(held[0])
    listener.turn.flush()
    assert transport.writes == 0
    listener.loop.run()
    assert transport.take() == answer_to(b"x") + answer_to(b"y")
    assert transport.writes == 1


def test_an_answer_with_nobody_to_share_a_write_with_goes_out_at_once() -> None:
    held: list[Exchange] = []
    listener = listener_with(held.append, burst_ns=-1)
    transport = connect(listener)
    transport.feed(post(b"x"))
    echo(held[0])
    assert transport.take() == answer_to(b"x")
    # Pipelined answers are worth a common write.
    transport.feed(post(b"y") + post(b"z"))
    for exchange in held[1:]:
        echo(exchange)
    listener.loop.run()
    assert transport.take() == answer_to(b"y") + answer_to(b"z")


class Passive:
    """A connection that writes down when it is processed and flushed; what it receives marks others."""

    def __init__(self, name: str, log: list[str], marks: Any = None) -> None:
        self.name = name
        self.log = log
        self.marks = marks
        self.closed = False
        self.transport: Any = None
        self.out: list[Any] = []

    def receive(self, data: bytes) -> None:
        self.log.append(self.name)
        if self.marks is not None:
            self.marks()

    def flush(self) -> None:
        self.out = []
        if self.name.startswith("worker"):
            self.log.append(f"{self.name} flushed")


@pytest.mark.parametrize("workers", [1, 3])
def test_requests_are_written_after_eight_callers_for_each_worker_that_gets_some(workers: int) -> None:
    log: list[str] = []
    turn = Turn(UnboundListener(OneRoute(HoldingRoute(echo))).loop, ALWAYS)
    turn.flush_every = 8
    behind = [Passive(f"worker {number}", log) for number in range(workers)]

    def send(number: int) -> None:
        worker = behind[number % workers]
        if not worker.out:
            turn.mark_requests(worker)
        worker.out.append(b"request")

    callers = [Passive("caller", log, partial(send, number)) for number in range(40)]
    # Answers for many callers come first; they are no reason to hold requests back.
    answered = [Passive("answered", log) for _ in range(30)]
    source = Passive("source", log, lambda: [turn.mark(each) for each in answered])
    turn._receive([(source, b""), *((caller, b"") for caller in callers)])
    first = next(place for place, name in enumerate(log) if name.endswith("flushed"))
    assert log[:first].count("caller") <= 8 * workers


class Stage:
    def __init__(self, log: list[str]) -> None:
        self.log = log

    def begin(self) -> None:
        self.log.append("begin")

    def end(self) -> None:
        self.log.append("end")


def test_the_stage_comes_between_processing_and_writing() -> None:
    listener = listener_with()
    log: list[str] = []
    listener.turn.stage = Stage(log)
    pair = [Passive("worker 1", log), Passive("worker 2", log)]
    listener.turn._receive([(connection, b"") for connection in pair])
    assert log == ["begin", "worker 1", "worker 2", "end", "worker 1 flushed", "worker 2 flushed"]
    log.clear()
    alone = Passive("worker 1", log)
    alone.out = [b"answer"]
    listener.turn.alone(alone, b"")
    assert log == ["begin", "worker 1", "end", "worker 1 flushed"]


class FailingStage(Stage):
    def end(self) -> None:
        raise ValueError("a mistake")


def test_a_stage_that_fails_does_not_keep_answers_back() -> None:
    listener = listener_with()
    log: list[str] = []
    listener.turn.stage = FailingStage(log)
    with pytest.raises(ValueError, match="a mistake"):
        listener.turn._receive([(Passive("worker 1", log), b"")])
    assert log[-1] == "worker 1 flushed"
