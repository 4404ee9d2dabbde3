"""The members of an autoscaled pool, from the records and the workers' reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.leader.pool_members import absent, available, drained_by_users, members_of, size_for
from isochrone.control.rollout.observed_state import LOADING, READY, Loaded, ObservedWorker
from isochrone.control.scaling.measured.pool_observation import PoolMembers, Shared
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import SUPERVISOR, Assignment, EpochRecord, EventRecord
from isochrone.control.state.view import View
from isochrone.store.base import Entry

KEYS = Keys("plant")
EVENT = encode(EventRecord(1.0, "me", "something"))
BOTH = {"both": Assignment("2", pools=("cpu", "gpu")), "own": Assignment("2", pools=("cpu",))}


def members(
    loaded: Mapping[str, str | None],
    size: int,
    drained: tuple[str, ...] = (),
    standing_by: tuple[str, ...] = (),
    committed: Mapping[str, Assignment] | None = None,
) -> PoolMembers:
    """Of the pool cpu. ``loaded``: by registered worker, the state of its models; None: it has not reported."""
    fleet = fleet_of({"name": "plant", "pools": {"cpu": {"workers": size}, "gpu": {"workers": 1}}})
    models = dict(committed or {"own": Assignment("2", pools=("cpu",))})
    records: dict[str, bytes] = {KEYS.epoch: encode(EpochRecord(1, models))}
    workers = {name: WorkerRecord(name, "127.0.0.1", 1, 1, pool=name.partition("-")[0]) for name in loaded}
    records |= {KEYS.worker(name): encode(record) for name, record in workers.items()}
    records |= {KEYS.standby(name): EVENT for name in standing_by}
    records |= {KEYS.drain(name): EVENT for name in drained}
    view = View(KEYS, {key: Entry(key, value, 1) for key, value in records.items()})
    observed: dict[str, Any] = {
        name: ObservedWorker(
            workers[name], None if state is None else {model: {"2": Loaded(state)} for model in models}
        )
        for name, state in loaded.items()
    }
    return members_of(["cpu"], fleet, view, observed, unavailable=drained)["cpu"]


def test_each_worker_is_one_kind_of_member() -> None:
    loaded = {"cpu-1": READY, "cpu-2": LOADING, "cpu-3": READY, "cpu-4": READY}
    found = members(loaded, size=4, drained=("cpu-3",), standing_by=("cpu-4",))
    assert found.ready == ("cpu-1",)
    assert found.pending == 2, "one that loads, and one that has not registered"
    assert found.standby == ("cpu-4",)
    assert found.draining == ("cpu-3",)
    assert found.models == {"own"}


def test_more_than_the_size_are_not_pending() -> None:
    assert members({"cpu-1": READY, "cpu-2": READY}, size=1).pending == 0


def test_a_worker_that_has_not_reported_to_a_new_leader_serves() -> None:
    assert members({"cpu-1": None}, size=1).ready == ("cpu-1",)


def test_during_a_rollout_the_old_version_serves() -> None:
    committed = {"own": Assignment("3", pools=("cpu",))}
    assert members({"cpu-1": READY}, size=1, committed=committed).ready == ("cpu-1",)


def test_a_model_that_no_worker_can_load_does_not_hide_the_others() -> None:
    committed = {"own": Assignment("2", pools=("cpu",)), "broken": Assignment("9", pools=("cpu",))}
    worker = WorkerRecord("cpu-1", "127.0.0.1", 1, 1, pool="cpu")
    records = {KEYS.epoch: encode(EpochRecord(1, committed)), KEYS.worker("cpu-1"): encode(worker)}
    view = View(KEYS, {key: Entry(key, value, 1) for key, value in records.items()})
    fleet = fleet_of({"name": "plant", "pools": {"cpu": {"workers": 1}}})
    observed = {"cpu-1": ObservedWorker(worker, {"own": {"2": Loaded(READY)}})}
    assert members_of(["cpu"], fleet, view, observed)["cpu"].ready == ("cpu-1",)


def test_a_model_of_several_pools_names_the_workers_of_the_others() -> None:
    found = members({"cpu-1": READY, "gpu-1": READY, "gpu-2": LOADING}, size=2, committed=BOTH)
    assert found.shared == {"both": Shared(("gpu-1",), 2)}
    assert found.models == {"both", "own"}


def test_a_pool_that_the_fleet_no_longer_has_is_left_out() -> None:
    view = View(KEYS, {})
    assert members_of(["old"], fleet_of({"name": "plant"}), view, {}) == {}


def test_a_worker_that_a_user_drained_is_replaced() -> None:
    assert size_for("cpu", 2, 8, {"cpu-1"}) == 3
    assert size_for("cpu", 2, 8, ()) == 2
    assert size_for("cpu", 2, 2, {"cpu-1"}) == 2, "no more than may be"
    assert size_for("cpu", 0, 8, {"cpu-1"}) == 0
    assert size_for("cpu", 1, 8, {"cpu-1"}) == 2, "an empty pool wakes, too"


@given(st.integers(0, 20), st.integers(1, 20), st.sets(st.integers(1, 20)))
def test_a_size_has_as_many_workers_as_can_be_counted_on(desired: int, most: int, numbers: set[int]) -> None:
    unavailable = {f"cpu-{number}" for number in numbers}
    size = size_for("cpu", desired, most, unavailable)
    assert size <= most
    assert available("cpu", size, unavailable) == min(desired, available("cpu", most, unavailable))
    # A new leader that starts from there changes nothing.
    if available("cpu", size, unavailable) == desired:
        assert size_for("cpu", available("cpu", size, unavailable), most, unavailable) == size


def test_the_supervisors_drains_are_of_workers_that_come_back() -> None:
    users, own = EventRecord(1.0, "ada@desk", "drain", "cpu-1"), EventRecord(1.0, SUPERVISOR, "drain", "cpu-2")
    entries = {KEYS.drain("cpu-1"): encode(users), KEYS.drain("cpu-2"): encode(own)}
    view = View(KEYS, {key: Entry(key, value, 1) for key, value in entries.items()})
    assert drained_by_users(view) == {"cpu-1"}


def test_workers_that_start_or_fail_to() -> None:
    loaded = {"cpu-1": READY, "cpu-2": LOADING, "cpu-3": READY}
    found = members(loaded, size=4, drained=("cpu-3",))
    fleet = fleet_of({"name": "plant", "pools": {"cpu": {"workers": 4}}})
    assert absent("cpu", fleet, found, {"cpu-3"}) == {"cpu-2", "cpu-4"}
