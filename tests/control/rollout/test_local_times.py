"""Time-outs go by what a leader has seen itself, whatever the clocks of others said."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.rollout.decision import enter
from isochrone.control.rollout.local_times import LocalTimes
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.observed_state import Loaded, ObservedState, ObservedWorker
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EpochRecord
from isochrone.control.state.rollout_records import PENDING, PREPARING, STRICT, SWITCHING, Change, RolloutRecord

HOUR = 3600.0
BOTH = {"m": {"1": Loaded("READY", "a"), "2": Loaded("READY", "b")}}
READY = ObservedWorker(WorkerRecord("w", "h", 1, 2, pool="cpu"), BOTH)
EPOCH = EpochRecord(4, {"m": Assignment("1", "a", pools=("cpu",), epoch=4)})


def observed(now: float, **fields: object) -> ObservedState:
    return ObservedState(now=now, epoch=EPOCH, workers={"w": READY}, known_gateways={"g": "i"}, **fields)  # type: ignore[arg-type]


def rollout(state: str, **since: float) -> RolloutRecord:
    return RolloutRecord("r1", {"m": Change("2", "1", "b", ("cpu",))}, state, cutover=STRICT, since=since)


def test_a_successor_does_not_wait_for_a_clock_that_was_ahead() -> None:
    """The last leader's clock was an hour ahead when its switch failed: the next one tries again at once."""
    record = rollout(SWITCHING, switching=HOUR, switch=HOUR)
    times = LocalTimes(100.0, 0.0)
    local = times.localised(record, times.now(0.0))
    assert advance(local, observed(times.now(0.0))).switch is None
    decision = advance(times.localised(record, times.now(1.0)), observed(times.now(1.0)))
    assert decision.switch is not None


def test_a_leader_whose_clock_is_ahead_fails_nothing() -> None:
    """What another leader began a moment ago is not overdue by this one's clock."""
    unready = ObservedWorker(READY.record, {"m": {"1": Loaded("READY", "a")}})
    record = msgspec.structs.replace(rollout(PREPARING, preparing=100.0), prepare_seconds=5.0)
    times = LocalTimes(100.0 + HOUR, 0.0)
    for seconds, state in ((0.0, PREPARING), (4.0, PREPARING), (6.0, "aborting")):
        now = times.now(seconds)
        seen = observed(now)
        decision = advance(times.localised(record, now), with_worker(seen, unready))
        assert decision.record.state == state


def with_worker(seen: ObservedState, worker: ObservedWorker) -> ObservedState:
    return ObservedState(now=seen.now, epoch=seen.epoch, workers={"w": worker}, known_gateways=seen.known_gateways)


def test_what_a_decision_leaves_alone_is_written_as_it_was() -> None:
    record = rollout(PENDING, pending=5.0)
    times = LocalTimes(1000.0, 0.0)
    local = times.localised(record, times.now(1.0))
    assert times.restored(record, local, local) == record
    after = times.restored(record, local, enter(local, PREPARING, times.now(2.0)))
    assert after.since == {PENDING: 5.0, PREPARING: 1002.0}
    # Its own stamp is known at once, and again as it was written.
    again = times.localised(after, times.now(9.0))
    assert again.since[PREPARING] == 1002.0


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.lists(st.floats(0, 1e4), min_size=2, max_size=6))
def test_ages_depend_on_no_clock_but_its_own(wall: float, stamp: float, looks: list[float]) -> None:
    times = LocalTimes(wall, 0.0)
    looks = sorted(looks)
    record = rollout(PREPARING, preparing=stamp)
    ages = [times.now(at) - times.localised(record, times.now(at)).since[PREPARING] for at in looks]
    assert ages == [times.now(at) - times.now(looks[0]) for at in looks]
