"""The ring of the last records, against a list of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.observe.flights.ring import Flights, Ring


@given(st.integers(1, 40), st.integers(0, 200), st.integers(0, 200))
def test_a_ring_has_the_last_records(size: int, count: int, before: int) -> None:
    ring = Ring(size)
    for number in range(count):
        ring.add((number,))
    length = 1 << (size - 1).bit_length()
    kept = list(range(count))[-length:]
    assert [record[0] for _, record in ring.latest()] == kept[::-1]
    assert [number for number, _ in ring.latest()] == kept[::-1]
    assert len(ring) == len(kept)
    oldest = ring.oldest()
    assert (oldest[0] if oldest is not None else None) == (kept[0] if kept else None)
    assert [record[0] for record in ring.since(before)] == [number for number in kept if number >= before]


def test_misses_outlive_other_requests_and_come_once() -> None:
    flights = Flights(8)
    flights.add_missed(("missed",))
    assert list(flights.records()) == [("missed",)]
    for number in range(100):
        flights.latest.add((number,))
    records = list(flights.records())
    assert records[0] == (99,)
    assert records[-1] == ("missed",)
    assert len(records) == 9
