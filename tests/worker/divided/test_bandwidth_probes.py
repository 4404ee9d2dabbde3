"""The size and the interval of probes of the bandwidth."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import SECOND
from isochrone.errors import NotFound
from isochrone.models.divisions import Link
from isochrone.worker.divided.probes import ProbeRequest, probe_interval, probe_size
from isochrone.worker.remote.link import LARGE_BYTES, LinkEstimator, UnderWay, is_another_link

INTERVAL = 10 * SECOND
#: From here on the smallest probe takes less than a hundredth of the link every 30 s.
LEAST_RATE = LARGE_BYTES / 30 * 100


@given(st.floats(LEAST_RATE, 1e12))
def test_probes_take_at_most_a_hundredth_of_the_link(rate: float) -> None:
    link = Link(0.01, rate)
    size, interval = probe_size(link, INTERVAL), probe_interval(link, INTERVAL)
    assert LARGE_BYTES <= size <= 1 << 20
    assert INTERVAL <= interval <= 3 * INTERVAL
    assert size / (interval / 1e9) <= 0.0101 * rate


@given(st.floats(1, LEAST_RATE))
def test_a_slower_link_is_probed_least_often(rate: float) -> None:
    link = Link(0.01, rate)
    assert (probe_size(link, INTERVAL), probe_interval(link, INTERVAL)) == (LARGE_BYTES, 3 * INTERVAL)


def test_a_link_too_fast_to_be_measured_gets_a_small_probe() -> None:
    link = Link(0.01, math.inf)
    assert (probe_size(link, INTERVAL), probe_interval(link, INTERVAL)) == (1 << 16, INTERVAL)


def probe(size: int) -> ProbeRequest:
    version: Any = SimpleNamespace(
        model_name="p", model_version="1", signature=SimpleNamespace(inputs=[SimpleNamespace(name="x")])
    )
    return ProbeRequest(version, size, SECOND)


def test_a_probe_that_takes_long_makes_the_next_one_smaller() -> None:
    request = probe(1 << 20)
    assert request.inputs["x"].nbytes == 1 << 20
    estimator = LinkEstimator(Link(0.01, math.inf))
    link = estimator.link(request.arrived + 3 * SECOND, [UnderWay(request.arrived, request.size, 0)])
    assert link.bytes_per_second == pytest.approx((1 << 20) / 3, rel=0.01)
    assert probe_size(link, INTERVAL) < 1 << 16


def test_probes_share_their_values() -> None:
    assert np.shares_memory(probe(LARGE_BYTES).inputs["x"], probe(1 << 20).inputs["x"])


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [(0.002, 0.06, True), (0.06, 0.002, True), (0.01, 0.015, False), (0.0001, 0.0004, False), (0.02, 0.045, False)],
)
def test_a_round_trip_that_has_doubled_is_another_link(before: float, now: float, changed: bool) -> None:
    assert is_another_link(Link(before, 1e6, 0.0), Link(now, 1e6, 0.02 if now == 0.045 else 0.0)) is changed


def test_a_failed_probe_is_over() -> None:
    request = probe(LARGE_BYTES)
    request.fail(NotFound("no such model"))
    assert request.over
