"""Links from exchanges, and the choice of an option: within the deadline, at the least cost, never a hidden miss."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.errors import InvalidArgument
from isochrone.models.divisions import Link
from isochrone.optimize.partitioning.choices import Option, Prices, choose, contenders
from isochrone.optimize.partitioning.cuts import Cut
from isochrone.optimize.partitioning.links import Exchange, link_of
from isochrone.optimize.partitioning.work import worth_measuring

EDGE = Option("edge", 0.030, 0.0, 0, 0)
CORE = Option("core", 0.0, 0.006, 600_000, 40)
SPLIT = Option("b2", 0.008, 0.006, 50_000, 40)
OPTIONS = (EDGE, CORE, SPLIT)

options = st.builds(
    Option,
    st.text(min_size=1, max_size=5),
    st.floats(0, 0.1),
    st.floats(0, 0.1),
    st.integers(0, 10**6),
    st.integers(0, 10**4),
    st.floats(0, 0.1),
)
links = st.builds(Link, st.floats(0, 0.1), st.floats(1e4, 1e9), st.floats(0, 0.01))


def test_the_seeds_example() -> None:
    """8 ms on the edge, 4 ms on the way and 6 ms in the core are 18 of 20 ms."""
    link = Link(0.002, 25_020_000)
    chosen = choose(OPTIONS, link, 0.020)
    assert chosen.option is SPLIT
    assert chosen.meets
    assert SPLIT.seconds(link) == pytest.approx(0.018, rel=0.01)


@pytest.mark.parametrize(
    ("link", "name"),
    [
        (Link(0.001, 125e6), "core"),
        (Link(0.005, 12.5e6), "b2"),
        (Link(0.100, 125e6), "edge"),
        (Link(0.001, 125e3), "edge"),
    ],
)
def test_each_link_has_its_option(link: Link, name: str) -> None:
    assert choose(OPTIONS, link).option.name == name


def test_a_deadline_that_nothing_meets_names_the_closest() -> None:
    chosen = choose(OPTIONS, Link(0.002, 25e6), 0.010)
    assert not chosen.meets
    assert chosen.option is SPLIT
    assert chosen.reason == "no option meets 10.00 ms; the closest misses it by 8.00 ms"


def test_prices_choose_among_those_that_meet_the_deadline() -> None:
    link = Link(0.001, 125e6)
    prices = Prices(core_second=1.0, gigabyte=1.0)
    assert choose(OPTIONS, link, 0.050, prices).option is EDGE
    assert choose(OPTIONS, link, 0.020, prices).option is SPLIT
    assert choose(OPTIONS, link, 0.020, Prices(edge_second=1.0)).option is CORE


def test_jitter_counts_against_the_link() -> None:
    chosen = choose(OPTIONS, Link(0.002, 25e6, jitter=0.02))
    assert chosen.option is EDGE


def test_an_error_that_is_not_allowed_is_no_option() -> None:
    lossy = Option("b2 int8", 0.008, 0.006, 12_500, 40, error=0.02)
    link = Link(0.005, 12.5e6)
    assert choose([*OPTIONS, lossy], link).option is SPLIT
    assert choose([*OPTIONS, lossy], link, most_error=0.05).option is lossy
    with pytest.raises(InvalidArgument, match=r"by more than 1\.000%"):
        choose([lossy], link, most_error=0.01)


@given(st.lists(options, min_size=1, max_size=8), links, st.floats(1e-4, 1.0))
def test_no_allowed_option_is_better(found: list[Option], link: Link, deadline: float) -> None:
    chosen = choose(found, link, deadline, None, 1.0)
    least = min(option.late_seconds(link) for option in found)
    assert chosen.option.late_seconds(link) == least
    assert chosen.meets == (least <= deadline)
    prices = Prices(1.0, 2.0, 3.0)
    cheapest = choose(found, link, deadline, prices, 1.0)
    if cheapest.meets:
        meeting = [option for option in found if option.late_seconds(link) <= deadline]
        assert prices.of(cheapest.option) == min(map(prices.of, meeting))


@given(st.floats(1e-4, 0.1), st.floats(1e5, 1e9), st.integers(0, 2**32))
def test_a_link_is_found_from_exchanges_with_single_delays(round_trip: float, rate: float, seed: int) -> None:
    source = random.Random(seed)
    exchanges = []
    for size in (64, 1_000_000):
        for number in range(21):
            delay = source.uniform(0.1, 5) if number % 5 == 0 else 0.0
            exchanges.append(Exchange(size, round_trip + size / rate + delay))
    found = link_of(exchanges)
    assert found.round_trip == pytest.approx(round_trip, rel=0.01)
    assert found.bytes_per_second == pytest.approx(rate, rel=0.05)
    assert found.jitter == pytest.approx(0, abs=1e-9)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-4, 1.0)), min_size=2, max_size=12))
def test_more_bytes_are_never_predicted_sooner(found: list[tuple[int, float]]) -> None:
    if len({size for size, _ in found}) < 2:
        return
    link = link_of([Exchange(size, seconds) for size, seconds in found])
    sizes = sorted({0, 1, *(size for size, _ in found), *(size // 2 for size, _ in found), 2 * 10**6})
    times = [link.seconds(size, 0) for size in sizes]
    assert all(after >= before - 1e-12 for before, after in pairwise(times))
    assert link.late_seconds(1000, 10) >= link.seconds(1000, 10)
    assert link.seconds(0, 0) == link.round_trip


def test_sizes_between_measured_ones_lie_on_the_line_between_them() -> None:
    """A long round trip with much bandwidth: a window of 64 kB, and another round trip for what is above."""
    times = {64: 0.050, 4096: 0.050, 65_536: 0.051, 262_144: 0.101}
    link = link_of([Exchange(size, seconds) for size, seconds in times.items() for _ in range(5)])
    assert link.points
    for size, seconds in times.items():
        assert link.seconds(size, 0) == pytest.approx(seconds)
    assert link.seconds(30_000, 0) == pytest.approx(0.0505, abs=2e-4)
    assert link.seconds(163_840, 0) == pytest.approx(0.076)
    assert link.seconds(524_288, 0) > 0.101


def test_contenders_are_close_to_the_fastest() -> None:
    link = Link(0.005, 12.5e6)
    assert contenders(OPTIONS, link, 1.25, 4) == []
    close = Option("b3", 0.009, 0.006, 50_000, 40)
    assert contenders([*OPTIONS, close], link, 1.25, 4) == [SPLIT, close]
    assert contenders([*OPTIONS, close], link, 100.0, 3) == [SPLIT, close, EDGE]
    assert close.lower(Option("b3", 0.010, 0.005, 50_000, 40)) == Option("b3", 0.009, 0.005, 50_000, 40)


def test_exchanges_of_one_size_tell_no_bandwidth() -> None:
    with pytest.raises(InvalidArgument, match="at least two sizes"):
        link_of([Exchange(64, 0.001)] * 5)


def test_cuts_worth_measuring_are_spread_over_the_work_and_cheap_to_cross() -> None:
    cuts = [Cut((1 << number) - 1, (f"t{number}",)) for number in range(1, 40)]
    work = [1.0] * 40
    sizes = {f"t{number}": 1000 - 10 * number + (500 if number % 2 else 0) for number in range(1, 40)}
    kept = worth_measuring(cuts, work, sizes, 8)
    assert len(kept) == 8
    assert [cut.first for cut in kept] == sorted(cut.first for cut in kept)
    # Each eighth of the work has its cheapest cut.
    for segment in range(8):
        inside = [cut for cut in cuts if 5 * segment <= cut.first.bit_length() < 5 * segment + 5]
        assert min(inside, key=lambda cut: sizes[cut.crossing[0]]) in kept
    assert worth_measuring(cuts, work, sizes, 100) == cuts
