"""Recovery times out of what was seen: each part counted from the instant of the fault."""

from __future__ import annotations

from bench.control.fault_driver import Course, Struck
from bench.control.fault_plan import Fault
from bench.control.fault_report import reasons, recoveries, summary, table
from bench.control.history import ERROR, Answer
from bench.control.rollout_log import Asked

_SECOND = 10**9


def _answer(gateway: str, started: float, ended: float) -> Answer:
    return Answer("c", gateway, "solo", int(started * _SECOND), int(ended * _SECOND), "1")


def _course(ended: float | None) -> Course:
    fault = Fault("stop", "gateway", 0, "switching", 0.0, 2.0)
    struck = Struck(1, 7, fault, "gw-1", "switching", 10 * _SECOND, 12 * _SECOND, int(12.5 * _SECOND))
    seen = {"switching": 9 * _SECOND} | ({} if ended is None else {"done": int(ended * _SECOND)})
    return Course([struck], {7: Asked(8 * _SECOND, "r7", seen)})


def test_a_fault_is_over_when_all_three_are_well() -> None:
    history = [
        _answer("one", 9.9, 12.2),  # under way when it struck: proves nothing
        _answer("one", 10.1, 13.0),
        _answer("one", 12.3, 12.4),
        _answer("two", 10.0, 10.1),
    ]
    (row,) = recoveries(_course(14.0), history, ["one", "two"])
    assert (row.lasted, row.process, row.gateways, row.rollout_over) == (2.0, 2.5, 2.4, 4.0)
    assert row.whole == 4.0
    assert row.after == 2.0
    assert "| 1 | 7 | switching | stop | gw-1 | 2.00 s | 2.50 s | 2.40 s | 4.00 s | 4.00 s |" in table([row])
    assert "| stop | gw | 1 | 2.00 s | 2.00 s | 0 |" in summary([row])


def test_what_never_came_back_is_told() -> None:
    (row,) = recoveries(_course(None), [_answer("one", 11, 12)], ["one", "two"])
    assert row.gateways is None
    assert row.rollout_over is None
    assert row.whole is None
    assert "never" in table([row])
    assert "| stop | gw | 1 | – | – | 1 |" in summary([row])


def test_errors_are_counted_by_their_first_words() -> None:
    failed = Answer("c", "one", "solo", 1, 2, outcome=ERROR, error="connection: closed before the answer")
    assert reasons([failed, failed, _answer("one", 1, 2)]) == {"connection: closed before the answer": 2}
