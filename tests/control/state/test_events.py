"""Events: keys that sort by time and never meet, reading in the order of writing, and how many are kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_records import KEYS, Records
from isochrone.control.state.events import KEEP, event, trimmed
from isochrone.control.state.records import EventRecord
from isochrone.store.base import Entry

TIMES = st.floats(1e6, 4e9)


@given(TIMES, TIMES, st.text("0123456789abcdef", min_size=8, max_size=8))
def test_keys_sort_by_time(one: float, other: float, unique: str) -> None:
    keys = [event(KEYS, EventRecord(at, "w", "x"), unique).key for at in (one, other)]
    if abs(one - other) > 1e-5:
        assert (keys[0] < keys[1]) == (one < other)


def test_two_of_one_instant_have_two_keys() -> None:
    record = EventRecord(1.0, "w", "x")
    assert event(KEYS, record, "a").key != event(KEYS, record, "b").key


@given(st.integers(0, 40), st.integers(0, 30))
def test_the_oldest_beyond_those_to_keep_go(count: int, keep: int) -> None:
    puts = [event(KEYS, EventRecord(float(at + 1), "w", "x"), "u") for at in range(count)]
    entries = {put.key: Entry(put.key, put.value, 1) for put in puts}
    entries[KEYS.epoch] = Entry(KEYS.epoch, b"{}", 1)
    gone = [delete.key for delete in trimmed(KEYS, entries, keep)]
    assert gone == [put.key for put in puts[: max(0, count - keep)]]


def test_so_many_go_at_once_that_every_store_takes_them() -> None:
    puts = [event(KEYS, EventRecord(float(at + 1), "w", "x"), "u") for at in range(KEEP + 300)]
    entries = {put.key: Entry(put.key, put.value, 1) for put in puts}
    assert len(trimmed(KEYS, entries)) == 100


def test_a_follower_reads_in_the_order_of_writing_whatever_the_clocks_say() -> None:
    records = Records(text=None)
    for at, what in ((50.0, "first"), (10.0, "second"), (30.0, "third")):
        put = event(KEYS, EventRecord(at, "w", what), "u")
        records.put(put.key, put.value)
    reported = list(records.view.events())
    assert [record.what for _, record in reported] == ["first", "second", "third"]
    assert [record.what for _, record in records.view.events(after=reported[0][0])] == ["second", "third"]
