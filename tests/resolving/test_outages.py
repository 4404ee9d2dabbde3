"""Log lines of a fault that repeats: at its beginning, at another error, then ever more rarely."""

from __future__ import annotations

from isochrone.clock import SECOND
from isochrone.resolving.outages import Outage


def lines(outage: Outage, error: str, first: int, last: int) -> list[int]:
    """The seconds at which failures in every second are logged."""
    return [second for second in range(first, last) if outage.failed(error, second * SECOND)]


def test_a_line_at_the_beginning_and_then_ever_more_rarely() -> None:
    outage = Outage()
    assert lines(outage, "SERVFAIL", 1, 1000) == [1, 61, 181, 421, 901]
    assert outage.is_on
    assert outage.ended(1000 * SECOND)
    assert not outage.is_on
    assert not outage.ended(1001 * SECOND)
    day = 86_400
    assert len(lines(outage, "SERVFAIL", 2000, 2000 + day)) < 32


def test_another_error_gets_a_line_once() -> None:
    outage = Outage()
    assert outage.failed("SERVFAIL", 0)
    assert outage.failed("no answer", SECOND)
    assert not outage.failed("SERVFAIL", 2 * SECOND)
    assert not outage.failed("no answer", 3 * SECOND)


def test_errors_with_changing_text_are_bounded() -> None:
    outage = Outage()
    assert sum(outage.failed(f"query {number}", SECOND + number) for number in range(1000)) == 8


def test_a_fault_that_comes_and_goes() -> None:
    outage = Outage()
    began, ended = [], []
    for second in range(1, 120):
        now = second * SECOND
        if second % 2:
            began += [second] if outage.failed("SERVFAIL", now) else []
        else:
            ended += [second] if outage.ended(now) else []
    assert (began, ended) == ([1, 61], [2, 62])
    assert outage.failed("SERVFAIL", 500 * SECOND) or outage.failed("SERVFAIL", 501 * SECOND)


def test_after_a_quiet_minute_it_is_a_new_fault() -> None:
    outage = Outage()
    lines(outage, "SERVFAIL", 1, 1000)
    outage.ended(1000 * SECOND)
    assert lines(outage, "SERVFAIL", 1060, 1130) == [1060, 1120]
