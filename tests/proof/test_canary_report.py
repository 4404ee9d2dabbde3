"""What a run of canaries is told to have come to: verdicts, shares, agents, and failures nobody asked for."""

from __future__ import annotations

from bench.control.canary_report import (
    EQUAL,
    FAILING,
    SLOWER,
    Rollout,
    Seen,
    as_json,
    line,
    seen,
    summary,
    unasked_failures,
)
from bench.control.history import ERROR, OK, Answer
from bench.control.trial_models import ON_PURPOSE

SECOND = 1_000_000_000
RECORD = {
    "state": "aborted",
    "changes": {"score": {"version": "2", "before": "1"}},
    "since": {"pending": 1001.0, "canary": 1002.0, "step 1": 1003.0, "step 2": 1013.0, "aborting": 1023.0},
}


def rolled_back(kind: str = SLOWER, reason: str = "the canary at 25% is worse: score: p95") -> Rollout:
    return Rollout.of(kind, RECORD, reason, asked_ns=SECOND, ended_ns=24 * SECOND, offset=1000 * SECOND)


def answer(agent: str, second: float, version: str = "1", error: str = "") -> Answer:
    start = int(second * SECOND)
    outcome = ERROR if error else OK
    version = "" if error else version
    return Answer(f"http-1/{agent}", "gw", "score", start, start + 1000, version, (), outcome, error)


def test_a_record_is_read_by_the_clients_clock() -> None:
    rollout = rolled_back()
    assert (rollout.steps_ns, rollout.tried_until_ns) == ((3 * SECOND, 13 * SECOND), 23 * SECOND)
    assert (rollout.version, rollout.seconds) == ("2", 20.0)


def test_only_a_verdict_of_the_rule_is_a_right_one() -> None:
    assert rolled_back(SLOWER).is_right
    assert rolled_back(FAILING).is_right
    assert not rolled_back(EQUAL).is_right
    assert not rolled_back(SLOWER, "not enough requests").is_right
    assert summary([rolled_back(), rolled_back(SLOWER, "other")]) == [
        "slower   rolled back 1 of 2; median 20 s, longest 20 s"
    ]


def test_shares_are_of_the_time_it_was_tried() -> None:
    history = [answer("a", 2.0), *(answer("a", 4 + number) for number in range(3)), answer("b", 5.0, "2")]
    found = seen(rolled_back(), history)
    assert found == Seen(4, 1, 0)
    assert "25.0% of 4 requests got it" in line(1, rolled_back(), found)
    assert as_json([rolled_back()], [found])[0]["right"] is True


def test_an_agent_may_change_between_steps_but_not_within_one() -> None:
    moved = [answer("a", 12.0), answer("a", 15.0, "2")]
    assert seen(rolled_back(), moved).unsettled == 0
    # Right after a commit gateways may differ.
    assert seen(rolled_back(), [answer("a", 13.1), *moved]).unsettled == 0
    assert seen(rolled_back(), [*moved, answer("a", 16.0)]).unsettled == 1


def test_failures_of_a_failing_version_are_expected_while_it_is_tried_and_no_others() -> None:
    expected = answer("a", 5.0, error=f"500 {ON_PURPOSE}")
    late = answer("a", 25.0, error=f"500 {ON_PURPOSE}")
    other = answer("a", 5.0, error="503 nobody")
    history = [expected, late, other, answer("a", 6.0)]
    assert unasked_failures(history, [rolled_back(FAILING)]) == [late, other]
    assert unasked_failures(history, [rolled_back(SLOWER)]) == [expected, late, other]
