"""Error budgets: the ring of minutes loses no request of its day and stays small; burn rates follow the requests."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isochrone.control.figures.budget import BURNING, KEPT, NO_REQUESTS, SPENT, WINDOWS, budget
from isochrone.control.figures.frames import Frame, ModelFigures
from isochrone.control.figures.objectives import Limits, limits
from isochrone.control.figures.totals import DAY, Totals, in_window, totals, totals_by_minute, until, with_minutes
from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.state.codec import decode, encode
from isochrone.control.state.records import SloTotalsRecord

NOW = 30_000_000
_totals = st.builds(Totals, st.integers(0, 5000), st.integers(0, 100)).filter(lambda each: each.requests)
_minutes = st.dictionaries(st.integers(NOW - 2 * DAY, NOW), _totals, max_size=60)


def recorded(minutes: dict[int, Totals]) -> SloTotalsRecord | None:
    """Written minute by minute, and read back each time."""
    record = None
    for minute in sorted(minutes):
        changed = with_minutes(record, {minute: minutes[minute]})
        assert changed is not None
        record = decode(encode(changed), SloTotalsRecord)
    return record


@settings(max_examples=150)
@given(_minutes, st.sampled_from((*WINDOWS, 17)))
def test_windows_have_what_was_written_in_them(minutes: dict[int, Totals], length: int) -> None:
    found = in_window(recorded(minutes), {}, NOW, length)
    # Cells of five minutes: at the edge of a longer window, one may be left out.
    edge = 0 if length <= 60 else 5
    inside = [each for minute, each in minutes.items() if minute > NOW - length + edge]
    around = [each for minute, each in minutes.items() if minute > NOW - length]
    assert sum(each.good for each in inside) <= found.good <= sum(each.good for each in around)
    assert sum(each.bad for each in inside) <= found.bad <= sum(each.bad for each in around)


@given(_minutes, _minutes)
def test_minutes_may_come_together_or_one_by_one(one: dict[int, Totals], other: dict[int, Totals]) -> None:
    both = {**one, **other}
    assert with_minutes(None, both) == recorded(both) or _whole(with_minutes(None, both)) == _whole(recorded(both))


def _whole(record: SloTotalsRecord | None) -> Totals:
    return in_window(record, {}, NOW, DAY - 5)


def test_a_full_day_is_a_few_kilobytes() -> None:
    record = recorded({minute: Totals(123_456, 789) for minute in range(NOW - DAY - 100, NOW)})
    assert record is not None
    assert len(record.cells) <= 60 + DAY // 5
    assert len(encode(record)) < 8_000
    assert record.since == NOW - DAY - 100


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    record = recorded({NOW: Totals(10, 1)})
    changed = with_minutes(record, {NOW - 30: Totals(5, 0)})
    assert changed is not None
    assert (changed.minute, in_window(changed, {}, NOW, 5)) == (NOW, Totals(15, 1))


def test_a_record_that_is_ahead_of_now() -> None:
    record = recorded({NOW - 90: Totals(4, 0), NOW - 3: Totals(10, 1), NOW + 30: Totals(50, 5)})
    assert record is not None
    assert in_window(record, {NOW: Totals(2, 0), NOW + 1: Totals(1, 0)}, NOW, 5) == Totals(13, 1)
    cut = until(record, NOW - 1)
    assert (cut.minute, in_window(cut, {}, NOW, DAY)) == (NOW - 1, Totals(14, 1))
    assert until(cut, NOW) == cut
    changed = with_minutes(cut, {NOW: Totals(2, 0)})
    assert in_window(changed, {}, NOW, DAY) == Totals(16, 1)


def test_minutes_that_are_not_recorded_yet_count_once() -> None:
    record = recorded({NOW - 2: Totals(10, 1), NOW - 1: Totals(10, 1)})
    further = {NOW - 1: Totals(10, 1), NOW: Totals(3, 0)}
    assert in_window(record, further, NOW, 5) == Totals(23, 2)
    assert in_window(None, further, NOW, 1) == Totals(3, 0)


def test_what_is_good_and_what_is_bad() -> None:
    # 10 in time, 5 late; 2 of 3 rejections are excused.
    figures = ModelFigures("m", "1", 15, 3, 4, 2, 9, 2, {0: 10, 20: 5})
    assert totals(figures, 0.001) == Totals(10, 5 + 4 + 2 + 1)
    assert totals(ModelFigures("m", excused=3), 0.001) == Totals()


def test_totals_by_minute_add_up_versions_and_seconds() -> None:
    frames = [
        Frame(600 + second, {("m", version): ModelFigures("m", version, 1, durations={0: 1}) for version in "12"})
        for second in (0, 59, 60)
    ]
    assert totals_by_minute(frames, "m", 1.0) == {10: Totals(4, 0), 11: Totals(2, 0)}


_window_totals = st.builds(Totals, st.integers(0, 10**6), st.integers(0, 10**6))


@given(st.floats(0.5, 0.99999), st.fixed_dictionaries(dict.fromkeys(WINDOWS, _window_totals)))
def test_budgets_are_consistent(objective: float, windows: dict[int, Totals]) -> None:
    found = budget(objective, windows, 3600)
    assert 0.0 <= found.left <= 1.0
    assert found.used >= 0.0
    assert all(math.isfinite(each.burn) and each.burn >= 0 for each in found.windows)
    assert found.spent_in_s is None or found.spent_in_s >= 0
    if found.state == SPENT:
        assert found.spent_in_s == 0.0
        assert found.left < 1e-6
    if found.state == NO_REQUESTS:
        assert not windows[WINDOWS[-1]].requests


@given(st.integers(1, 10**5), st.integers(0, 10**5), st.integers(1, 10**5))
def test_more_bad_requests_burn_faster(good: int, bad: int, more: int) -> None:
    one, other = (budget(0.99, dict.fromkeys(WINDOWS, Totals(good, each)), 3600) for each in (bad, bad + more))
    assert other.used > one.used
    assert other.left <= one.left


@pytest.mark.parametrize(
    ("windows", "state"),
    [
        ((Totals(), Totals(), Totals(), Totals()), NO_REQUESTS),
        ((Totals(100, 0), Totals(100, 0), Totals(100, 0), Totals(10_000, 10)), KEPT),
        ((Totals(90, 10), Totals(100, 10), Totals(1000, 10), Totals(10_000, 10)), BURNING),
        # Over by now.
        ((Totals(100, 0), Totals(100, 10), Totals(1000, 10), Totals(10_000, 10)), KEPT),
        ((Totals(100, 0), Totals(100, 0), Totals(100, 0), Totals(10_000, 900)), SPENT),
    ],
)
def test_states(windows: tuple[Totals, ...], state: str) -> None:
    assert budget(0.99, dict(zip(WINDOWS, windows, strict=True)), 86_400).state == state


def test_when_a_budget_is_spent() -> None:
    # 100 may be bad, 10 are; of 1000 requests in the last hour 10 may be, 30 were: 20 an hour too many.
    windows = {5: Totals(), 60: Totals(970, 30), 360: Totals(), 1440: Totals(9_990, 10)}
    found = budget(0.99, windows, 86_400)
    assert found.spent_in_s == pytest.approx(90 / 20 * 3600)
    assert found.used == pytest.approx(0.1)
    # Half an hour of history: twice as fast.
    assert budget(0.99, windows, 1800).spent_in_s == pytest.approx(90 / 20 * 1800)


def test_limits_of_a_fleet() -> None:
    spec = {
        "name": "f",
        "models": {"a": {"slo": {"deadline_ms": 20}, "pools": ["cpu"]}, "b": {"pools": ["cpu"]}},
        "pools": {"cpu": {"workers": 1}},
    }
    found = limits(fleet_of(spec))
    assert (found.of("a"), found.of("b"), found.of("other")) == (0.02, 0.2, 0.2)
    assert limits(None) == Limits()
