"""What ``bench.load_tool`` decides without a server: orders, cores, percentiles, and a calculated queue."""

from __future__ import annotations

import argparse
import os
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.load_tool.cores import on_cores, parse_cores
from bench.load_tool.lindley import percentile, sojourn_times
from bench.load_tool.options import spread
from bench.load_tool.rounds import orders
from bench.load_tool.tools import percentile_of


@given(st.integers(1, 6), st.integers(1, 4))
def test_every_tool_has_every_place_as_often(tools: int, times: int) -> None:
    names = [f"tool {number}" for number in range(tools)]
    found = list(orders(names, 2 * tools * times))
    assert all(sorted(order) == names for order in found)
    for place in range(tools):
        assert set(Counter(order[place] for order in found).values()) == {2 * times}


def test_two_tools_alternate() -> None:
    assert list(orders(["a", "b"], 4)) == [["a", "b"], ["b", "a"], ["b", "a"], ["a", "b"]]


def test_cores() -> None:
    mine = os.sched_getaffinity(0)
    first = min(mine)
    assert parse_cores(str(first)) == {first}
    with on_cores(frozenset([first])):
        assert os.sched_getaffinity(0) == {first}
    assert os.sched_getaffinity(0) == mine
    for wrong in ("", "a", "3-1", "1-", "100000"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected cores"):
            parse_cores(wrong)


def test_a_queue_by_hand() -> None:
    # The second comes while the first is served, the third when nobody is.
    assert sojourn_times([0, 3, 100], [10, 5, 7]) == [10, 12, 7]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.data())
def test_a_queue_by_its_server(gaps: list[int], data: st.DataObject) -> None:
    """The same by the instant at which the server is free: another way to calculate it."""
    services = data.draw(st.lists(st.integers(1, 60), min_size=len(gaps), max_size=len(gaps)))
    arrivals = [sum(gaps[: number + 1]) for number in range(len(gaps))]
    free, expected = 0, []
    for arrival, service in zip(arrivals, services, strict=True):
        free = max(free, arrival) + service
        expected.append(free - arrival)
    assert sojourn_times(arrivals, services) == expected


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.sampled_from([50.0, 99.0]))
def test_percentiles_of_counts_are_those_of_values(values: list[int], percent: float) -> None:
    assert percentile_of({float(value): count for value, count in Counter(values).items()}, percent) == percentile(
        values, percent
    )


def test_spread() -> None:
    assert spread([1.1, 0.9, 1.0]) == "1.000 [0.900–1.100]"
