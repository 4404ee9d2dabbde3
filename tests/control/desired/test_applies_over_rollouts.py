"""Files applied while rollouts of earlier files are open: nothing is retired before its replacement is served, and no
retirement is lost. Over orders of events, without a store: the leader's decisions as the controller makes them."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

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
    ABORTED,
    ABORTING,
    DONE,
    DRAINING,
    PENDING,
    PREPARING,
    Change,
    RolloutRecord,
)

File = dict[str, DesiredModel]


@dataclass
class Fleet:
    """What the store holds, and the steps that change it."""

    file: File
    generation: int = 1
    epoch: EpochRecord = field(default_factory=lambda: EpochRecord(0))
    reconciled: ReconciledRecord = field(default_factory=lambda: ReconciledRecord(0))
    rollouts: dict[str, RolloutRecord] = field(default_factory=dict)

    @property
    def open(self) -> list[RolloutRecord]:
        return [each for each in self.rollouts.values() if not each.is_over]

    def apply(self, file: File) -> None:
        self.file, self.generation = file, self.generation + 1

    def lead(self) -> None:
        """One look at the file, as ``Controller._follow_fleet`` does it."""
        if self.reconciled.generation >= self.generation:
            self._write(retire(self.reconciled, self.epoch, self.open, 0.0))
        elif late := superseded(self.file, self.open, self.generation):
            self.rollouts.update({each.identity: each for each in late})
        else:
            number = len(self.rollouts) + 1
            self._write(reconcile(self.generation, self.file, self.reconciled, self.epoch, self.open, number, 0.0))

    def _write(self, steps: Reconciliation | None) -> None:
        if steps is None:
            return
        if steps.epoch is not None:
            for name in set(self.epoch.models) - set(steps.epoch.models):
                assert name not in self.file
                assert self.is_served, f"{name} goes before what the file asks for is served"
            self.epoch = steps.epoch
        self.reconciled = steps.reconciled
        self.rollouts.update({each.identity: each for each in steps.rollouts})

    @property
    def is_served(self) -> bool:
        """Whether all that the file asks for is served as it asks."""
        models = self.epoch.models
        return all(
            name in models and (models[name].version, models[name].pools) == (desired.version, desired.pools)
            for name, desired in self.file.items()
        )

    def advance(self, record: RolloutRecord) -> None:
        """One step of its machine."""
        if record.abort_asked and record.state in (PENDING, PREPARING):
            self._enter(record, ABORTING)
        elif record.state == PENDING:
            busy = [each for each in self.open if each.state not in (PENDING, DRAINING)]
            if all(each.changes.keys().isdisjoint(record.changes) for each in busy):
                self._enter(record, PREPARING)
        elif record.state == PREPARING:
            new = {name: Assignment(each.version, pools=each.pools) for name, each in record.changes.items()}
            self.epoch = EpochRecord(self.epoch.epoch + 1, {**self.epoch.models, **new})
            self._enter(record, DRAINING)
        elif record.state == DRAINING:
            self._enter(record, DONE)
        elif record.state == ABORTING:
            self.reconciled = without_aborted(record, self.reconciled) or self.reconciled
            self._enter(record, ABORTED)

    def fail(self, record: RolloutRecord) -> None:
        if record.state in (PENDING, PREPARING):
            self._enter(record, ABORTING)

    def _enter(self, record: RolloutRecord, state: str) -> None:
        self.rollouts[record.identity] = msgspec.structs.replace(record, state=state)

    def settle(self) -> None:
        """Everything goes on until nothing changes any more."""
        while True:
            before = (self.epoch, self.reconciled, dict(self.rollouts))
            self.lead()
            for record in self.open:
                self.advance(record)
            if before == (self.epoch, self.reconciled, self.rollouts):
                assert self.reconciled.generation == self.generation
                assert not self.open
                return


_MODELS = st.builds(DesiredModel, st.sampled_from("12"), st.sampled_from([("cpu",), ("metal",)]))
_FILES = st.dictionaries(st.sampled_from("abc"), _MODELS, min_size=1)
_EVENTS = st.one_of(
    st.tuples(st.just("apply"), _FILES),
    st.tuples(st.just("apply again"), st.none()),
    st.tuples(st.sampled_from(["lead", "lead", "advance", "advance", "fail"]), st.integers(0, 3)),
)


@settings(max_examples=300, deadline=None)
@given(first=_FILES, together=st.booleans(), events=st.lists(_EVENTS, max_size=25))
def test_nothing_goes_before_its_replacement_and_nothing_stays_for_good(
    first: File, together: bool, events: list[tuple[str, File | int | None]]
) -> None:
    fleet = Fleet(first)
    fleet.settle()
    assert fleet.epoch.models.keys() == first.keys()
    for what, which in events:
        if what == "apply" and isinstance(which, dict):
            fleet.apply({name: _tied(desired, which) if together else desired for name, desired in which.items()})
        elif what == "apply again":
            fleet.apply(fleet.file)
        elif what == "lead":
            fleet.lead()
        elif fleet.open and isinstance(which, int):
            record = fleet.open[which % len(fleet.open)]
            if what == "advance":
                fleet.advance(record)
            else:
                fleet.fail(record)
    served = fleet.epoch.models
    fleet.settle()
    if fleet.is_served:
        assert fleet.epoch.models.keys() == fleet.file.keys()
    else:
        # A rollout that the last file asks for was aborted: what was served stays.
        assert served.keys() <= fleet.epoch.models.keys()
    # Whatever was aborted: the file applied once more is carried out whole.
    fleet.apply(fleet.file)
    fleet.settle()
    assert fleet.is_served
    assert fleet.epoch.models.keys() == fleet.file.keys()


def _tied(desired: DesiredModel, file: File) -> DesiredModel:
    """The same, to change at once with all others of its file."""
    return DesiredModel(desired.version, desired.pools, together=tuple(file))


# Orders that went wrong, by hand.


def _removing() -> Fleet:
    """Version 2 of one model is being prepared, and another model goes after it."""
    fleet = Fleet({"a": DesiredModel("1", ("cpu",)), "old": DesiredModel("1", ("cpu",))})
    fleet.settle()
    fleet.apply({"a": DesiredModel("2", ("cpu",))})
    fleet.lead()
    assert fleet.reconciled.retiring == ("old",)
    return fleet


def test_the_same_file_applied_again_and_again_retires_after_the_rollout() -> None:
    fleet = _removing()
    for _ in range(3):
        fleet.apply(dict(fleet.file))
        fleet.lead()
        fleet.lead()
        assert set(fleet.epoch.models) == {"a", "old"}
        assert len(fleet.open) == 1, "it goes on, and nothing is started a second time"
    fleet.settle()
    assert set(fleet.epoch.models) == {"a"}


def test_a_file_with_one_more_model_waits_for_both_rollouts() -> None:
    fleet = _removing()
    fleet.apply({**fleet.file, "new": DesiredModel("1", ("cpu",))})
    fleet.lead()
    assert set(fleet.reconciled.rollouts) == {each.identity for each in fleet.open}
    assert len(fleet.open) == 2
    fleet.settle()
    assert set(fleet.epoch.models) == {"a", "new"}


def test_an_abort_after_the_second_apply_leaves_what_was_served() -> None:
    fleet = _removing()
    fleet.apply(dict(fleet.file))
    fleet.lead()
    fleet.fail(fleet.open[0])
    fleet.settle()
    assert {name: each.version for name, each in fleet.epoch.models.items()} == {"a": "1", "old": "1"}


def test_a_file_applied_while_the_rollout_is_on_its_way_back_asks_for_the_version_again() -> None:
    fleet = _removing()
    fleet.fail(fleet.open[0])
    fleet.apply(dict(fleet.file))
    fleet.lead()
    assert set(fleet.epoch.models) == {"a", "old"}
    fleet.settle()
    assert {name: each.version for name, each in fleet.epoch.models.items()} == {"a": "2"}


def test_a_version_and_a_pool_that_change_together_are_not_started_twice() -> None:
    fleet = Fleet({"a": DesiredModel("1", ("cpu",)), "old": DesiredModel("1", ("cpu",))})
    fleet.settle()
    fleet.apply({"a": DesiredModel("2", ("metal",))})
    fleet.lead()
    fleet.apply(dict(fleet.file))
    fleet.lead()
    assert fleet.reconciled == ReconciledRecord(3, {"a": "2"}, ("old",), ("r2",))
    assert fleet.rollouts["r2"].by == FILE
    assert fleet.rollouts["r2"].changes["a"] == Change("2", "1", pools=("metal",), left=("cpu",))
    fleet.settle()
    assert fleet.is_served
    assert set(fleet.epoch.models) == {"a"}
