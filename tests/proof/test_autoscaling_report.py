"""The report of a load that rises and falls, on histories worked by hand."""

from __future__ import annotations

import pytest

from bench.autoscaling.report import Phase, phase_report, worker_seconds
from bench.control.history import ERROR, OK, Answer

SECOND = 1_000_000_000


def answer(at: float, milliseconds: float, outcome: str = OK) -> Answer:
    started = int(at * SECOND)
    ended = started + int(milliseconds * 1e6)
    return Answer("a", "g", "solo", started, ended, outcome=outcome, error="" if outcome == OK else "no room")


def test_the_last_second_outside_the_slo_counts() -> None:
    answers = [answer(10 + each / 100, 20) for each in range(1000)]
    answers[150] = answer(11.5, 300)  # one of a hundred: within the p99
    answers[250], answers[251] = answer(12.5, 300), answer(12.51, 5, ERROR)
    found = phase_report(Phase("6×", 10 * SECOND, 20 * SECOND), answers, 0.25)
    assert (found.requests, found.late, found.refused) == (1000, 2, 1)
    assert found.settled_seconds == 3.0
    assert found.errors == {"no room": 1}
    assert found.p50_ms == pytest.approx(20)


def test_only_requests_that_began_in_the_phase_count() -> None:
    answers = [answer(9.9, 5000), answer(10.5, 20), answer(20.0, 5000)]
    found = phase_report(Phase("1×", 10 * SECOND, 20 * SECOND), answers, 0.25)
    assert (found.requests, found.late, found.settled_seconds) == (1, 0, 0.0)


def test_a_phase_without_requests() -> None:
    assert phase_report(Phase("1×", 0, SECOND), [], 0.25).requests == 0


def test_worker_seconds() -> None:
    assert worker_seconds([(0.0, 1), (10.0, 4), (20.0, 2)], 0.0, 30.0) == 10 + 40 + 20
    assert worker_seconds([(0.0, 1), (10.0, 4)], 5.0, 12.0) == 5 + 8
