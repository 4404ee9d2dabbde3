"""Figures out of a history: windows, tails and the pause of a switch."""

from __future__ import annotations

import pytest

from bench.control.history import ERROR, Answer
from bench.control.rollout_report import Quantiles, Switch, make_report

_MS = 10**6


def _answer(start_ms: float, latency_ms: float) -> Answer:
    return Answer("c", "g", "solo", int(start_ms * _MS), int((start_ms + latency_ms) * _MS), "1")


def _switch(cutover: str, asked: int, ended: int, held: float | None = None) -> Switch:
    middle = (asked + ended) // 2
    return Switch(cutover, asked * _MS, ended * _MS, middle * _MS, (middle + 2) * _MS, held)


def test_tails_and_pauses_are_of_their_own_windows() -> None:
    steady = [_answer(start, 10) for start in range(100, 1000, 10)]
    fast = [_answer(start, 11) for start in range(1000, 1200, 10)]
    later = [_answer(start, 10) for start in range(1300, 2000, 10)]
    strict = [_answer(start, 30 if start == 2090 else 12) for start in range(2000, 2200, 10)]
    failed = Answer("c", "g", "solo", 5, 6, outcome=ERROR, error="503")
    early = _answer(1, 5000)
    history = [*strict, failed, *steady, *fast, *later, early]
    switches = [_switch("fast", 1000, 1250), _switch("strict", 2000, 2200, 0.004)]
    report = make_report(history, switches, 3, [], 50 * _MS)
    assert (report.requests, report.failed, report.done, report.rollouts) == (len(history), 1, 2, 3)
    assert report.steady == pytest.approx((10, 10))
    assert report.during[0] == pytest.approx(11.5)
    assert report.during[1] > 20
    assert report.ratio == pytest.approx(report.during[1] / 10)
    assert report.held == Quantiles(1, 4.0, 4.0, 4.0)
    assert report.felt["strict"] is not None
    assert report.felt["strict"].worst == pytest.approx(20)
    assert report.felt["fast"] is not None
    assert report.felt["fast"].worst == pytest.approx(1)
    assert any("2 of 3 done" in line for line in report.lines())


def test_nothing_told_is_said_so() -> None:
    report = make_report([_answer(100, 1), _answer(500, 1)], [_switch("fast", 90, 110)], 1, [], 0)
    assert report.held is None
    assert "not reported" in "\n".join(report.lines())
