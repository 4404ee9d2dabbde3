"""What a gateway keeps of requests that no worker answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isochrone.clock import MILLISECOND, NEVER
from isochrone.errors import DeadlineExceeded, IsochroneError
from isochrone.gateway.flights.reading import id_of
from isochrone.gateway.flights.recording import FlightRecording
from isochrone.gateway.flights.records import GatewayFlightRecord
from isochrone.gateway.front import request_ids
from isochrone.observe.flights.ring import Flights

pytestmark = pytest.mark.interpreted


def request_of(**fields: Any) -> Any:
    usual = {
        "shadow": None,
        "served": SimpleNamespace(name="m", canary=None),
        "replica_set": None,
        "demand": None,
        "version": "",
        "came_at": 1 * MILLISECOND,
        "arrived": 1 * MILLISECOND,
        "waits_since": 0,
        "sent_at": 0,
        "deadline": NEVER,
        "epoch": 3,
        "caller_ids": ("x-1",),
        "flown": None,
    }
    return SimpleNamespace(**{**usual, **fields})


def kept(request: Any, error: IsochroneError | None, now: int) -> GatewayFlightRecord:
    flights = Flights(4, GatewayFlightRecord)
    FlightRecording(flights).broken_off(request, error, b'{"id":"one"}', now)
    record: GatewayFlightRecord = flights.latest.newest()
    return record


def test_a_request_that_ends_in_the_waiting_room_waited() -> None:
    """It never went on: it still counts as arrived when it came."""
    error = DeadlineExceeded("too late")
    record = kept(request_of(waits_since=2 * MILLISECOND, deadline=80 * MILLISECOND), error, 81 * MILLISECOND)
    assert (record.waits_since, record.arrived, record.ended) == (2 * MILLISECOND, MILLISECOND, 81 * MILLISECOND)
    assert record.failure is not None
    assert record.failure[0] == error.code
    assert (record.opening, record.caller_ids, record.endpoint) == (b'{"id":"one"}', ("x-1",), "")


def test_a_miss_is_in_both_rings_once() -> None:
    flights = Flights(4, GatewayFlightRecord)
    recording = FlightRecording(flights)
    recording.broken_off(request_of(), DeadlineExceeded("too late"), b"first", MILLISECOND)
    recording.broken_off(request_of(), None, b"second", MILLISECOND)
    assert [record.opening for record in flights.records()] == [b"second", b"first"]
    assert [record.opening for record in flights.missed.latest()] == [b"first"]
    for _ in range(8):
        recording.broken_off(request_of(), None, b"other", MILLISECOND)
    assert [record.opening for record in flights.records()] == [*[b"other"] * 4, b"first"]


def test_a_record_that_a_fault_left_half_written_is_nobodys() -> None:
    flights = Flights(1, GatewayFlightRecord)
    recording = FlightRecording(flights)
    recording.broken_off(request_of(), None, b"first", MILLISECOND)
    faulty = request_of()
    del faulty.epoch
    recording.broken_off(faulty, None, b"faulty", MILLISECOND)
    assert [(record.opening, record.caller_ids) for record in flights.records()] == [(b"", ())]


def test_an_id_that_is_no_text_hides_itself_and_not_the_other_requests() -> None:
    assert id_of(b'{"id":"request-7"}') == "request-7"
    assert id_of(b'{"id":"\xff"}') == ""


def test_an_id_beside_json_that_is_nested_too_deeply_is_not_read() -> None:
    assert request_ids.of_http(b'{"a":%b,"id":"r"}' % (b"[" * 20 + b"]" * 20), -1) == "r"
    assert request_ids.of_http(b'{"a":%b,"id":"r"}' % (b"[" * 20_000 + b"]" * 20_000), -1) == ""
