"""Which requests in a process take too long, whose callers have gone, and what is acknowledged."""

from __future__ import annotations

from isolated_triton import Outlets, request

from isochrone.worker.backends.python.triton.isolation.flights import Flights
from isochrone.worker.backends.python.triton.isolation.messages import RESPONSES_AHEAD, TAKEN_AT_ONCE


def test_of_an_ordinary_model_only_what_is_left_to_a_sender_is_overdue() -> None:
    flights = Flights(decoupled=False, limit_ns=100)
    running, left, answered = (flights.add(request(1), Outlets(), 0) for _ in range(3))
    for flight in (left, answered):
        flights.returned(flight, 50)
    answered.sent += 1
    assert flights.overdue(149) == []
    assert flights.overdue(150) == [left]
    assert flights.remove(running)
    assert not flights.remove(running)
    assert flights.remove_all() == [left, answered]
    assert not flights


def test_a_stream_is_overdue_unless_it_waits_for_its_caller() -> None:
    flights = Flights(decoupled=True, limit_ns=100)
    flight = flights.add(request(1), Outlets(), 0)
    assert flights.overdue(100) == [flight]
    flight.sent = RESPONSES_AHEAD
    assert flights.overdue(100) == []
    assert [flight.taken(100) for _ in range(TAKEN_AT_ONCE)] == [0] * (TAKEN_AT_ONCE - 1) + [TAKEN_AT_ONCE]
    assert flights.overdue(199) == []
    assert flights.overdue(200) == [flight]


def test_without_a_limit_nothing_is_overdue() -> None:
    flights = Flights(decoupled=True, limit_ns=0)
    flights.add(request(1), Outlets(), 0)
    assert flights.overdue(1 << 60) == []


def test_a_caller_that_has_gone_is_told_once() -> None:
    flights = Flights(decoupled=False, limit_ns=0)
    outlets = Outlets()
    first, second, _ = (flights.add(request(1), outlets, 0) for _ in range(3))
    assert flights.newly_gone() == []
    first.request.cancelled = True
    outlets[second.request].cancelled.set()
    assert flights.newly_gone() == [first.number]  # the second one has no outlet yet
    second.made_outlet()
    assert flights.newly_gone() == [second.number]
    assert flights.newly_gone() == []
