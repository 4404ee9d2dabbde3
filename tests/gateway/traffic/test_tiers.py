"""Tiers: the nearest that meets the deadline, spill-over when it cannot, and back again without swinging."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isochrone.clock import NEVER
from isochrone.gateway.traffic.tiers import NOBODY, UNKNOWN, TierRules, Tiers

MS = 1_000_000
SECOND = 1_000 * MS
RULES = TierRules(("edge", "regional", "core"), {"regional": 10 * MS, "core": 40 * MS})
EDGE, REGIONAL, CORE = 0, 1, 2


def choose(tiers: Tiers, expected_ms: list[float], deadline_ms: float, now: int = SECOND) -> int:
    expected = [ms if ms in (NOBODY, UNKNOWN) else ms * MS for ms in expected_ms]
    return tiers.choose(expected, now + int(deadline_ms * MS), now)


def test_stays_in_the_nearest_that_meets_the_deadline() -> None:
    tiers = Tiers(RULES)
    assert choose(tiers, [20, 1, 1], 30) == EDGE
    assert tiers.choose([9e12, 1.0, 1.0], NEVER, SECOND) == EDGE
    assert tiers.spilled == 0


def test_spills_to_the_next_that_can_with_the_way_counted() -> None:
    assert choose(Tiers(RULES), [50, 15, 1], 30) == REGIONAL
    # 25 ms there and 10 ms on the way are too many; so are 40 ms of way alone.
    tiers = Tiers(RULES)
    assert choose(tiers, [50, 25, 1], 45) == REGIONAL
    assert choose(tiers, [50, 38, 1], 45) == CORE
    assert tiers.spilled == 2


def test_a_tier_without_workers_is_skipped() -> None:
    tiers = Tiers(RULES)
    assert choose(tiers, [NOBODY, 5, 5], 30) == REGIONAL
    assert tiers.spilled == 0
    assert choose(tiers, [NOBODY, NOBODY, NOBODY], 30) == -1
    assert Tiers(TierRules()).choose([], NEVER, SECOND) == -1


def test_if_no_tier_is_in_time_the_earliest_is_chosen_and_none_is_left() -> None:
    tiers = Tiers(RULES)
    assert choose(tiers, [50, 20, 1], 10) == REGIONAL
    assert not any(tiers._left[index] for index in range(3))
    assert choose(tiers, [50, 20, 1], -5) == REGIONAL


def test_comes_back_only_well_within_the_deadline() -> None:
    tiers = Tiers(RULES)
    assert choose(tiers, [50, 5, 5], 40) == REGIONAL
    assert tiers._left[EDGE]
    later = SECOND + RULES.hold_ns
    assert choose(tiers, [35, 5, 5], 40, later) == REGIONAL
    assert choose(tiers, [25, 5, 5], 40, later) == EDGE
    assert not tiers._left[EDGE]
    assert choose(tiers, [35, 5, 5], 40, later) == EDGE


def test_a_wavering_tier_is_left_once() -> None:
    """The edge is at 95 to 105 % of what the deadline allows: without hysteresis every other request would move."""
    tiers, moves, last = Tiers(RULES), 0, EDGE
    for step in range(1_000):
        tier = choose(tiers, [38 if step % 2 else 42, 5, 5], 40, SECOND + step * MS)
        moves += tier != last
        last = tier
    assert moves == 1


def test_in_time_but_not_by_enough_is_better_than_late_elsewhere() -> None:
    tiers = Tiers(RULES)
    choose(tiers, [50, 5, 5], 40)
    assert choose(tiers, [35, 500, 500], 40) == EDGE


def test_of_several_in_time_but_not_by_enough_the_nearest() -> None:
    tiers = Tiers(RULES)
    assert choose(tiers, [90, 75, 5], 80) == CORE
    assert tiers._left[EDGE]
    assert tiers._left[REGIONAL]
    assert choose(tiers, [75, 60, 500], 80) == EDGE


def test_until_the_hold_is_over_each_request_must_be_well_in_time() -> None:
    tiers = Tiers(RULES)
    choose(tiers, [50, 5, 5], 40)
    just_before = SECOND + RULES.hold_ns - 1
    assert choose(tiers, [25, 5, 5], 40, just_before) == EDGE
    assert tiers._left[EDGE]
    assert choose(tiers, [35, 5, 5], 40, just_before) == REGIONAL


def test_hopeless_deadlines_do_not_drive_out_the_others() -> None:
    tiers = Tiers(RULES)
    for step in range(100):
        now = SECOND + step * MS
        assert choose(tiers, [50, 5, 5], 20, now) == REGIONAL
        assert choose(tiers, [50, 5, 5], 200, now) == EDGE


def test_a_silent_tier_is_tried_at_once_or_now_and_then_when_it_was_left() -> None:
    tiers = Tiers(RULES)
    assert choose(tiers, [UNKNOWN, 5, 5], 40) == EDGE
    choose(tiers, [50, 5, 5], 40)
    tried = [choose(tiers, [UNKNOWN, 5, 5], 40, SECOND + step * MS) for step in range(40)]
    assert [step for step, tier in enumerate(tried) if tier == EDGE] == [0, 10, 20, 30]


def test_only_a_silent_tier_is_used_although_it_was_left() -> None:
    tiers = Tiers(RULES)
    choose(tiers, [50, 5, 5], 40)
    assert {choose(tiers, [UNKNOWN, NOBODY, NOBODY], 40) for _ in range(5)} == {EDGE}


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([NOBODY, UNKNOWN, 1, 8, 20, 35, 60]), min_size=3, max_size=3),
            st.sampled_from([5, 30, 80]),
            st.integers(0, 300),
        ),
        max_size=40,
    )
)
def test_in_time_whenever_a_tier_is_and_never_in_a_tier_without_workers(
    steps: list[tuple[list[float], int, int]],
) -> None:
    tiers, now = Tiers(RULES), SECOND
    for expected, deadline_ms, passed_ms in steps:
        now += passed_ms * MS
        tier = choose(tiers, expected, deadline_ms, now)
        if all(ms == NOBODY for ms in expected):
            assert tier == -1
            continue
        assert expected[tier] != NOBODY
        way = [0, 10, 40]
        in_time = [
            index for index in range(3) if expected[index] > 0 and expected[index] + way[index] <= deadline_ms - 0.2
        ]
        if in_time and expected[tier] != UNKNOWN:
            assert tier in in_time
            fresh = [index for index in in_time if not tiers._left[index]]
            assert not fresh or tier <= fresh[0]
