"""The circuit breaker: its limits hold and its states follow each other as they must, over any schedule."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from isochrone.gateway.resilience.breaker import FIRST_ROUND, Breaker, BreakerRules, State

MS = 1_000_000
SECOND = 1_000 * MS
SMALL = BreakerRules(least_requests=4, trials=2, open_ns=SECOND, most_open_ns=3 * SECOND)


def state_of(breaker: Breaker) -> State:
    """Read through a call: a type checker takes an attribute it has seen compared for unchanged."""
    return breaker.state


def run(breaker: Breaker, outcomes: str, now: int) -> None:
    """One request after the other: ``.`` goes well, ``x`` fails."""
    for outcome in outcomes:
        assert breaker.refusal(now) == ""
        breaker.ended(breaker.sent(), outcome == "x", now)


def test_opens_at_the_ratio_and_not_before_there_are_enough() -> None:
    breaker = Breaker(SMALL)
    run(breaker, "xxx", 0)
    assert state_of(breaker) is State.CLOSED
    run(breaker, "x", 0)
    assert state_of(breaker) is State.OPEN
    assert "open" in breaker.refusal(SECOND - 1)

    breaker = Breaker(SMALL)
    run(breaker, "....x.x.x.x" * 20, 0)
    assert state_of(breaker) is State.CLOSED


def test_failures_that_left_the_window_do_not_count() -> None:
    breaker = Breaker(SMALL)
    run(breaker, "xxx", 0)
    run(breaker, "x", SMALL.window_ns * 2)
    assert state_of(breaker) is State.CLOSED


def test_half_open_lets_a_few_try_and_closes_when_all_went_well() -> None:
    breaker = Breaker(SMALL)
    run(breaker, "xxxx", 0)
    assert breaker.refusal(SECOND) == ""
    assert state_of(breaker) is State.HALF_OPEN
    first, second = breaker.sent(), breaker.sent()
    assert "half-open" in breaker.refusal(SECOND)
    breaker.ended(first, False, SECOND)
    assert state_of(breaker) is State.HALF_OPEN
    breaker.ended(second, False, SECOND)
    assert state_of(breaker) is State.CLOSED
    # The past is forgotten: it takes as many failures as at first, and stays open as long.
    run(breaker, "xxx", SECOND)
    assert state_of(breaker) is State.CLOSED
    run(breaker, "x", SECOND)
    assert breaker.refusal(2 * SECOND - 1) == "circuit breaker: open"
    assert breaker.refusal(2 * SECOND) == ""


def test_one_failed_trial_opens_it_for_twice_as_long_up_to_the_most() -> None:
    breaker, now = Breaker(SMALL), 0
    run(breaker, "xxxx", now)
    for open_s in (1, 2, 3, 3):
        assert breaker.refusal(now + open_s * SECOND - 1) != ""
        now += open_s * SECOND
        run(breaker, "x", now)
        assert state_of(breaker) is State.OPEN


def test_endings_of_an_earlier_state_do_not_decide() -> None:
    breaker = Breaker(SMALL)
    slow = breaker.sent()
    run(breaker, "xxxx", 0)
    assert breaker.refusal(SECOND) == ""
    trial = breaker.sent()
    breaker.ended(slow, True, SECOND)
    assert state_of(breaker) is State.HALF_OPEN
    breaker.dropped(trial)
    assert breaker.refusal(SECOND) == ""


def test_a_lost_endpoint_with_many_requests_opens_it_once() -> None:
    """The first failure makes the breaker; the other requests were sent before it existed."""
    breaker = Breaker(SMALL)
    for _ in range(120):
        breaker.ended(FIRST_ROUND, True, 0)
    assert "open" in breaker.refusal(SECOND - 1)
    assert breaker.refusal(SECOND) == ""


def test_failures_of_requests_sent_while_open_do_not_keep_it_open() -> None:
    """A sequence goes to its worker, whatever the breaker says."""
    breaker = Breaker(SMALL)
    run(breaker, "xxxx", 0)
    for at in range(120):
        breaker.ended(breaker.sent(), True, at * MS)
    assert breaker.refusal(SECOND) == ""


def test_switched_off_it_never_refuses() -> None:
    breaker = Breaker(BreakerRules(enabled=False))
    run(breaker, "x" * 100, 0)
    assert breaker.refusal(0) == ""


class BreakerMachine(RuleBasedStateMachine):
    """Requests begin, end, fail and are dropped in any order while time passes."""

    @initialize(trials=st.integers(1, 3), earlier=st.integers(0, 8))
    def start(self, trials: int, earlier: int) -> None:
        self.rules_in_force = BreakerRules(least_requests=3, trials=trials)
        self.breaker = Breaker(self.rules_in_force)
        self.now = SECOND
        #: The rounds of requests; of those that were sent before the breaker was made, too.
        self.under_way: list[int] = [FIRST_ROUND] * earlier
        self.seen = State.CLOSED
        self.trial_round = -1

    @rule(ms=st.sampled_from([1, 400, 1_100, 40_000]))
    def wait(self, ms: int) -> None:
        self.now += ms * MS

    @rule()
    def send(self) -> None:
        if self.breaker.refusal(self.now) == "":
            self.under_way.append(self.breaker.sent())
            if self.breaker.state is State.HALF_OPEN:
                self.trial_round = self.under_way[-1]

    @precondition(lambda self: self.breaker.state is State.OPEN)
    @rule()
    def send_regardless(self) -> None:
        self.under_way.append(self.breaker.sent())

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), failed=st.booleans())
    def end(self, data: st.DataObject, failed: bool) -> None:
        index = data.draw(st.integers(0, len(self.under_way) - 1))
        before = self.breaker.state
        lets_through = self.lets_through()
        self.breaker.ended(self.under_way.pop(index), failed, self.now)
        if before is State.OPEN:
            assert self.lets_through() == lets_through
        if self.breaker.state is State.OPEN and before is not State.OPEN:
            assert failed
            assert self.breaker.refusal(self.now) != ""

    @precondition(lambda self: self.under_way)
    @rule()
    def drop(self) -> None:
        before = self.breaker.state
        self.breaker.dropped(self.under_way.pop())
        assert self.breaker.state is before

    def lets_through(self) -> list[bool]:
        """Whether it would let a request through after each of these times."""
        return [
            not deepcopy(self.breaker).refusal(self.now + ms * MS) for ms in (0, 100, 500, 1000, 2000, 4000, 30_000)
        ]

    @invariant()
    def the_limits_hold_and_states_follow(self) -> None:
        breaker = self.breaker
        allowed = {
            State.CLOSED: {State.CLOSED, State.OPEN},
            State.OPEN: {State.OPEN, State.HALF_OPEN},
            State.HALF_OPEN: {State.HALF_OPEN, State.OPEN, State.CLOSED},
        }
        assert breaker.state in allowed[self.seen]
        self.seen = breaker.state
        if breaker.state is State.HALF_OPEN:
            assert sum(sent_in == self.trial_round for sent_in in self.under_way) <= self.rules_in_force.trials

    def teardown(self) -> None:
        """It never stays open for good: without requests in flight, the longest pause lets one through."""
        while self.under_way:
            self.breaker.dropped(self.under_way.pop())
        assert self.breaker.refusal(self.now + self.rules_in_force.most_open_ns) == ""


TestBreakerMachine = pytest.mark.interpreted(BreakerMachine.TestCase)
