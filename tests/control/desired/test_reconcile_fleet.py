"""What the leader makes of another fleet.yaml: rollouts for what is new, and hands off what was changed by hand."""

from __future__ import annotations

from typing import Any

from isochrone.control.desired.reconcile import (
    FILE,
    DesiredModel,
    Reconciliation,
    reconcile,
    retire,
    superseded,
    without_aborted,
)
from isochrone.control.state.records import Assignment, EpochRecord, ReconciledRecord
from isochrone.control.state.rollout_records import (
    ABORTING,
    DRAINING,
    STRICT,
    CanaryRule,
    Change,
    CompareRule,
    RolloutRecord,
)

NOTHING = EpochRecord(0)


def desired(version: str = "1", **fields: Any) -> DesiredModel:
    return DesiredModel(version, **{"pools": ("cpu",), **fields})


def served(version: str = "1", **fields: Any) -> Assignment:
    return Assignment(version, **{"pools": ("cpu",), **fields})


def reconciled_with(
    models: dict[str, DesiredModel],
    epoch: EpochRecord = NOTHING,
    reconciled: ReconciledRecord | None = None,
    rollouts: tuple[RolloutRecord, ...] = (),
) -> Reconciliation:
    steps = reconcile(7, models, reconciled or ReconciledRecord(0), epoch, rollouts, 5, 100.0)
    assert steps is not None
    return steps


def test_all_that_is_new_is_one_rollout() -> None:
    steps = reconciled_with({"m": desired(), "n": desired("3", canary=CanaryRule(), compare=CompareRule())})
    (rollout,) = steps.rollouts
    assert rollout.identity == "r5"
    assert rollout.kind == "first"
    assert {name: change.version for name, change in rollout.changes.items()} == {"m": "1", "n": "3"}
    assert rollout.canary is None, "there is nothing to compare with"
    assert rollout.compare is None
    assert steps.reconciled == ReconciledRecord(7, {"m": "1", "n": "3"})


def test_a_changed_version_is_a_rollout_by_its_rules() -> None:
    epoch = EpochRecord(4, {"m": served()})
    model = desired("2", cutover=STRICT, canary=CanaryRule(), memory=5, prepare_seconds=9.0)
    (rollout,) = reconciled_with({"m": model}, epoch, ReconciledRecord(6, {"m": "1"})).rollouts
    assert (rollout.kind, rollout.cutover, rollout.prepare_seconds) == ("version", STRICT, 9.0)
    assert rollout.canary == CanaryRule()
    assert rollout.changes["m"] == Change("2", "1", pools=("cpu",), memory=5)


def test_what_was_rolled_out_by_hand_stands() -> None:
    epoch = EpochRecord(4, {"m": served("2")})
    steps = reconciled_with({"m": desired("1")}, epoch, ReconciledRecord(6, {"m": "1"}))
    assert steps.rollouts == ()


def test_until_the_file_asks_for_another_version() -> None:
    epoch = EpochRecord(4, {"m": served("2")})
    (rollout,) = reconciled_with({"m": desired("3")}, epoch, ReconciledRecord(6, {"m": "1"})).rollouts
    assert rollout.changes["m"].version == "3"


def test_what_belongs_together_changes_together() -> None:
    epoch = EpochRecord(4, {name: served() for name in ("chain", "first", "second", "other")})
    models = {
        "chain": desired("2", stages=("first", "second")),
        "first": desired("2"),
        "second": desired("2"),
        "other": desired("2"),
    }
    groups = [set(rollout.changes) for rollout in reconciled_with(models, epoch).rollouts]
    assert {"chain", "first", "second"} in groups
    assert {"other"} in groups
    assert len({rollout.identity for rollout in reconciled_with(models, epoch).rollouts}) == 2


def test_with_joins_groups_that_meet() -> None:
    epoch = EpochRecord(4, {name: served() for name in "abcd"})
    models = {
        "a": desired("2", together=("c",)),
        "b": desired("2", together=("d",)),
        "c": desired("2"),
        "d": desired("2"),
    }
    models["c"] = desired("2", together=("d",))
    (rollout,) = reconciled_with(models, epoch).rollouts
    assert set(rollout.changes) == set("abcd")


def test_a_model_that_is_gone_is_gone_in_one_epoch() -> None:
    epoch = EpochRecord(4, {"m": served(), "n": served()})
    steps = reconciled_with({"m": desired()}, epoch, ReconciledRecord(6, {"m": "1", "n": "1"}))
    assert steps.epoch is not None
    assert set(steps.epoch.models) == {"m"}
    assert steps.epoch.epoch == 5
    assert [(event.what, event.about) for event in steps.events] == [("model removed", "n")]


def test_other_memory_is_a_new_epoch_of_the_same_versions() -> None:
    epoch = EpochRecord(4, {"m": served("2", previous="1"), "n": served()})
    steps = reconciled_with({"m": desired("2", memory=5), "n": desired()}, epoch)
    assert steps.epoch == EpochRecord(5, {"m": served("2", previous="1", memory=5), "n": served()}, "", FILE, 100.0)
    assert steps.rollouts == ()


def test_other_pools_are_a_rollout_of_the_same_version() -> None:
    epoch = EpochRecord(4, {"m": served("2", previous="1", stages=("s",))})
    model = desired("2", pools=("gpu",), memory=5, cutover=STRICT, canary=CanaryRule(), compare=CompareRule())
    steps = reconciled_with({"m": model}, epoch)
    assert steps.epoch is None, "what is served stays where it is until the others have it"
    (rollout,) = steps.rollouts
    assert rollout.kind == "version"
    assert rollout.changes["m"] == Change("2", "2", pools=("gpu",), stages=("s",), memory=5, left=("cpu",))
    # Nobody sees another version: there is nothing to hold, to try or to compare.
    assert (rollout.cutover, rollout.canary, rollout.compare) == ("fast", None, None)


def test_one_more_pool_loads_it_first_and_the_order_of_pools_means_nothing() -> None:
    epoch = EpochRecord(4, {"m": served(pools=("cpu", "gpu"))})
    (rollout,) = reconciled_with({"m": desired(pools=("gpu", "npu", "cpu"))}, epoch).rollouts
    assert rollout.changes["m"].left == ()
    assert reconciled_with({"m": desired(pools=("gpu", "cpu"))}, epoch) == Reconciliation(
        ReconciledRecord(7, {"m": "1"})
    )


def test_other_pools_and_another_version_are_one_rollout() -> None:
    epoch = EpochRecord(4, {"m": served("1")})
    steps = reconciled_with({"m": desired("2", pools=("gpu",))}, epoch, ReconciledRecord(6, {"m": "1"}))
    (rollout,) = steps.rollouts
    assert rollout.changes["m"] == Change("2", "1", pools=("gpu",), left=("cpu",))
    assert steps.epoch is None


def test_a_version_that_was_rolled_out_by_hand_moves_as_it_is() -> None:
    epoch = EpochRecord(4, {"m": served("2")})
    (rollout,) = reconciled_with({"m": desired("1", pools=("gpu",))}, epoch, ReconciledRecord(6, {"m": "1"})).rollouts
    assert (rollout.changes["m"].version, rollout.changes["m"].before) == ("2", "2")


def test_an_ensemble_moves_with_its_stages() -> None:
    epoch = EpochRecord(4, {name: served() for name in ("chain", "first")})
    models = {"chain": desired(pools=("gpu",), stages=("first",)), "first": desired(pools=("gpu",))}
    (rollout,) = reconciled_with(models, epoch).rollouts
    assert set(rollout.changes) == {"chain", "first"}


def test_nothing_changed_is_nothing_done() -> None:
    epoch = EpochRecord(4, {"m": served()})
    steps = reconciled_with({"m": desired()}, epoch, ReconciledRecord(6, {"m": "1"}))
    assert steps == Reconciliation(ReconciledRecord(7, {"m": "1"}))


def test_what_is_under_way_ends_first() -> None:
    epoch = EpochRecord(4, {"m": served(), "n": served()})
    busy = RolloutRecord("r4", {"m": Change("2", "1")})
    models = {"m": desired("3"), "n": desired()}
    assert reconcile(7, models, ReconciledRecord(6), epoch, (busy,), 5, 100.0) is None
    models = {"m": desired(), "n": desired("2")}
    assert reconcile(7, models, ReconciledRecord(6), epoch, (busy,), 5, 100.0) is not None
    # Its commit would undo these.
    for model in (desired(memory=5), desired(stages=("s",)), desired(pools=("gpu",))):
        assert reconcile(7, {"m": model, "n": desired()}, ReconciledRecord(6), epoch, (busy,), 5, 100.0) is None


def test_a_version_of_the_file_that_was_aborted_is_asked_for_again_by_the_next_apply() -> None:
    epoch = EpochRecord(4, {"m": served(), "n": served("3")})
    reconciled = ReconciledRecord(7, {"m": "2", "n": "3"})
    assert reconciled_with({"m": desired("2"), "n": desired("3")}, epoch, reconciled).rollouts == ()
    after = without_aborted(RolloutRecord("r9", {"m": Change("2", "1")}, by=FILE), reconciled)
    assert after == ReconciledRecord(7, {"n": "3"})
    (rollout,) = reconciled_with({"m": desired("2"), "n": desired("3")}, epoch, after).rollouts
    assert list(rollout.changes) == ["m"]
    # What somebody asked for by hand, or what the file has moved on from, is not the file's.
    assert without_aborted(RolloutRecord("r9", {"m": Change("2", "1")}, by="ada@desk"), reconciled) is None
    assert without_aborted(RolloutRecord("r9", {"m": Change("5", "1")}, by=FILE), reconciled) is None


# What goes.


def test_what_is_new_is_served_before_the_old_goes() -> None:
    epoch = EpochRecord(4, {"m": served(), "old": served()})
    steps = reconciled_with({"m": desired("2"), "new": desired()}, epoch, ReconciledRecord(6, {"m": "1", "old": "1"}))
    assert steps.epoch is None, "nothing goes yet"
    assert {name for rollout in steps.rollouts for name in rollout.changes} == {"m", "new"}
    assert (steps.reconciled.retiring, steps.reconciled.rollouts) == (("old",), ("r5", "r6"))
    # One of them is not done.
    assert retire(steps.reconciled, epoch, steps.rollouts[:1], 100.0) is None
    # Somebody changes what is to go.
    busy = RolloutRecord("r9", {"old": Change("2", "1")})
    assert retire(steps.reconciled, epoch, (busy,), 100.0) is None
    after = retire(steps.reconciled, epoch, (), 100.0)
    assert after is not None
    assert after.epoch is not None
    assert set(after.epoch.models) == {"m"}
    assert after.reconciled.retiring == ()
    assert [(event.what, event.about) for event in after.events] == [("model removed", "old")]
    assert retire(after.reconciled, after.epoch, (), 100.0) is None


def test_an_aborted_rollout_of_the_same_file_leaves_what_was_to_go() -> None:
    reconciled = ReconciledRecord(7, {"m": "2"}, ("old",), ("r5",))
    after = without_aborted(RolloutRecord("r5", {"m": Change("2", "1")}, by=FILE), reconciled)
    assert after is not None
    assert after.retiring == ()
    # One of a file before it has no say in that.
    other = without_aborted(RolloutRecord("r3", {"n": Change("2", "1")}, by=FILE), reconciled)
    assert other is None


def test_rollouts_that_a_leader_before_had_started_go_on() -> None:
    epoch = EpochRecord(4, {"a": served(), "b": served()})
    models = {"a": desired("2"), "b": desired("2")}
    started = RolloutRecord("r4", {"a": Change("2", "1", pools=("cpu",))}, by=FILE)
    steps = reconciled_with(models, epoch, ReconciledRecord(6), (started,))
    (rollout,) = steps.rollouts
    assert list(rollout.changes) == ["b"]
    assert steps.reconciled.generation == 7
    # One that is on its way back is not what the file asks for.
    aborting = RolloutRecord("r4", {"a": Change("2", "1", pools=("cpu",))}, ABORTING, by=FILE)
    assert reconcile(7, models, ReconciledRecord(6), epoch, (aborting,), 5, 100.0) is None


def test_rollouts_of_a_file_before_that_nobody_asks_for_any_more_are_aborted() -> None:
    moving = RolloutRecord("r4", {"m": Change("1", "1", pools=("metal",), left=("cpu",))}, by=FILE)
    assert superseded({"m": desired(pools=("metal",))}, (moving,), 7) == []
    (aborted,) = superseded({"m": desired()}, (moving,), 7)
    assert aborted.abort_asked == "superseded by generation 7 of fleet.yaml"
    assert superseded({}, (moving,), 7) == [aborted], "the model is gone"
    changing = RolloutRecord("r5", {"m": Change("2", "1", pools=("cpu",))}, by=FILE)
    assert superseded({"m": desired("2")}, (changing,), 7) == []
    assert len(superseded({"m": desired("3")}, (changing,), 7)) == 1
    # What somebody asked for by hand, what is committed, and what is on its way back, stands.
    for other in (
        RolloutRecord("r6", {"m": Change("2", "1", pools=("cpu",))}, by="ada@desk"),
        RolloutRecord("r6", {"m": Change("2", "1", pools=("cpu",))}, DRAINING, by=FILE),
        RolloutRecord("r6", {"m": Change("2", "1", pools=("cpu",))}, ABORTING, by=FILE),
        aborted,
    ):
        assert superseded({"m": desired("3")}, (other,), 7) == []
    # A version that was rolled out by hand and moves is not the file's.
    by_hand = RolloutRecord("r7", {"m": Change("2", "2", pools=("metal",))}, by=FILE)
    assert superseded({"m": desired("1", pools=("metal",))}, (by_hand,), 7) == []
