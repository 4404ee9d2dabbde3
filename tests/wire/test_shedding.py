"""Answers that nobody reads use up the process's memory: requests of their connection that have none are rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from http2_frames import FIELDS, data_of, headers, opened, parse, statuses
from test_stream_memory import Call, Served, message
from wire_fakes import ServerEnd

from isochrone.settings.wire_limits import WireLimits
from isochrone.wire.bodies.budget import MemoryBudget, Share
from isochrone.wire.http2.frames import DATA, HEADERS, PREFACE, frame, settings_frame, window_update
from isochrone.wire.http2.server import Http2ServerConnection

LIMIT = 16_000_000
LIMITS = WireLimits(max_body_bytes=1_000_000, max_buffered_bytes=LIMIT)
GRPC = [*FIELDS, (b"content-type", b"application/grpc")]


class Owner:
    """Works on an answer."""

    def __init__(self) -> None:
        self.gone = 0

    def abandoned(self) -> None:
        self.gone += 1


def asked(count: int, fields: list[tuple[bytes, bytes]] = FIELDS, window: int = 0) -> tuple[ServerEnd, list[Owner]]:
    """A connection whose peer reads nothing, and its requests, all in progress."""
    end = opened(LIMITS)
    end.feed(settings_frame({4: window}))
    owners = []
    for index in range(count):
        end.feed(headers(2 * index + 1, fields, end=True))
        exchange: Any = end.route.exchanges[-1]
        exchange.owner = Owner()
        owners.append(exchange.owner)
    return end, owners


def test_a_thousand_answers_that_nobody_reads_stay_within_the_budget() -> None:
    end, owners = asked(1000)
    budget = end.listener.budget
    sent = b""
    for exchange in end.route.exchanges:
        exchange.respond(200, (), [bytes(400_000)])
        sent += end.turn()
        assert budget.held <= LIMIT
    answered = sum(owner.gone == 0 for owner in owners)
    assert answered == 38  # 15/16 of the budget, and the one that crossed it
    assert all(owner.gone == 1 for owner in owners[answered:])
    assert statuses(sent) == [b"200"] * answered + [b"503"] * (1000 - answered)
    assert budget.rejected == 1000 - answered
    # The refusals say why, as soon as their windows let them.
    sent = end.feed(window_update(0, 1 << 20) + window_update(1999, 1000))
    assert b"max_buffered_bytes" in data_of(sent, 1999)
    end.connection.connection_lost(None)
    assert budget.held == 0


def test_calls_are_refused_with_a_status_of_grpc() -> None:
    end, owners = asked(60, GRPC)
    for exchange in end.route.exchanges[:40]:
        exchange.respond(200, (), [bytes(400_000)])
        sent = end.turn()
        if owners[-1].gone:
            break
    assert b"14" in sent  # UNAVAILABLE
    assert b"max_buffered_bytes" in sent
    # What is computed for them all the same goes nowhere.
    exchange = end.route.exchanges[-1]
    exchange.respond_unary(b"", b"late", 4, b"")  # type: ignore[attr-defined]
    exchange.respond(200, (), [b"late"])
    exchange.start(200, ())
    exchange.write([b"late"])
    exchange.end()
    assert end.turn() == b""


def test_answers_that_have_begun_and_bodies_that_are_held_are_not_forgotten() -> None:
    end = opened(LIMITS)
    end.feed(settings_frame({4: 0}) + headers(1, end=True))
    begun = end.route.exchanges[0]
    begun.start(200, ())
    begun.write([b"first"])
    for number in range(3, 90, 2):
        end.feed(headers(number, end=True))
    # One whose body is whole, one whose body still comes.
    end.feed(headers(91) + frame(DATA, 1, 91, bytes(100_000)))
    end.feed(headers(93, [*FIELDS, (b"content-length", b"200000")]) + frame(DATA, 0, 93, bytes(1_000)))
    budget = end.listener.budget
    assert budget.held == 5 + 300_000
    for exchange in end.route.exchanges[1:-1]:
        exchange.respond(200, (), [bytes(400_000)])
        end.turn()
    streams = end.connection.streams
    assert budget.rejected > 0
    assert streams[91].reserved == streams[93].reserved == 0
    assert budget.held == sum(stream.unsent for stream in streams.values())
    end.feed(frame(DATA, 1, 93, bytes(199_000)))
    begun.write([b" second"])
    begun.end()
    assert data_of(end.feed(window_update(1, 1000))) == b"first second"


def test_a_peer_that_reads_is_never_refused() -> None:
    end, owners = asked(1000, window=1 << 30)
    for exchange in end.route.exchanges:
        exchange.respond(200, (), [bytes(400_000)])
        sent = end.turn()
        while count := sum(len(payload) for kind, _, _, payload in parse(sent) if kind == DATA):
            sent = end.feed(window_update(0, count))
    assert not any(owner.gone for owner in owners)
    assert end.listener.budget.held == 0


def joined(first: ServerEnd) -> ServerEnd:
    """Another connection of the same process."""
    other = ServerEnd(Http2ServerConnection, None, LIMITS)
    other.connection.share = Share(first.listener.budget)
    other.listener.budget = first.listener.budget
    other.feed(PREFACE + settings_frame({4: 1 << 30}) + window_update(0, 1 << 30))
    return other


def upload(end: ServerEnd, number: int, size: int) -> None:
    """A request whose body is held until it is answered."""
    end.feed(headers(number, [*FIELDS, (b"content-length", str(size).encode())]))
    for at in range(0, size, 16_000):
        end.feed(frame(DATA, at + 16_000 >= size, number, bytes(min(16_000, size - at))))


def test_bodies_are_no_answers_that_wait_however_little_memory_is_left() -> None:
    first = opened(LIMITS)
    first.feed(settings_frame({4: 1 << 30}) + window_update(0, 1 << 30))
    budget = first.listener.budget
    ends = [first, *(joined(first) for _ in range(10))]
    for end in ends:
        end.feed(headers(1, end=True))
        number = 3
        # As much as its share lets it ask for.
        for size in (1_000_000, 100_000, 20_000):
            while end.connection.share.held + size <= budget.free - size:
                upload(end, number, size)
                number += 2
    assert budget.free < budget.scarce
    assert first.connection.share.is_exceeded
    assert budget.rejected == 0
    requests = sum(len(end.route.exchanges) for end in ends)
    sent = []
    for end in ends:
        # Over 16 KiB: it has its turn, and goes out with it.
        end.route.exchanges[0].respond(200, (), [bytes(60_000)])
        sent += statuses(end.turn())
        assert end.connection.unsent == 0
    assert sent == [b"200"] * len(ends)
    assert budget.rejected == 0
    assert sum(len(end.connection.streams) for end in ends) == requests - len(ends)
    for end in ends:
        for exchange in end.route.exchanges[1:]:
            exchange.respond(200, (), [b"done"])
        assert set(statuses(end.turn())) <= {b"200"}
    assert budget.held == 0


def test_answers_that_were_read_before_their_turn_to_refuse_came_refuse_nobody() -> None:
    end, owners = asked(60)
    for number in (121, 123):
        upload(end, number, 900_000)
    for exchange in end.route.exchanges[:38]:
        exchange.respond(200, (), [bytes(400_000)])
    assert end.connection.shed_planned
    for number in range(1, 77, 2):
        end.transport.feed(window_update(number, 1 << 20))
    end.transport.feed(window_update(0, 1 << 27))
    assert end.connection.unsent == 0
    # Others hold the memory now, and this connection two bodies.
    Share(end.listener.budget).add(end.listener.budget.free)
    assert statuses(end.turn()).count(b"503") == 0
    assert not any(owner.gone for owner in owners)


def test_small_answers_are_never_refused_however_many_wait() -> None:
    end, owners = asked(1000)
    for exchange in end.route.exchanges:
        exchange.respond(200, (), [bytes(4_000)])
        end.turn()
    assert not any(owner.gone for owner in owners)
    assert end.listener.budget.held == 4_000_000


def test_others_go_on() -> None:
    greedy, _ = asked(100)
    modest = ServerEnd(Http2ServerConnection, None, LIMITS)
    modest.connection.share = Share(greedy.listener.budget)
    modest.listener.budget = greedy.listener.budget
    modest.feed(PREFACE + settings_frame({4: 0}) + headers(1, end=True) + headers(3, end=True))
    for exchange in greedy.route.exchanges:
        exchange.respond(200, (), [bytes(400_000)])
        greedy.turn()
    assert greedy.listener.budget.rejected > 0
    modest.route.exchanges[0].respond(200, (), [bytes(100_000)])
    assert statuses(modest.turn()) == [b"200"]
    modest.feed(headers(5, end=True))
    assert len(modest.route.exchanges) == 3


def test_requests_of_a_stream_are_answered_with_an_error_and_no_more_are_taken_until_its_answers_are_read() -> None:
    call = Call()
    call.end.feed(settings_frame({4: 0}))
    for _ in range(200):
        call.send(message(10))
    requests = list(call.requests)
    assert len(requests) == 200
    for request in requests:
        request.served_by = Served
        request.complete({"OUT": np.zeros(400_000, np.uint8)})
        call.end.turn()
        assert call.held <= call.end.listener.budget.limit
    assert sum(request.cancelled for request in requests) > 90
    call.send(message(10))
    assert len(call.requests) == 200
    sent = call.end.feed(window_update(0, 1 << 27) + window_update(1, 1 << 27))
    assert sent.count(b"max_buffered_bytes") == sum(request.cancelled for request in requests)
    assert call.held == 0
    assert len(call.requests) == 201


@pytest.mark.parametrize(("held", "overdrawn"), [(900, False), (938, False), (939, True), (2000, True)])
def test_the_last_sixteenth_is_scarce(held: int, overdrawn: bool) -> None:
    share = Share(MemoryBudget(1000))
    share.add(held)
    assert share.budget.is_overdrawn_by(held) == overdrawn
    # A connection whose answers are not what uses it up is spared.
    assert not share.budget.is_overdrawn_by(min(held, max(0, 1000 - held)))


def test_frames_sent_are_of_bounded_size() -> None:
    end = opened()
    end.feed(settings_frame({4: 1 << 30, 5: (1 << 24) - 1}) + window_update(0, 1 << 30) + headers(1, end=True))
    end.route.exchanges[0].respond(200, (), [bytes(5 << 20)])
    sizes = [len(payload) for kind, _, _, payload in parse(end.turn()) if kind != HEADERS]
    assert max(sizes) == 1 << 20
    assert sum(sizes) == 5 << 20
