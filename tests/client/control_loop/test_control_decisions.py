"""The pure parts of the control loop: phase, plan, trust, late answers, figures."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from isochrone.client.control_loop.decision import Ask, Decision
from isochrone.client.control_loop.late_answers import Arrival, LateAnswers
from isochrone.client.control_loop.local_times import LocalTimes
from isochrone.client.control_loop.remote_trust import RemoteTrust, TrustRules
from isochrone.client.control_loop.schedule import Schedule, TickLimits
from isochrone.client.control_loop.settings import LoopSettings, checked_settings
from isochrone.client.control_loop.times import LoopTimes
from isochrone.clock import MILLISECOND as MS
from isochrone.clock import SECOND

RULES = TrustRules()


def settings(hz: float = 50.0) -> LoopSettings:
    period = 1000 / hz
    return checked_settings(hz, period * 0.1, period * 0.7, period * 0.2, None, 0.5, 0)


# The schedule.


@given(hz=st.floats(1, 1000), tick=st.integers(0, 10**9))
def test_the_phase_is_fixed_without_drift(hz: float, tick: int) -> None:
    schedule = Schedule(settings(hz), 12_345)
    assert abs(schedule.start_of(tick) - 12_345 - tick * SECOND / hz) <= 1 + tick * SECOND / hz * 2**-51
    assert schedule.limits(tick).deadline <= schedule.start_of(tick + 1) + 1003


@given(hz=st.floats(1, 1000), tick=st.integers(0, 10**6), later=st.integers(-(10**9), 10**11))
def test_the_next_tick_is_the_first_whose_act_instant_is_to_come(hz: float, tick: int, later: int) -> None:
    schedule = Schedule(settings(hz), 0, first=3)
    now = schedule.start_of(tick) + later
    following = schedule.next_from(tick, now)
    assert following >= tick
    assert schedule.limits(following).infer_ends > now
    assert following == tick or schedule.limits(following - 1).infer_ends <= now


# The plan.

events = st.lists(
    st.tuples(
        st.sampled_from(["answered", "failed", "nothing"]),
        st.integers(0, 60 * MS),
        st.integers(0, 14 * MS),
        st.integers(0, 25 * MS),
    ),
    max_size=80,
)


@given(events=events, has_local=st.booleans())
def test_the_local_model_never_starts_after_the_latest_instant(
    events: list[tuple[str, int, int, int]], has_local: bool
) -> None:
    infer, margin = 15 * MS, MS
    decision = Decision(infer, margin, has_local=has_local)
    requests: dict[int, int] = {}
    for tick, (event, after, run, sense) in enumerate(events):
        now = tick * 20 * MS + sense
        ends = tick * 20 * MS + 2 * MS + infer
        for asked in [each for each, at in requests.items() if at <= now]:
            at = requests.pop(asked)
            if event == "failed":
                decision.remote.failed(asked, at)
            else:
                decision.remote.answered(asked, at, decision.usable)
        plan = decision.plan(now, ends)
        if not has_local:
            assert plan.local_at is None
            assert plan.ask is Ask.REMOTE or decision.remote.is_gone(now)
        else:
            assert plan.local_at is not None
            estimate = decision.local.estimate
            latest = now if estimate is None else ends - estimate - margin
            assert now <= plan.local_at <= max(now, latest)
            if plan.ask is not Ask.REMOTE:
                assert plan.local_at == now
            decision.local.took(run)
        if plan.ask is not Ask.NOTHING:
            decision.remote.asked(tick, now)
            if event != "nothing":
                requests[tick] = now + after


def decided(decision: Decision, tick: int) -> Ask:
    now = tick * 20 * MS
    ask = decision.plan(now, now + 15 * MS).ask
    if ask is not Ask.NOTHING:
        decision.remote.asked(tick, now)
    return ask


def ready(took: int = 5 * MS, ticks: int = 20) -> Decision:
    """After some good ticks."""
    decision = Decision(15 * MS, MS, has_local=True)
    decision.local.took(MS)
    for tick in range(ticks):
        assert decided(decision, tick) is Ask.REMOTE
        decision.remote.answered(tick, tick * 20 * MS + took, decision.usable)
    return decision


def test_three_requests_without_an_answer_are_enough_for_doubt() -> None:
    decision = ready()
    asked = [decided(decision, tick) for tick in range(20, 26)]
    assert asked[:3] == [Ask.REMOTE] * 3
    assert asked[3] is Ask.NOTHING
    assert not decision.remote.is_trusted


def test_one_late_answer_is_no_doubt() -> None:
    decision = ready()
    assert decided(decision, 20) is Ask.REMOTE
    decision.remote.answered(20, 20 * 20 * MS + 19 * MS, decision.usable)
    assert [decided(decision, tick) for tick in (21, 22)] == [Ask.REMOTE] * 2


def test_too_little_time_left_asks_nothing_and_keeps_the_trust() -> None:
    decision = ready(took=5 * MS)
    now = 20 * 20 * MS
    assert decision.plan(now, now + 6 * MS) == (Ask.NOTHING, now)
    assert decision.remote.is_trusted
    assert decision.plan(now, now + 8 * MS) == (Ask.REMOTE, now + 6 * MS)


def test_without_recent_answers_the_remote_model_is_asked() -> None:
    decision = ready()
    later = 1000 * SECOND
    assert decision.plan(later, later + 3 * MS).ask is Ask.REMOTE


@given(st.lists(st.booleans(), min_size=1, max_size=400))
def test_probes_come_at_a_bounded_rate_and_only_good_ones_restore_trust(fates: list[bool]) -> None:
    trust = RemoteTrust(RULES)
    usable = 13 * MS
    for tick in range(3):
        trust.asked(tick, 0)
        trust.failed(tick, 0)
    trust.review(MS, usable)
    assert not trust.is_trusted
    good, sent = 0, 0
    last = 0
    for tick, is_good in enumerate(fates, 10):
        now = tick * 20 * MS
        if trust.is_trusted:
            break
        if not trust.may_probe(now):
            assert now - last < RULES.probe_interval
            continue
        if sent and not good:
            assert now - last >= RULES.probe_interval
        trust.asked(tick, now)
        last, sent = now, sent + 1
        if is_good:
            trust.answered(tick, now + 5 * MS, usable)
            good += 1
        else:
            trust.failed(tick, now + 5 * MS)
            good = 0
        assert trust.is_trusted is (good >= RULES.confirmations)


def test_answers_within_the_budget_but_without_headroom_do_not_restore_trust() -> None:
    trust = RemoteTrust(RULES)
    for tick in range(3):
        trust.asked(tick, 0)
        trust.failed(tick, 0)
    trust.review(MS, 10 * MS)
    for tick in range(10, 60):
        trust.asked(tick, tick * 100 * MS)
        assert trust.answered(tick, tick * 100 * MS + 9 * MS, 10 * MS) == 9 * MS
    assert not trust.is_trusted


def test_old_requests_do_not_undo_new_trust() -> None:
    trust = RemoteTrust(RULES)
    usable = 10 * MS
    for tick in range(4):
        trust.asked(tick, tick * 20 * MS)
    trust.review(200 * MS, usable)
    assert not trust.is_trusted
    for tick in range(10, 13):
        trust.asked(tick, tick * 100 * MS)
        trust.answered(tick, tick * 100 * MS + 2 * MS, usable)
        trust.failed(tick - 10, tick * 100 * MS + 3 * MS)
    assert trust.is_trusted
    trust.failed(3, 1300 * MS)
    trust.review(1300 * MS, usable)
    assert trust.is_trusted


def test_a_few_slow_runs_do_not_change_when_the_local_model_starts() -> None:
    times = LocalTimes()
    assert times.estimate is None
    for number in range(32):
        times.took(30 * MS if number % 11 == 0 else MS)
    assert times.estimate == MS


# Late answers.

steps = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.just(0)),
        st.tuples(st.just("close"), st.just(0)),
        st.tuples(st.just("arrive"), st.integers(0, 30)),
        st.tuples(st.just("give up"), st.integers(0, 30)),
    ),
    max_size=120,
)


@given(steps)
def test_no_answer_is_used_in_another_tick_or_twice(steps: list[tuple[str, int]]) -> None:
    late = LateAnswers()
    tick, is_open = -1, False
    waiting: dict[int, int] = {}
    for now, (step, which) in enumerate(steps):
        match step:
            case "open":
                tick, is_open = tick + 1, True
                late.open(tick)
                late.asked(tick, now)
                waiting[tick] = now
            case "close":
                late.close()
                is_open = False
            case "arrive":
                arrival, age = late.arrived(which, now)
                asked = waiting.pop(which, None)
                assert (arrival is Arrival.UNKNOWN) is (asked is None)
                if asked is not None:
                    assert age == now - asked
                    assert (arrival is Arrival.IN_TIME) is (is_open and which == tick)
            case "give up":
                assert late.given_up(which) is (is_open and which == tick)
                waiting.pop(which, None)


# Figures.


def test_misses_and_stages() -> None:
    times = LoopTimes()
    limits = TickLimits(0, 2 * MS, 17 * MS, 20 * MS)
    times.tick("remote", limits, 0, MS, 6 * MS, 7 * MS)
    times.tick("local", limits, 0, 3 * MS, 18 * MS, 19 * MS)
    times.tick("local", limits, 0, MS, 18 * MS, 21 * MS)
    times.tick("held", limits, 0, MS, 17 * MS, 25 * MS)
    times.tick("fallback", limits, 0, 19 * MS, 19 * MS, 19 * MS)
    times.tick("remote", limits, 0, MS, 6 * MS, 30 * MS)
    times.skipped(2)
    times.remote_failed("unavailable", 'cannot connect to "x"')
    summary = times.summary()
    assert summary.ticks == 6
    assert summary.sources == {"remote": 2, "local": 2, "held": 1, "fallback": 1}
    assert summary.misses == {"unanswered": 2, "overrun": 2, "skipped": 2}
    assert summary.deadline_misses == 6
    assert summary.stage_overruns == {"sense": 2, "infer": 2, "act": 1}
    assert summary.times["sense"].max_ms == 19
    assert summary.as_dict()["times"]["act"]["count"] == 6


def test_the_text_for_prometheus() -> None:
    times = LoopTimes()
    times.tick("local", TickLimits(0, 2 * MS, 17 * MS, 20 * MS), 0, MS, 4 * MS, 5 * MS)
    times.remote_failed("unavailable", "gone")
    text = times.prometheus(agent='7"\n')
    assert 'isochrone_control_loop_ticks_total{agent="7\\"\\n",source="local"} 1\n' in text
    assert 'isochrone_control_loop_remote_failures_total{agent="7\\"\\n",code="unavailable"} 1\n' in text
    assert 'isochrone_control_loop_seconds_count{agent="7\\"\\n",time="tick"} 1\n' in text
    assert "isochrone_control_loop_requests_total 0\n" in times.prometheus()
    line = re.compile(r'# TYPE \w+ (counter|gauge|summary)|\w+(\{(\w+="([^"\\]|\\.)*",?)+\})? [0-9.e+-]+')
    assert all(line.fullmatch(each) for each in text.splitlines())
