"""Round trips of workers over the readings of a fleet: stable, of all gateways, and without those that are gone."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.placement.distances import INTERVAL, INTERVALS, LEAST_CHANGE, MARGIN
from isochrone.control.scaling.measured.worker_distances import WorkerDistances
from isochrone.control.scaling.reading.fleet_counters import FleetReading, GatewayCounts

#: Seconds between two readings.
PAUSE = 5.0


def reading(now: float, **gateways: Mapping[str, float] | None) -> FleetReading:
    """By gateway: its round trips by worker; None: it did not answer."""
    counts = {
        name: None if trips is None else GatewayCounts("1", {}, round_trips=trips) for name, trips in gateways.items()
    }
    return FleetReading(now, counts, {})


def test_the_first_reading_gives_a_distance() -> None:
    distances = WorkerDistances()
    assert distances.take(reading(0.0, g={}), 0.0) == {}
    assert distances.take(reading(1.0, g={"a": 0.002, "b": 0.03}), 1.0) == {"a": 0.002, "b": 0.03}


def test_one_far_gateway_does_not_count_for_all() -> None:
    trips = {"g": {"a": 0.001}, "h": {"a": 0.002}, "far": {"a": 0.2}}
    assert WorkerDistances().take(reading(0.0, **trips), 0.0) == {"a": 0.002}


def test_the_instant_of_a_page_counts_not_that_of_the_reading() -> None:
    distances = WorkerDistances()
    page = GatewayCounts("1", {}, instant=100.0, round_trips={"a": 0.001})
    assert distances.take(FleetReading(0.0, {"g": page}, {}), 100.0 + INTERVAL * INTERVALS) == {"a": 0.001}


@given(st.lists(st.floats(1.0, 1.15), min_size=1, max_size=60), st.floats(1e-5, 1.0))
def test_noise_changes_nothing(noise: list[float], trip: float) -> None:
    distances, seen = WorkerDistances(), set()
    for number, factor in enumerate([1.0, *noise]):
        # Each interval has two readings, and the first of a fleet is one of the short ones.
        now = number * PAUSE
        seen.add(distances.take(reading(now, g={"a": trip * factor}), now)["a"])
    assert seen == {trip}
    assert MARGIN > 0.15


def test_a_way_that_changes_is_followed_within_a_minute() -> None:
    distances, found = WorkerDistances(), {}
    for number in range(60):
        now = number * PAUSE
        found[now] = distances.take(reading(now, g={"a": 0.002 if now < 100 else 0.012}), now)["a"]
    assert found[100.0 + INTERVAL] == 0.002, "one interval may be noise"
    assert found[100.0 + 6 * INTERVAL] == 0.012
    assert sorted(set(found.values())) == [0.002, 0.012], "no value between them"
    assert LEAST_CHANGE < 0.01


def test_a_gateway_that_does_not_answer_keeps_its_figures_until_they_are_stale() -> None:
    distances = WorkerDistances()
    distances.take(reading(0.0, g={"a": 0.001}), 0.0)
    last = INTERVAL * INTERVALS
    assert distances.take(reading(last, g=None), last) == {"a": 0.001}
    assert distances.take(reading(last + 1, g=None), last + 1) == {}


def test_processes_that_are_gone_are_forgotten() -> None:
    distances = WorkerDistances()
    distances.take(reading(0.0, g={"a": 0.001, "b": 0.001}, h={"a": 0.003, "b": 0.003}), 0.0)
    assert distances.take(reading(1.0, h={"a": 0.003}), 1.0) == {"a": 0.003, "b": 0.003}, "gateway g has left"
    later = INTERVAL * INTERVALS + 2
    assert distances.take(reading(later, h={"a": 0.003}), later) == {"a": 0.003}, "worker b has left"
    # A gateway that has a worker's name is another process.
    assert distances.take(reading(later, h={"a": 0.003}, a={"a": 0.003}), later) == {"a": 0.003}


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("gh"),
            st.none() | st.dictionaries(st.sampled_from("abc"), st.floats(1e-6, 1.0)),
        ),
        max_size=30,
    )
)
def test_only_measured_workers_have_a_distance_and_it_is_within_what_was_measured(
    readings: list[dict[str, dict[str, float] | None]],
) -> None:
    distances = WorkerDistances()
    measured: dict[str, list[float]] = {}
    for number, gateways in enumerate(readings):
        for trips in gateways.values():
            for worker, seconds in (trips or {}).items():
                measured.setdefault(worker, []).append(seconds)
        now = number * PAUSE
        for worker, seconds in distances.take(reading(now, **gateways), now).items():
            assert min(measured[worker]) <= seconds <= max(measured[worker])
