"""The standby workers of a fleet, from its file, its records and what its workers have loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import cast

from isochrone.control.fleet.reading.parsing import fleet_of
from isochrone.control.leader.records import LeaderRecords
from isochrone.control.leader.standby_workers import StandbyWorkers, desired_standbys
from isochrone.control.rollout.observed_state import READY, Loaded, ObservedWorker
from isochrone.control.state.codec import encode
from isochrone.control.state.keys import Keys
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import (
    Assignment,
    EpochRecord,
    EventRecord,
    FleetRecord,
    PlacementRecord,
    PoolSizeRecord,
)
from isochrone.control.state.view import View
from isochrone.store.base import Delete, Entry, Put

KEYS = Keys("plant")
EVENT = encode(EventRecord(1.0, "me", "something"))


def standbys(
    pool: Mapping[str, object],
    loaded: Mapping[str, bool | None],
    standing_by: tuple[str, ...] = (),
    drained: tuple[str, ...] = (),
) -> list[str]:
    """``loaded``: by registered worker, whether it has loaded its model; None: it has not reported."""
    fleet = fleet_of({"name": "plant", "pools": {"cpu": dict(pool), "other": {"workers": 1}}})
    records = {KEYS.epoch: encode(EpochRecord(1, {"m": Assignment("2", pools=("cpu",))}))}
    workers = {name: WorkerRecord(name, "127.0.0.1", 1, 1, pool="cpu") for name in loaded}
    records |= {KEYS.worker(name): encode(record) for name, record in workers.items()}
    records |= {KEYS.standby(name): EVENT for name in standing_by}
    records |= {KEYS.drain(name): EVENT for name in drained}
    view = View(KEYS, {key: Entry(key, value, 1) for key, value in records.items()})
    observed = {
        name: ObservedWorker(workers[name], None if has is None else {"m": {"2": Loaded(READY)} if has else {}})
        for name, has in loaded.items()
    }
    return sorted(desired_standbys(fleet, view, observed))


def test_a_pool_has_as_many_as_its_file_says() -> None:
    everybody = dict.fromkeys(("cpu-1", "cpu-2", "cpu-3"), True)
    assert standbys({"workers": 2, "warm": 1}, everybody) == ["cpu-3"]
    assert standbys({"workers": 3, "warm": 0}, everybody) == []
    assert standbys({"workers": 0, "warm": 2}, {}) == [], "a pool that serves nothing needs none"


def test_a_pool_that_becomes_empty_puts_none_in_place() -> None:
    everybody = dict.fromkeys(("cpu-1", "cpu-2", "cpu-3"), True)
    assert standbys({"workers": 0, "warm": 2}, everybody, ("cpu-2", "cpu-3")) == ["cpu-2", "cpu-3"]


def test_before_they_start_it_is_known_who_stands_by() -> None:
    assert standbys({"workers": 2, "warm": 1}, {}) == ["cpu-3"]


def test_a_lost_or_drained_worker_is_replaced() -> None:
    pool = {"workers": 2, "warm": 1}
    assert standbys(pool, {"cpu-1": True, "cpu-3": True}, ("cpu-3",)) == ["cpu-2"]
    everybody = dict.fromkeys(("cpu-1", "cpu-2", "cpu-3"), True)
    assert standbys(pool, everybody, ("cpu-3",), drained=("cpu-1",)) == []


def test_a_drained_one_that_stood_by_does_so_again() -> None:
    everybody = dict.fromkeys(("cpu-1", "cpu-2", "cpu-3"), True)
    assert standbys({"workers": 2, "warm": 1}, everybody, ("cpu-1",), drained=("cpu-1",)) == ["cpu-1"]
    assert standbys({"workers": 2, "warm": 1}, everybody, ("cpu-1",)) == ["cpu-1"]


def test_only_one_that_has_loaded_its_models_replaces_another() -> None:
    pool = {"workers": 1, "warm": 1}
    assert standbys(pool, {"cpu-1": False, "cpu-2": False}, ("cpu-2",)) == ["cpu-2"]
    assert standbys(pool, {"cpu-1": False, "cpu-2": True}, ("cpu-2",)) == ["cpu-1"]


def test_a_new_leader_that_knows_nothing_yet_moves_nobody() -> None:
    pool = {"workers": 1, "warm": 1}
    assert standbys(pool, {"cpu-1": None, "cpu-2": True}, ("cpu-2",)) == ["cpu-2"]
    assert standbys(pool, {"cpu-1": None, "cpu-2": None}, ("cpu-2",)) == ["cpu-2"]


def test_workers_that_an_autoscaler_of_the_cluster_adds_serve() -> None:
    everybody = {f"cpu-{number}": True for number in range(1, 6)}
    assert standbys({"workers": 1, "warm": 1}, everybody, ("cpu-2",)) == ["cpu-2"]


class _Writes:
    """What ``StandbyWorkers`` needs of the leader's records: the keys, and the operations that it was asked for."""

    keys = KEYS

    def __init__(self) -> None:
        self.operations: list[Put | Delete] = []

    def event_of(self, event: EventRecord) -> Put:
        return Put(f"{KEYS.events}{event.about}", encode(event))

    def event(self, who: str, what: str, about: str) -> Put:
        return self.event_of(EventRecord(1.0, who, what, about))

    async def write(self, compares: object, operations: Sequence[Put | Delete], *, durable: bool) -> bool:
        self.operations += operations
        return True


def test_the_autoscalers_size_decides_who_stands_by_without_a_new_generation() -> None:
    spec = {"name": "plant", "pools": {"cpu": {"workers": 1, "warm": 1, "max": 4, "autoscale": {}}}}
    records = {KEYS.fleet: encode(FleetRecord(1, "", spec, "/"))}
    writes = _Writes()
    leader = StandbyWorkers(cast(LeaderRecords, writes))

    def stand_by(size: int | None) -> list[str]:
        writes.operations.clear()
        if size is not None:
            records[KEYS.pool_size("cpu")] = encode(PoolSizeRecord(size))
        view = View(KEYS, {key: Entry(key, value, 1) for key, value in records.items()})
        asyncio.run(leader.reconcile(view, {}))
        return [each.key for each in writes.operations if each.key.startswith(KEYS.standbys)]

    assert stand_by(None) == [KEYS.standby("cpu-2")]
    assert stand_by(3) == [KEYS.standby("cpu-4")]
    assert stand_by(2) == [KEYS.standby("cpu-3")]


def test_the_records_are_decoded_once_for_all_workers() -> None:
    class Counting(View):
        reads = 0

        @property
        def placements(self) -> dict[str, PlacementRecord]:
            Counting.reads += 1
            return super().placements

    fleet = fleet_of({"name": "plant", "pools": {name: {"workers": 3, "warm": 1} for name in ("cpu", "gpu")}})
    workers = [
        WorkerRecord(f"{pool}-{number}", "127.0.0.1", 1, 1, pool=pool) for pool in fleet.pools for number in range(4)
    ]
    entries = {KEYS.worker(each.name): Entry(KEYS.worker(each.name), encode(each), 1) for each in workers}
    desired_standbys(fleet, Counting(KEYS, entries), {each.name: ObservedWorker(each, {}) for each in workers})
    assert Counting.reads == 1
