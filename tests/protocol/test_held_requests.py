"""Requests and streams that wait for a key: resumed once, bounded, and forgotten when their callers leave."""

from __future__ import annotations

from typing import Any, cast

from isochrone.protocol.access.held_requests import HeldRequest, HeldStream
from isochrone.secure.access.held import MOST_HELD, HeldRequests
from isochrone.wire.exchange import Consumer, Exchange, Route


class FakeExchange:
    owner: Any = None


class RecordingRoute(Route):
    """Notes what reaches the application, in order."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def handle(self, exchange: Exchange) -> None:
        assert exchange.owner is None
        self.events.append("handled")

    def open(self, exchange: Exchange) -> Consumer:
        assert exchange.owner is None
        self.events.append("opened")
        return self

    def data_received(self, data: bytes) -> None:
        self.events.append(data)

    def ended(self) -> None:
        self.events.append("ended")

    def shed(self) -> None:
        self.events.append("shed")

    def stopping(self) -> None:
        self.events.append("stopping")


def exchange() -> Exchange:
    return cast("Exchange", FakeExchange())


def test_a_request_is_handled_when_it_is_released() -> None:
    held, route, waiting = HeldRequests(), RecordingRoute(), exchange()
    request = HeldRequest(waiting, route)
    assert request.waits(held)
    assert waiting.owner is request
    held.release()
    held.release()
    assert route.events == ["handled"]


def test_a_request_whose_caller_has_gone_is_not_handled_and_leaves_its_place() -> None:
    held, route = HeldRequests(), RecordingRoute()
    requests = [HeldRequest(exchange(), route) for _ in range(MOST_HELD)]
    assert all(request.waits(held) for request in requests)
    late = exchange()
    assert not HeldRequest(late, route).waits(held)
    assert late.owner is None
    requests[0].abandoned()
    assert HeldRequest(late, route).waits(held)
    held.release()
    assert len(route.events) == MOST_HELD


def test_a_stream_hands_over_what_came_while_it_waited() -> None:
    held, route = HeldRequests(), RecordingRoute()
    stream = HeldStream(exchange(), route)
    assert stream.waits(held)
    stream.data_received(b"one")
    stream.stopping()
    held.release()
    stream.data_received(b"two")
    stream.stopping()
    stream.shed()
    stream.ended()
    assert route.events == ["opened", b"one", b"two", "stopping", "shed", "ended"]


def test_a_stream_that_ends_while_it_waits() -> None:
    held, route = HeldRequests(), RecordingRoute()
    stream = HeldStream(exchange(), route)
    assert stream.waits(held)
    stream.data_received(b"all")
    stream.ended()
    assert route.events == []
    held.release()
    assert route.events == ["opened", b"all", "ended"]


def test_a_stream_waits_no_longer_when_there_is_too_much_of_it_or_no_memory() -> None:
    for cause in ("bytes", "shed"):
        held, route = HeldRequests(), RecordingRoute()
        stream = HeldStream(exchange(), route)
        assert stream.waits(held)
        if cause == "bytes":
            for _ in range(5):
                stream.data_received(bytes(16384))
            assert route.events == ["opened", *[bytes(16384)] * 5]
        else:
            stream.shed()
            assert route.events == ["opened", "shed"]
        held.release()
        assert route.events.count("opened") == 1


def test_a_stream_whose_caller_has_gone_is_not_opened() -> None:
    held, route = HeldRequests(), RecordingRoute()
    stream = HeldStream(exchange(), route)
    assert stream.waits(held)
    stream.abandoned()
    held.release()
    assert route.events == []
