"""A version that a pool has not had is loaded by one worker first: if that ends its process, the others are spared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs
from observed_states import POOL, assignment, observed, rollout, settle, worker

from isochrone.control.rollout.desired_versions import desired_versions
from isochrone.control.rollout.first_loads import RETURN_SECONDS
from isochrone.control.rollout.machine import advance
from isochrone.control.rollout.observed_state import Failure, Loaded, ObservedState
from isochrone.control.state.records import EpochRecord
from isochrone.control.state.rollout_records import ABORTING, DRAINING, PREPARING, Change, RolloutRecord

ONE = {"m": {"1": "old"}}
BOTH = {"m": {"1": "old", "2": "new"}}


def loading(record: RolloutRecord, seen: ObservedState) -> set[str]:
    """The workers that are to have version 2."""
    return {
        name
        for name, view in seen.workers.items()
        if "2" in desired_versions(view.record, seen.epoch, (record,)).get("m", frozenset())
    }


def test_one_worker_loads_it_and_the_others_follow_when_it_is_ready() -> None:
    seen = observed(worker("w1", ONE), worker("w2", ONE), worker("w3", ONE))
    begun = advance(rollout(), seen).record
    assert loading(begun, seen) == {"w1"}, "from the first moment on"
    record = settle(rollout(), seen)
    assert (record.state, loading(record, seen)) == (PREPARING, {"w1"})
    assert record.workers["w1"].state == "loading"
    assert record.workers["w2"].state == "waiting"
    assert record.workers["w2"].detail == "until worker w1 has loaded it"
    ready = observed(worker("w1", BOTH), worker("w2", ONE), worker("w3", ONE))
    record = settle(record, ready)
    assert (record.state, loading(record, ready)) == (PREPARING, {"w1", "w2", "w3"})
    # Restarted, it loads it again as the others do.
    assert loading(settle(record, seen), seen) == {"w1", "w2", "w3"}
    assert settle(record, observed(*(worker(name, BOTH) for name in ("w1", "w2", "w3")))).state == DRAINING


def test_a_load_that_is_refused_after_it_ended_a_process_aborts_and_nobody_else_has_tried() -> None:
    record = settle(rollout(), observed(worker("w1", ONE), worker("w2", ONE)))
    refused = worker("w1", {}, failures={"m": Failure(frozenset({"2"}), 'use parameters { key: "isolation" }')})
    decision = advance(record, observed(refused, worker("w2", ONE)))
    assert decision.record.state == ABORTING
    assert decision.record.reason == 'not every worker could load it: worker w1: use parameters { key: "isolation" }'
    assert loading(decision.record, observed(refused, worker("w2", ONE))) == set()


def test_the_same_worker_tries_again_while_it_is_registered_and_another_one_when_it_stays_away() -> None:
    record = settle(rollout(), observed(worker("w1", ONE), worker("w2", ONE)))
    seen = observed(worker("w1", None), worker("w2", ONE), worker("w0", ONE))
    record = settle(record, seen)
    assert loading(record, seen) == {"w1"}
    seen = observed(worker("w2", ONE), worker("w3", ONE))
    record = settle(record, seen)
    seen = replace(seen, now=seen.now + RETURN_SECONDS)
    record = settle(record, seen)
    assert loading(record, seen) == {"w2"}


@pytest.mark.parametrize(
    ("record", "seen"),
    [
        (rollout(), observed(worker("w1", ONE), worker("w2", BOTH))),
        (rollout(kind="rollback"), observed(worker("w1", ONE), worker("w2", ONE))),
        (rollout(), observed(worker("w1", ONE), worker("w2", ONE), epoch=EpochRecord(0))),
        (
            rollout(),
            observed(worker("w1", ONE), worker("w2", ONE), epoch=EpochRecord(1, {"m": assignment(pools=("gpu",))})),
        ),
    ],
    ids=["a worker has it", "it was served before", "nothing is committed", "the pool serves nothing"],
)
def test_all_load_it_at_once_where_nothing_is_to_be_feared_or_lost(record: RolloutRecord, seen: ObservedState) -> None:
    assert loading(settle(record, seen), seen) == {"w1", "w2"}


def test_a_worker_that_joins_meanwhile_waits_for_the_one_that_loads_it() -> None:
    alone = observed(worker("w1", ONE))
    record = settle(rollout(), alone)
    assert loading(record, alone) == {"w1"}
    seen = observed(worker("w1", ONE), worker("w0", ONE))
    assert loading(settle(record, seen), seen) == {"w1"}


def test_each_pool_has_a_first_worker_of_its_own() -> None:
    change = Change("2", "1", pools=(POOL, "gpu"))
    epoch = EpochRecord(1, {"m": assignment(pools=(POOL, "gpu"))})
    gpus = worker("g1", ONE, pool="gpu"), worker("g2", ONE, pool="gpu")
    seen = observed(worker("w1", ONE), worker("w2", ONE), *gpus, epoch=epoch)
    record = settle(rollout(changes={"m": change}), seen)
    assert loading(record, seen) == {"w1", "g1"}
    seen = observed(worker("w1", BOTH), worker("w2", ONE), *gpus, epoch=epoch)
    assert loading(settle(record, seen), seen) == {"w1", "w2", "g1"}


def test_an_ensemble_and_its_stages_are_ready_together_before_others_follow() -> None:
    changes = {"m": Change("2", "1", pools=(POOL,)), "n": Change("2", "1", pools=(POOL,))}
    seen = observed(worker("w1", BOTH), worker("w2", ONE))
    record = settle(rollout(changes=changes), seen)
    assert loading(record, seen) == {"w1"}
    seen = observed(worker("w1", {**BOTH, "n": {"2": "x"}}), worker("w2", ONE))
    assert loading(settle(record, seen), seen) == {"w1", "w2"}


def test_the_limit_counts_for_the_first_load_and_for_the_others() -> None:
    seen = observed(worker("w1", ONE), worker("w2", ONE))
    record = settle(rollout(prepare_seconds=10.0), seen)
    reason = advance(record, replace(seen, now=111.0)).record.reason
    assert reason == "worker w1 did not get ready within 10 s", "w2 only waits for w1"
    ready = observed(worker("w1", BOTH), worker("w2", ONE), now=109.0)
    record = settle(record, ready)
    assert advance(record, replace(ready, now=118.0)).record.state == PREPARING
    assert "worker w2 did not get ready" in advance(record, replace(ready, now=120.0)).record.reason


def test_a_load_from_before_that_has_not_ended_is_named() -> None:
    stuck = worker("w1", ONE)
    stuck = replace(stuck, models={"m": {**(stuck.models or {})["m"], "8": Loaded("LOADING")}})
    seen = observed(stuck, worker("w2", ONE))
    record = settle(rollout(prepare_seconds=10.0), seen)
    hint = "(it is still loading m 8; restart it if that hangs)"
    assert record.workers["w1"].detail == f"m 2 {hint}"
    reason = advance(record, replace(seen, now=111.0)).record.reason
    assert reason == f"worker w1 {hint} did not get ready within 10 s"


def test_a_worker_that_vanishes_before_it_is_ready_has_time_to_come_back_for_the_second_try() -> None:
    record = settle(rollout(), observed(worker("w1", ONE), worker("w2", ONE), worker("w3", ONE)))
    gone = observed(worker("w2", ONE), worker("w3", ONE), now=101.0)
    record = settle(record, gone)
    later = replace(gone, now=100.9 + RETURN_SECONDS)
    record = settle(record, later)
    assert (record.state, loading(record, later)) == (PREPARING, set()), "no other worker is put at risk"
    # Its process is back after its lease had ended, and takes the second try.
    back = observed(worker("w1", {}), worker("w2", ONE), worker("w3", ONE), now=later.now)
    record = settle(record, back)
    assert loading(record, back) == {"w1"}
    # Gone once more: the time begins again.
    gone = replace(gone, now=140.0)
    record = settle(record, gone)
    later = replace(gone, now=139.9 + RETURN_SECONDS)
    record = settle(record, later)
    assert loading(record, later) == set()
    after = replace(gone, now=140.0 + RETURN_SECONDS)
    record = settle(record, after)
    assert loading(record, after) == {"w2"}
    # Nobody at all, then another one.
    nobody = observed(now=200.0)
    record = settle(settle(record, nobody), replace(nobody, now=300.0))
    alone = observed(worker("w9", ONE), now=300.0)
    assert loading(settle(record, alone), alone) == {"w9"}


def test_each_try_has_the_whole_time() -> None:
    seen = observed(worker("w1", ONE), worker("w2", ONE))
    record = settle(rollout(prepare_seconds=100.0), seen)
    gone = observed(worker("w2", ONE), now=199.0)
    record = settle(record, gone)
    assert advance(record, replace(gone, now=201.0)).record.state == PREPARING
    back = replace(seen, now=201.0)
    came_back = settle(record, back)
    assert advance(came_back, replace(back, now=300.0)).record.state == PREPARING
    assert "did not get ready within 100 s" in advance(came_back, replace(back, now=302.0)).record.reason
    chosen = replace(gone, now=199.0 + RETURN_SECONDS)
    record = settle(record, chosen)
    assert loading(record, chosen) == {"w2"}
    assert advance(record, replace(gone, now=chosen.now + 99.0)).record.state == PREPARING
    assert "did not get ready within 100 s" in advance(record, replace(gone, now=chosen.now + 101.0)).record.reason


def test_a_worker_that_has_answered_goes_first() -> None:
    seen = observed(worker("w1", None), worker("w2", ONE))
    assert loading(settle(rollout(), seen), seen) == {"w2"}


def test_a_worker_that_restarts_with_other_repositories_vouches_for_nothing() -> None:
    """What it holds is of the old repositories."""
    old = worker("w1", BOTH)
    old = replace(old, record=structs.replace(old.record, repositories=("/old",)))
    seen = observed(old, worker("w2", ONE), worker("w3", ONE), repositories={"w1": ("/new",)})
    assert loading(settle(rollout(), seen), seen) == {"w2"}
