"""Limits of a pool are reported when they begin, not at every reading."""

from __future__ import annotations

from isochrone.control.autoscaler.decision import Decision, Inputs, Reason
from isochrone.control.autoscaler.limit_reports import LimitReports


def reported(*steps: tuple[float, Reason], offered: float | None = 5.0) -> list[float]:
    """The instants at which something is reported."""
    reports = LimitReports()
    return [at for at, reason in steps if reports.is_news(Decision(3, reason, Inputs(offered)), at)]


def test_a_full_pool_is_news_once() -> None:
    assert reported(*((at * 2.0, Reason.MAXIMUM) for at in range(100))) == [0.0]


def test_a_pool_that_is_full_now_and_then_is_not_news_again() -> None:
    steps = [(at * 2.0, Reason.MAXIMUM if at % 3 else Reason.STEADY) for at in range(100)]
    assert reported(*steps) == [2.0]
    assert reported((0.0, Reason.COST), (30.0, Reason.STEADY), (61.0, Reason.COST)) == [0.0, 61.0]


def test_readings_that_are_missing_once_are_no_news() -> None:
    assert reported((0.0, Reason.STALE), (2.0, Reason.LOAD), (4.0, Reason.STALE), (6.0, Reason.STEADY)) == []
    assert reported(*((at * 2.0, Reason.STALE) for at in range(60))) == [10.0]


def test_an_idle_pool_needs_no_measured_capacity() -> None:
    steps = [(at * 2.0, Reason.UNMEASURED) for at in range(20)]
    assert reported(*steps, offered=0.0) == []
    assert reported(*steps) == [10.0]


def test_each_limit_is_reported_by_itself() -> None:
    assert reported((0.0, Reason.MAXIMUM), (2.0, Reason.COST), (4.0, Reason.MAXIMUM), (6.0, Reason.CLOCK)) == [
        0.0,
        2.0,
        6.0,
    ]
