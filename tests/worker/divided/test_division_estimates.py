"""The time of a division now, from its plan, measured stages and the link."""

from __future__ import annotations

import pytest

from isochrone.clock import MILLISECOND, SECOND
from isochrone.models.divisions import Division, Link
from isochrone.worker.divided.estimates import StageTimes, division_times

LINK = Link(0.004, 1_000_000.0, 0.001)
CUT = Division("cut-3", "m.cut-3", 2 * MILLISECOND, 5 * MILLISECOND, 9_000, 1_000, 0)


def test_a_division_takes_its_stages_the_round_trip_and_the_bytes() -> None:
    times = division_times(CUT, LINK, 2e6, 5e6)
    assert times.expected == pytest.approx(2e6 + 5e6 + 4e6 + 10e6)
    assert times.late == pytest.approx(times.expected + 2.33e6)


def test_requests_of_several_rows_send_more_bytes() -> None:
    assert division_times(CUT, LINK, 2e6, 5e6, 4.0).expected == pytest.approx(2e6 + 5e6 + 4e6 + 40e6)


def test_the_edge_uses_no_link() -> None:
    edge = Division("edge", "m.edge", 20, 0, 0, 0, 0)
    assert division_times(edge, LINK, 7e6, 0.0).late == 7e6


def stages() -> StageTimes:
    return StageTimes((("edge", 20 * MILLISECOND), ("cut-3", 2 * MILLISECOND)))


def test_without_requests_the_plan_counts() -> None:
    assert stages().look(5 * SECOND) == {"edge": 20e6, "cut-3": 2e6}


def test_measured_times_count_for_their_division_and_as_a_scale_for_others() -> None:
    times = stages()
    for number in range(9):
        # One of them far off, which the median ignores.
        times.add("edge", SECOND, 41 * MILLISECOND if number else 900 * MILLISECOND)
    found = times.look(SECOND + 1)
    assert found["edge"] == 41e6
    # (41 + 1) / (20 + 1) = 2, with 1 ms that does not scale.
    assert found["cut-3"] == pytest.approx(2 * 3e6 - 1e6)


def test_a_scale_fades_when_no_request_shows_it() -> None:
    times = stages()
    times.add("edge", SECOND, 41 * MILLISECOND)
    times.look(SECOND)
    later = [times.look(SECOND + seconds * SECOND)["edge"] for seconds in (0, 4, 31, 600)]
    assert later[0] == 41e6
    assert later == sorted(later, reverse=True)
    assert later[-1] == pytest.approx(20e6, rel=1e-3)


def test_a_short_stage_is_no_scale_for_long_ones() -> None:
    times = StageTimes((("edge", 20 * MILLISECOND), ("cut-1", MILLISECOND // 10)))
    times.add("cut-1", SECOND, MILLISECOND // 2)  # five times its plan
    assert times.look(SECOND)["edge"] < 30e6


def test_a_division_without_a_stage_here_is_ignored() -> None:
    times = stages()
    times.add("core", SECOND, 1)
    assert "core" not in times.look(SECOND)


def test_waits_are_no_scale() -> None:
    times = stages()
    for number in range(9):
        times.add("edge", SECOND + number, 120 * MILLISECOND, 100 * MILLISECOND)
    assert times.look(2 * SECOND) == {"edge": 120e6, "cut-3": pytest.approx(2e6)}
    # The queue is over, and nothing is left of it.
    assert times.look(5 * SECOND)["edge"] == pytest.approx(20e6)


def test_the_queue_of_the_moment_counts_before_requests_show_it() -> None:
    times = stages()
    assert times.look(SECOND, {"edge": 50 * MILLISECOND}) == {"edge": 70e6, "cut-3": 2e6}
    times.add("edge", SECOND, 25 * MILLISECOND)
    assert times.look(SECOND, {"edge": 50 * MILLISECOND})["edge"] == 70e6
    assert times.look(SECOND, {"edge": MILLISECOND})["edge"] == 25e6


def test_compression_adds_to_its_division_alone() -> None:
    zstd = Division("cut-3-zstd", "m.cut-3-zstd", 2 * MILLISECOND, 5 * MILLISECOND, 9_000, 1_000, 0, 3 * MILLISECOND)
    assert division_times(zstd, LINK, 2e6, 5e6).late == division_times(CUT, LINK, 2e6, 5e6).late + 3e6
