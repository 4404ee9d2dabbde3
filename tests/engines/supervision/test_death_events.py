"""Deaths of processes as events: readable, and limited in number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.engines.base import Exit
from isochrone.engines.supervision.death_events import Limit, death_record
from isochrone.gateway.requests.suspected import ADVICE

WORKER = ProcessSpec("cpu-1", "worker", (), "cpu")


@pytest.mark.parametrize(
    ("pid", "status", "silent", "detail"),
    [
        (7, -9, 0, "process 7 was ended by signal 9 (SIGKILL); starting it again in 0.1 s"),
        (
            7,
            -11,
            0,
            f"process 7 was ended by signal 11 (SIGSEGV), which a model's code may have caused: {ADVICE}; "
            "starting it again in 0.1 s",
        ),
        (7, -50, 0, "process 7 was ended by signal 50; starting it again in 0.1 s"),
        (7, 1, 1, "process 7 ended with status 1; starting it again in 0.1 s; 1 more death since the last event"),
        (0, 127, 12, "it could not be started; starting it again in 0.1 s; 12 more deaths since the last event"),
    ],
)
def test_a_death_in_words(pid: int, status: int, silent: int, detail: str) -> None:
    record = death_record(Exit(WORKER, pid, status, 0.1), silent, 5.0)
    assert (record.at, record.who, record.what, record.about) == (5.0, "supervisor", "worker died", "cpu-1")
    assert record.detail == detail


def test_a_crash_loop_is_told_a_few_times_and_then_once_a_minute() -> None:
    limit = Limit()
    reported = {second: silent for second in range(1, 182) if (silent := limit.take(float(second))) is not None}
    assert list(reported)[:3] == [1, 2, 3]
    assert len(reported) == 6
    assert sum(reported.values()) + len(reported) <= 181


@given(st.lists(st.floats(0.01, 300.0), min_size=1, max_size=60))
def test_every_death_is_told_or_counted_with_a_later_one(pauses: list[float]) -> None:
    limit, now, reported, waiting = Limit(), 1000.0, 0, 0
    for pause in pauses:
        now += pause
        silent = limit.take(now)
        if silent is None:
            waiting += 1
        else:
            assert silent == waiting
            reported, waiting = reported + 1 + silent, 0
    assert reported + waiting == len(pauses)
