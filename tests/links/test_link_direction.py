"""One direction of an emulated link: order, bandwidth, delay and a bounded queue."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.links.direction import Direction
from bench.links.settings import LinkSettings, SharedSettings

packets = st.lists(st.tuples(st.floats(0, 0.1), st.integers(20, 65_536)), min_size=1, max_size=60)
settings_of = st.builds(LinkSettings, st.floats(0, 0.1), st.floats(1e5, 1e9), st.floats(0, 0.05), st.floats(1e5, 1e7))


@given(packets, settings_of, st.floats(0, 1))
def test_packets_keep_their_order_and_never_beat_the_link(
    sent: list[tuple[float, int]], settings: LinkSettings, share: float
) -> None:
    direction = Direction(lambda: share)
    now = last = 0.0
    begin = sent[0][0]
    carried = 0
    for pause, size in sent:
        now += pause
        arrival = direction.arrival(now, size, settings)
        if arrival is None:
            continue
        carried += size
        assert arrival >= last
        assert arrival >= now + size * 8 / settings.bits_per_second + settings.delay - 1e-9
        assert arrival >= begin + carried * 8 / settings.bits_per_second + settings.delay - 1e-6
        last = arrival


@given(packets, settings_of)
def test_the_queue_is_bounded(sent: list[tuple[float, int]], settings: LinkSettings) -> None:
    direction = Direction(lambda: 0.0)
    for _, size in sent:
        arrival = direction.arrival(0.0, size, settings)
        if arrival is not None:
            waiting = (arrival - settings.delay) * settings.bits_per_second / 8 - size
            assert waiting + size <= settings.queue_bytes + size + 1


def test_packets_back_to_back_take_the_bandwidth() -> None:
    direction = Direction(lambda: 0.0)
    settings = LinkSettings(0.01, 8e6)
    arrivals = [direction.arrival(0.0, 1000, settings) for _ in range(10)]
    assert arrivals == pytest.approx([0.011 + number * 0.001 for number in range(10)])
    assert direction.arrival(5.0, 1000, settings) == pytest.approx(5.011)


def test_a_full_queue_drops_and_takes_packets_again() -> None:
    direction = Direction(lambda: 0.0)
    settings = LinkSettings(0.0, 8e6, buffer_bytes=2500)
    arrivals = [direction.arrival(0.0, 1000, settings) for _ in range(4)]
    assert [each is None for each in arrivals] == [False, False, True, True]
    assert direction.arrival(0.0015, 1000, settings) == pytest.approx(0.003)


def test_without_a_bandwidth_only_the_delay_counts() -> None:
    direction = Direction(lambda: 0.0)
    assert [direction.arrival(1.0, 10**6, LinkSettings(0.5)) for _ in range(3)] == [1.5] * 3


def test_settings_are_shared() -> None:
    shared = SharedSettings.make()
    try:
        before = shared.raw()
        given_ = LinkSettings(0.001, math.inf, 0.002, 3.0)
        shared.write(given_)
        assert shared.read() == given_
        assert shared.raw() != before
    finally:
        shared.close()
