"""Messages of a streamed gRPC body: however the bytes are cut, the same messages come out, and memory is asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import PayloadTooLarge, Unavailable
from isochrone.protocol.grpc.message_reader import MessageReader
from isochrone.wire.bodies.budget import SMALL

PATTERN = bytes(index * 11 % 253 for index in range(60_000))


class FakeStream:
    """As much of a stream as the reader uses."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self.limit = limit
        self.reserved = 0
        self.connection: Any = self
        self.listener: Any = self

    def reserve(self, size: int) -> bool:
        if self.reserved + size > self.limit:
            return False
        self.reserved += size
        return True

    def give_back(self, size: int) -> None:
        self.reserved -= size

    def no_memory(self) -> str:
        return "no memory"


def framed(payload: bytes, flag: int = 0) -> bytes:
    return bytes((flag,)) + len(payload).to_bytes(4, "big") + payload


@given(
    sizes=st.lists(st.one_of(st.integers(0, 20), st.sampled_from([16_384, 16_385, 60_000])), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 200_000), max_size=12),
    eager=st.booleans(),
)
def test_any_cuts_give_the_same_messages(sizes: list[int], cuts: list[int], eager: bool) -> None:
    stream = FakeStream()
    reader = MessageReader(100_000, stream)
    data = b"".join(framed(PATTERN[:size], index % 2) for index, size in enumerate(sizes))
    taken: list[tuple[int, bytes]] = []

    def take_all() -> None:
        while (message := reader.take()) is not None:
            taken.append((message[0], bytes(message[1])))
            held = sum(len(payload) for _, payload in taken)
            assert held - SMALL <= stream.reserved <= len(data) + SMALL

    start = 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        reader.feed(data[start:cut])
        start = cut
        if eager:
            take_all()
    take_all()
    assert taken == [(index % 2, PATTERN[:size]) for index, size in enumerate(sizes)]
    assert reader.is_empty
    for _, payload in taken:
        reader.give_back(len(payload))
    assert stream.reserved == 0


def test_small_messages_ask_for_no_memory() -> None:
    stream = FakeStream(limit=0)
    reader = MessageReader(1000, stream)
    for _ in range(100):
        reader.feed(framed(bytes(500)) * 10)
        while (message := reader.take()) is not None:
            reader.give_back(len(message[1]))


def test_bytes_that_nobody_takes_and_messages_that_nobody_gives_back_are_held() -> None:
    stream = FakeStream(limit=100_000)
    reader = MessageReader(1000, stream)
    for _ in range(60):
        reader.feed(framed(bytes(995)))
    assert 60_000 - SMALL <= stream.reserved <= 60_000
    for _ in range(60):
        assert reader.take() is not None
    assert reader.take() is None
    assert 60_000 - SMALL <= stream.reserved <= 60_000
    reader.feed(bytes(90_000))
    with pytest.raises(Unavailable, match="no memory"):
        reader.take()


@given(
    sizes=st.lists(st.one_of(st.integers(0, 20), st.sampled_from([1000, 16_384, 16_385, 60_000])), max_size=30),
    steps=st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 60_000), st.integers(0, 8)), min_size=1),
)
def test_whatever_memory_is_left_each_message_is_given_or_refused_in_its_place(
    sizes: list[int], steps: list[tuple[int, int, int]]
) -> None:
    stream = FakeStream()
    reader = MessageReader(100_000, stream)
    data = b"".join(framed(PATTERN[:size], index % 2) for index, size in enumerate(sizes))
    taken: list[tuple[int, bytes] | None] = []
    kept: list[int] = []

    def take(count: int) -> bool:
        for _ in range(count):
            try:
                message = reader.take()
            except Unavailable:
                taken.append(None)
                continue
            if message is None:
                return False
            taken.append((message[0], bytes(message[1])))
            kept.append(len(message[1]))
        return True

    position = index = 0
    while position < len(data):
        # Bytes that come, what others leave, and how many messages the consumer has room for.
        size, stream.limit, count = steps[index % len(steps)]
        reader.feed(data[position : position + size])
        position += size
        index += 1
        take(count)
        if kept:
            reader.give_back(kept.pop(0))
    while take(1):
        pass
    assert reader.is_empty
    assert len(taken) == len(sizes)
    for number, (message, size) in enumerate(zip(taken, sizes, strict=True)):
        assert message is None or message == (number % 2, PATTERN[:size])
    for size in kept:
        reader.give_back(size)
    assert stream.reserved == 0
    # With memory again, the next one is given.
    stream.limit = 1 << 30
    reader.feed(framed(PATTERN))
    assert reader.take() == (0, PATTERN)


def test_messages_that_are_dropped_hold_no_memory_and_those_before_them_stay() -> None:
    stream = FakeStream(limit=50_000)
    reader = MessageReader(100_000, stream)
    for _ in range(200):
        reader.feed(framed(bytes(995)))
    assert stream.reserved <= 50_000
    given, refused = [], 0
    while not reader.is_empty:
        try:
            given.append(reader.take())
        except Unavailable:
            refused += 1
    assert 50 <= len(given) <= 67
    assert given == [(0, bytes(995))] * (200 - refused)
    assert reader.take() is None
    # One that ends within what was dropped is not whole.
    reader.feed(framed(bytes(60_000))[:100])
    with pytest.raises(Unavailable):
        reader.take()
    assert not reader.is_empty
    reader.feed(framed(bytes(60_000))[100:] + framed(b"next"))
    assert reader.take() == (0, b"next")


def test_what_is_not_taken_stays() -> None:
    reader = MessageReader(1000, FakeStream())
    reader.feed(framed(b"one") + framed(b"two")[:6])
    assert reader.take() == (0, b"one")
    assert not reader.is_empty
    assert reader.take() is None
    reader.feed(framed(b"two")[6:])
    assert reader.take() == (0, b"two")
    assert reader.is_empty


def test_a_large_message_is_refused_when_it_is_announced() -> None:
    reader = MessageReader(1 << 20, FakeStream(limit=20_000))
    reader.feed(framed(bytes(30_000))[:100])
    with pytest.raises(Unavailable, match="no memory"):
        reader.take()
    reader = MessageReader(1000, FakeStream())
    reader.feed(framed(bytes(1001))[:5])
    with pytest.raises(PayloadTooLarge, match="max_body_bytes is 1000"):
        reader.take()
