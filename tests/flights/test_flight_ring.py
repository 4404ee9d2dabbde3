"""The rings of the last records, against a list of all of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.observe.flights.ring import RecordRing, Ring


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


class Numbered:
    number = -1


@given(st.integers(1, 40), st.integers(0, 200), st.integers(0, 200))
def test_records_that_are_written_over_are_the_last_ones(size: int, count: int, before: int) -> None:
    made: list[Numbered] = []

    def make() -> Numbered:
        made.append(Numbered())
        return made[-1]

    ring = RecordRing(size, make)
    for number in range(count):
        ring.next().number = number
    length = 1 << (size - 1).bit_length()
    kept = list(range(count))[-length:]
    assert [record.number for record in ring.latest()] == kept[::-1]
    assert len(ring) == len(made) == len(kept)
    oldest = ring.oldest()
    assert (oldest.number if oldest is not None else None) == (kept[0] if kept else None)
    assert [record.number for record in ring.since(before)] == [number for number in kept if number >= before]
