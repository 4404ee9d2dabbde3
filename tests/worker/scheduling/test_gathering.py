"""Whether batching pays: the cheaper way is found, kept, and found again when it changes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from isochrone.worker.scheduling.gathering import Gathering


class Load:
    """Requests that come so many at a time; each way costs what it costs, give or take."""

    def __init__(self, seed: int = 1, stalls: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.gathering = Gathering()
        self.stalls = stalls
        self.now = 10**12
        self.ways = {True: 0, False: 0}

    def send(self, requests: int, at_a_time: int, alone: float, batch: float, per_row: float) -> None:
        sent = 0
        while sent < requests:
            scatter = self.random.uniform(0.8, 1.3) + (100 if self.random.random() < self.stalls else 0)
            if at_a_time > 1 and self.gathering.pays(at_a_time, self.now):
                cost = (batch + per_row * at_a_time) * scatter
                self.now += int(cost) + at_a_time * 50_000  # the transport takes its time
                self.gathering.ran_together(at_a_time, int(cost))
                self.ways[True] += at_a_time
            else:
                self.now += int(alone * scatter * at_a_time) + at_a_time * 50_000
                self.gathering.ran_alone(int(alone * scatter))
                self.ways[False] += at_a_time
            sent += at_a_time


def test_a_model_whose_batches_cost_more_runs_each_request_at_once() -> None:
    load = Load()
    load.send(20_000, 12, alone=2_000, batch=20_000, per_row=3_000)
    assert load.ways[False] > 0.95 * 20_000


def test_a_model_whose_batches_cost_less_batches() -> None:
    load = Load()
    load.send(20_000, 12, alone=30_000, batch=40_000, per_row=4_000)
    assert load.ways[True] > 0.95 * 20_000


def test_requests_that_come_one_at_a_time_are_no_reason_to_change() -> None:
    load = Load()
    load.send(10_000, 1, alone=30_000, batch=40_000, per_row=4_000)
    load.ways = {True: 0, False: 0}
    load.send(20_000, 12, alone=30_000, batch=40_000, per_row=4_000)
    assert load.ways[True] > 0.8 * 20_000


def test_every_size_is_judged_by_itself() -> None:
    """Batches of two do not pay, batches of twenty do."""
    load = Load()
    load.send(10_000, 2, alone=20_000, batch=60_000, per_row=8_000)
    load.send(10_000, 20, alone=20_000, batch=60_000, per_row=8_000)
    for at_a_time, pays in ((2, False), (20, True), (2, False), (20, True)):
        load.ways = {True: 0, False: 0}
        load.send(1_000, at_a_time, alone=20_000, batch=60_000, per_row=8_000)
        assert load.ways[pays] > 0.9 * 1_000


def test_it_follows_a_change() -> None:
    """The model becomes slower, such as by other work on the machine: batches begin to pay."""
    load = Load()
    load.send(20_000, 12, alone=5_000, batch=60_000, per_row=3_000)
    assert load.ways[False] > 0.95 * 20_000
    load.send(40_000, 12, alone=40_000, batch=60_000, per_row=3_000)
    load.ways = {True: 0, False: 0}
    load.send(20_000, 12, alone=40_000, batch=60_000, per_row=3_000)
    assert load.ways[True] > 0.95 * 20_000


@given(
    st.integers(0, 1000),
    st.integers(2, 32),
    st.floats(1_000, 100_000),
    st.floats(1_000, 200_000),
    st.floats(500, 50_000),
    st.sampled_from([0.0, 0.01]),
)
def test_it_costs_little_more_than_the_better_way_alone(
    seed: int, at_a_time: int, alone: float, batch: float, per_row: float, stalls: float
) -> None:
    load = Load(seed, stalls)
    load.send(4_000, at_a_time, alone, batch, per_row)
    load.ways = {True: 0, False: 0}
    load.send(20_000, at_a_time, alone, batch, per_row)
    together = batch / at_a_time + per_row
    cost = (load.ways[True] * together + load.ways[False] * alone) / sum(load.ways.values())
    worse = max(alone, together)
    # A trial in 200 ms; and where the ways differ by half, the scatter and the price of waiting decide.
    assert cost <= 1.6 * min(alone, together) + 0.2 * worse
