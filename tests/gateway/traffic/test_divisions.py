"""Divisions: the first of the order that meets the deadline, and back again without swinging, by worker."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import MILLISECOND, NEVER, SECOND
from isochrone.gateway.traffic import divisions as reasons
from isochrone.gateway.traffic.divisions import Choice, DivisionRules, Divisions, WorkerDivisions
from isochrone.protocol.headers.divisions import DIVISION_KINDS

RULES = DivisionRules(("edge", "split", "core"))


def worker(rules: DivisionRules = RULES) -> WorkerDivisions:
    return WorkerDivisions(Divisions(rules))


def choose(
    there: WorkerDivisions, figures_ms: tuple[float, ...], deadline_ms: float, now: int = SECOND, way_ms: float = 0
) -> Choice:
    """``figures_ms``: of edge, split and core; 0: not offered."""
    figures = [int(ms * MILLISECOND) for ms in figures_ms]
    return there.choose(figures, int(way_ms * MILLISECOND), now + int(deadline_ms * MILLISECOND), now)


@pytest.mark.parametrize(
    ("figures", "deadline", "chosen", "reason"),
    [
        ((20, 10, 15), 30, "edge", reasons.IN_TIME),
        ((40, 20, 15), 30, "split", reasons.IN_TIME),
        ((40, 35, 25), 30, "core", reasons.IN_TIME),
        # The margin is 0.2 ms.
        ((29.9, 29.8, 1), 30, "split", reasons.IN_TIME),
        ((40, 50, 35), 30, "core", reasons.LATE),
        ((40, 35, 35), 30, "split", reasons.LATE),
        ((5, 4, 3), -1, "core", reasons.LATE),
        ((0, 20, 15), 30, "split", reasons.IN_TIME),
        ((40, 0, 50), 30, "edge", reasons.LATE),
    ],
)
def test_the_first_of_the_order_in_time_or_else_the_least_late(
    figures: tuple[float, ...], deadline: float, chosen: str, reason: str
) -> None:
    choice = choose(worker(), figures, deadline)
    assert (choice.division, choice.reason, choice.is_sent) == (chosen, reason, True)
    assert choice.time_left_ns == int(deadline * MILLISECOND)
    assert choice.expected_ns == tuple(int(ms * MILLISECOND) for ms in figures)


def test_the_order_is_the_operators() -> None:
    there = worker(DivisionRules(("core", "edge")))
    assert choose(there, (1, 2, 20), 30).division == "core"
    assert choose(there, (1, 2, 40), 30).division == "edge"
    assert choose(there, (60, 2, 50), 30).division == "core", "split is not in the order"


def test_without_a_deadline_the_first_that_is_offered() -> None:
    choice = worker().choose((0, 10**15, 1), 0, NEVER, SECOND)
    assert (choice.division, choice.reason, choice.time_left_ns) == ("split", reasons.NO_DEADLINE, NEVER)


def test_a_worker_that_offers_none_of_the_order_decides() -> None:
    choice = choose(worker(DivisionRules(("edge",))), (0, 5, 5), 30)
    assert (choice.division, choice.reason, choice.is_sent) == ("", reasons.NOT_OFFERED, False)


def test_the_way_to_the_worker_counts() -> None:
    assert choose(worker(), (20, 10, 15), 30).division == "edge"
    choice = choose(worker(), (20, 10, 15), 30, way_ms=12)
    assert choice.division == "split"
    assert choice.expected_ns == (32 * MILLISECOND, 22 * MILLISECOND, 27 * MILLISECOND)


def test_comes_back_only_well_within_the_deadline() -> None:
    there = worker()
    assert choose(there, (50, 5, 5), 40).division == "split"
    later = SECOND + RULES.hold_ns
    choice = choose(there, (35, 5, 5), 40, later)
    assert (choice.division, choice.reason) == ("split", reasons.NOT_BACK)
    assert choose(there, (25, 5, 5), 40, later).division == "edge"
    assert choose(there, (35, 5, 5), 40, later).division == "edge", "it is not left any more"


def test_a_kind_that_missed_a_moment_ago_counts_as_left_even_when_it_is_used() -> None:
    there = worker()
    assert choose(there, (50, 5, 5), 40).division == "split"
    soon = SECOND + RULES.hold_ns - 1
    assert choose(there, (25, 5, 5), 40, soon).division == "edge"
    assert choose(there, (35, 5, 5), 40, soon).division == "split"


def test_a_wavering_kind_is_left_once() -> None:
    """The edge is at 95 to 105 % of what the deadline allows: without hysteresis every other request would move."""
    there, moves, last = worker(), 0, "edge"
    for step in range(1000):
        kind = choose(there, (38 if step % 2 else 42, 5, 5), 40, SECOND + step * MILLISECOND).division
        moves += kind != last
        last = kind
    assert moves == 1


def test_in_time_but_not_by_enough_is_better_than_late() -> None:
    there = worker()
    choose(there, (50, 5, 5), 40)
    choice = choose(there, (35, 500, 500), 40)
    assert (choice.division, choice.reason) == ("edge", reasons.JUST_IN_TIME)


def test_a_deadline_that_no_kind_can_meet_leaves_none() -> None:
    there = worker()
    choose(there, (50, 20, 30), 10)
    assert choose(there, (9, 8, 8), 10).division == "edge"


def test_a_kind_that_one_worker_left_is_used_on_another() -> None:
    divisions = Divisions(RULES)
    here, there = WorkerDivisions(divisions), WorkerDivisions(divisions)
    assert choose(here, (50, 5, 5), 40).division == "split"
    assert choose(there, (35, 5, 5), 40).division == "edge"
    assert choose(here, (35, 5, 5), 40).division == "split"


def test_the_least_that_a_request_may_take() -> None:
    assert Divisions(RULES).least_ns((30, 20, 10)) == 10
    assert Divisions(DivisionRules(("edge", "split"))).least_ns((30, 20, 10)) == 20
    assert Divisions(RULES).least_ns((30, 0, 0)) == 30
    assert Divisions(DivisionRules(("core",))).least_ns((30, 20, 0)) == 0


def test_a_kind_that_was_left_is_probed_ever_less_often_while_it_stays_late() -> None:
    there, probes = worker(), []
    for step in range(2000):
        choice = choose(there, (50, 5, 5), 40, SECOND + step * 100 * MILLISECOND)
        if choice.reason == reasons.PROBED:
            assert choice.division == "edge"
            probes.append(step / 10)
    # 1 s after it was left, then after 1, 1, 2, 4, ... at most 32 s.
    gaps = [after - before for before, after in pairwise([0.0, *probes])]
    assert gaps == pytest.approx([1, 1, 2, 4, 8, 16, 32, 32, 32, 32, 32])


def test_a_probe_that_helps_is_followed_by_another_soon() -> None:
    there, now = worker(), SECOND
    figure = 500.0
    choose(there, (figure, 5, 5), 40, now)
    while now < 100 * SECOND:
        now += 100 * MILLISECOND
        choice = choose(there, (figure, 5, 5), 40, now)
        if choice.reason == reasons.PROBED:
            figure /= 2
        elif choice.division == "edge":
            break
    assert now <= 7 * SECOND, "from 500 ms to 28 ms: five probes"


def test_a_kind_that_was_not_left_is_not_probed() -> None:
    there = worker()
    for step in range(100):
        assert choose(there, (50, 60, 70), 10, SECOND + step * SECOND).reason == reasons.LATE


class TestSilentKinds:
    """Good figures of a kind that has stopped answering."""

    FIGURES = (30, 0, 10)
    ORDER = DivisionRules(("core", "edge"))

    def begin(self, there: WorkerDivisions, attempt: str, now: int, deadline_ms: float = 5000) -> Choice:
        choice = choose(there, self.FIGURES, deadline_ms, now)
        there.began(attempt, choice, now)
        return choice

    def test_an_overdue_attempt_moves_the_next_ones(self) -> None:
        there = worker(self.ORDER)
        assert self.begin(there, "a", SECOND).division == "core"
        assert choose(there, self.FIGURES, 5000, SECOND + 50 * MILLISECOND).division == "core"
        choice = choose(there, self.FIGURES, 5000, SECOND + 51 * MILLISECOND)
        assert (choice.division, choice.reason) == ("edge", reasons.SILENT)

    def test_without_a_deadline_too(self) -> None:
        there = worker(self.ORDER)
        self.begin(there, "a", SECOND)
        figures = [ms * MILLISECOND for ms in self.FIGURES]
        assert there.choose(figures, 0, NEVER, SECOND + SECOND // 2).division == "edge"

    def test_a_slow_kind_has_twice_its_late_time(self) -> None:
        there, figures = worker(self.ORDER), (300, 0, 100)
        there.began("a", choose(there, figures, 5000), SECOND)
        assert choose(there, figures, 5000, SECOND + 200 * MILLISECOND).division == "core"
        assert choose(there, figures, 5000, SECOND + 201 * MILLISECOND).division == "edge"

    @pytest.mark.parametrize("answered", [False, True])
    def test_it_stays_left_when_the_attempt_ends_late(self, answered: bool) -> None:
        """Its answer may be another division's."""
        there = worker(self.ORDER)
        self.begin(there, "a", SECOND)
        there.ended("a", SECOND + 90 * MILLISECOND, answered=answered)
        assert choose(there, self.FIGURES, 5000, SECOND + 91 * MILLISECOND).division == "edge"

    def test_a_prompt_answer_ends_it(self) -> None:
        there = worker(self.ORDER)
        self.begin(there, "a", SECOND)
        self.begin(there, "b", SECOND + 45 * MILLISECOND)
        there.ended("a", SECOND + 60 * MILLISECOND, answered=True)
        assert choose(there, self.FIGURES, 5000, SECOND + 60 * MILLISECOND).division == "edge"
        there.ended("b", SECOND + 61 * MILLISECOND, answered=True)
        assert choose(there, self.FIGURES, 5000, SECOND + 62 * MILLISECOND).division == "core"

    def test_a_probe_finds_out(self) -> None:
        there, now = worker(self.ORDER), SECOND
        self.begin(there, "a", now)
        now += 100 * MILLISECOND
        there.ended("a", now, answered=False)
        assert self.begin(there, "b", now).division == "edge"
        now += self.ORDER.probe_every_ns
        choice = self.begin(there, "c", now)
        assert (choice.division, choice.reason) == ("core", reasons.PROBED)
        there.ended("c", now + 10 * MILLISECOND, answered=True)
        assert self.begin(there, "d", now + 10 * MILLISECOND).reason == reasons.IN_TIME

    def test_an_attempt_that_was_given_up_early_says_nothing(self) -> None:
        there = worker(self.ORDER)
        self.begin(there, "a", SECOND)
        there.ended("a", SECOND + 5 * MILLISECOND, answered=False)
        assert choose(there, self.FIGURES, 5000, SECOND + SECOND).division == "core"

    def test_the_worker_that_offers_it_no_more_knows_better(self) -> None:
        there = worker(self.ORDER)
        self.begin(there, "a", SECOND)
        there.ended("a", 2 * SECOND, answered=False)
        assert choose(there, (30, 0, 0), 5000, 2 * SECOND).division == "edge"
        assert choose(there, self.FIGURES, 5000, 2 * SECOND).division == "core"


FIGURES = st.tuples(*[st.one_of(st.just(0), st.integers(1, 100 * MILLISECOND))] * 3)
ORDERS = st.permutations(DIVISION_KINDS).flatmap(lambda kinds: st.integers(1, 3).map(lambda n: tuple(kinds[:n])))


@given(
    order=ORDERS,
    margin=st.integers(0, 5 * MILLISECOND),
    way=st.integers(0, 10 * MILLISECOND),
    events=st.lists(
        st.tuples(
            FIGURES,
            st.one_of(st.just(NEVER), st.integers(-MILLISECOND, 120 * MILLISECOND)),
            st.integers(0, SECOND),
        ),
        min_size=1,
        max_size=12,
    ),
)
def test_of_any_history(
    order: tuple[str, ...], margin: int, way: int, events: list[tuple[tuple[int, ...], int, int]]
) -> None:
    there = worker(DivisionRules(order, margin))
    now = SECOND
    fresh = True
    for figures, time, passed in events:
        now += passed
        takes = {
            kind: figure + way for kind, figure in zip(DIVISION_KINDS, figures, strict=True) if figure and kind in order
        }
        deadline = time if time == NEVER else now + time
        choice = there.choose(figures, way, deadline, now)
        if not takes:
            assert not choice.is_sent
            continue
        in_time = [kind for kind in order if kind in takes and takes[kind] <= time - margin]
        # A kind that is offered is chosen, in time if one is in time, otherwise the least late; or one that was left.
        assert choice.is_sent
        if choice.reason == reasons.PROBED:
            assert choice.division in takes
            assert not fresh
            continue
        assert choice.division in (in_time or takes)
        if not in_time:
            assert takes[choice.division] == min(takes.values())
            assert choice.reason == reasons.LATE
        elif choice.division != in_time[0]:
            # Only because a kind before it was left, and is not well within the time.
            assert not fresh
            assert choice.reason == reasons.NOT_BACK
            skipped = in_time[: in_time.index(choice.division)]
            assert all(takes[kind] > RULES.return_share * (time - margin) for kind in skipped)
        fresh = fresh and not (in_time and choice.division != next(kind for kind in order if kind in takes))
