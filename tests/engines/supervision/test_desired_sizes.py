"""The processes of autoscaled pools: their number follows the autoscaler's records, and no lost record stops any."""

from __future__ import annotations

from fleet_records import KEYS, Records, file_of
from isochrone.control.state.process_records import GatewayRecord
from isochrone.control.state.records import KUBERNETES, LOCAL, Assignment, EpochRecord, FleetRecord, PoolSizeRecord
from isochrone.control.state.rollout_records import PREPARING, Change
from isochrone.control.state.view import View
from isochrone.engines.supervision.desired import FleetRecordReader, awaited_models, desired_processes
from isochrone.engines.supervision.reconcile import Drain, Observed, Stop, Undrain, decide

TEXT = """
name: plant
pools:
  cpu: {workers: 2, max: 6, autoscale: {zero_after_seconds: 60}}
  still: {workers: 1}
models:
  m: {version: 1, pools: [cpu]}
  n: {version: 1, pools: [cpu, still]}
"""


class Supervised:
    """The records of a fleet, and what its supervisor makes of them."""

    def __init__(self, text: str = TEXT, engine: str = LOCAL) -> None:
        self.records = Records(None)
        self.engine = engine
        self.apply(text)
        self.lines: list[str] = []
        view = View(KEYS, self.records.entries, is_lasting=True)
        self.reader = FleetRecordReader(engine, self.records.entries, view, desired_processes, self.lines.append)

    def apply(self, text: str) -> None:
        spec = file_of(text).fleet.model_dump(mode="json")
        self.records.put(KEYS.fleet, FleetRecord(1, text, spec, "/fleet", engine=self.engine))

    def size(self, workers: int) -> None:
        self.records.put(KEYS.pool_size("cpu"), PoolSizeRecord(workers, "load", at=5.0))

    @property
    def workers(self) -> list[str]:
        return [name for name, spec in self.reader.read().items() if spec.pool == "cpu"]

    @property
    def count(self) -> int:
        return len(self.workers)


def test_the_size_of_the_record_counts_once_there_is_one() -> None:
    fleet = Supervised()
    assert fleet.workers == ["cpu-1", "cpu-2"]
    fleet.size(4)
    assert fleet.workers == ["cpu-1", "cpu-2", "cpu-3", "cpu-4"]
    fleet.size(1)
    assert fleet.workers == ["cpu-1"]
    fleet.size(0)
    assert fleet.workers == []
    fleet.size(99)
    assert fleet.count == 6
    assert not fleet.lines
    record = fleet.records.view.fleet
    assert record is not None
    # Without a view: the size of the file.
    assert sum(spec.pool == "cpu" for spec in desired_processes(record).values()) == 2


def test_a_size_that_cannot_be_read_or_vanishes_stops_no_process() -> None:
    fleet = Supervised()
    fleet.size(5)
    assert fleet.count == 5
    fleet.records.put(KEYS.pool_size("cpu"), b'{"workers": "many"}')
    assert fleet.count == 5
    del fleet.records.entries[KEYS.pool_size("cpu")]
    assert fleet.count == 5
    fleet.size(0)
    assert fleet.count == 0
    fleet.records.put(KEYS.pool_size("cpu"), b"")
    assert fleet.count == 0


def test_an_epoch_that_turns_out_to_be_an_earlier_one_stops_no_process() -> None:
    """A backup of the store was restored: the gateways that served later epochs register again after it was read."""
    fleet = Supervised()
    fleet.records.put(KEYS.epoch, EpochRecord(5, {"m": Assignment("1", pools=("cpu",))}))
    fleet.size(4)
    assert fleet.count == 4
    fleet.records.put(KEYS.gateway("g"), GatewayRecord("g", "h", 1, epoch=7))
    fleet.size(1)
    assert fleet.count == 4
    fleet.records.put(KEYS.epoch, EpochRecord(8, {"m": Assignment("1", pools=("cpu",))}))
    assert fleet.count == 1


def test_a_file_without_autoscale_counts_again_and_an_old_size_is_forgotten() -> None:
    fleet = Supervised()
    fleet.size(5)
    assert fleet.count == 5
    fleet.apply(TEXT.replace(", autoscale: {zero_after_seconds: 60}", ""))
    # The leader deletes the record later.
    assert fleet.count == 2
    del fleet.records.entries[KEYS.pool_size("cpu")]
    fleet.apply(TEXT)
    assert fleet.count == 2


def test_a_higher_minimum_counts_at_once() -> None:
    fleet = Supervised()
    fleet.size(0)
    assert fleet.count == 0
    fleet.apply(
        TEXT.replace(
            "workers: 2, max: 6, autoscale: {zero_after_seconds: 60}", "workers: 3, min: 3, max: 6, autoscale: {}"
        )
    )
    assert fleet.count == 3


def test_kubernetes_scales_pods_itself() -> None:
    fleet = Supervised(engine=KUBERNETES)
    fleet.size(5)
    assert fleet.count == 2


def test_a_rollout_wakes_an_empty_pool_unless_the_model_has_a_worker_elsewhere() -> None:
    fleet = Supervised()
    fleet.size(0)
    changes = {"n": Change("2", "1", pools=("cpu", "still"))}
    fleet.records.rollout("r-1", PREPARING, changes)
    assert fleet.count == 0
    fleet.records.rollout("r-2", PREPARING, {"m": Change("2", "1", pools=("cpu",))})
    assert fleet.workers == ["cpu-1"]
    fleet.records.rollout("r-2", "done", {"m": Change("2", "1", pools=("cpu",))})
    assert fleet.count == 0


def test_a_fleet_is_up_without_the_models_of_empty_pools() -> None:
    fleet = Supervised()
    record = fleet.records.view.fleet
    assert record is not None
    models = EpochRecord(3, {"m": Assignment("1", pools=("cpu",)), "n": Assignment("1", pools=("cpu", "still"))}).models
    assert awaited_models(record, fleet.reader.read(), models) == ["m", "n"]
    fleet.size(0)
    assert awaited_models(record, fleet.reader.read(), models) == ["n"]


def test_a_pool_that_shrinks_drains_all_surplus_workers_at_once_and_also_the_last() -> None:
    fleet = Supervised()
    fleet.size(4)
    observed = {name: Observed(spec, ready=True) for name, spec in fleet.reader.read().items()}
    fleet.size(1)
    assert decide(fleet.reader.read(), observed, 0.0) == [Drain("cpu-2"), Drain("cpu-3"), Drain("cpu-4")]
    fleet.size(0)
    desired = fleet.reader.read()
    names = ["cpu-1", "cpu-2", "cpu-3", "cpu-4"]
    assert decide(desired, observed, 0.0) == [Drain(name) for name in names]
    draining = {**observed, **{name: Observed(observed[name].spec, ready=True, draining=0.0) for name in names}}
    # Busy ones get their time, idle ones stop when every gateway knows.
    assert decide(desired, draining, 1.0) == []
    idle = {**observed, **{name: Observed(observed[name].spec, ready=True, draining=0.0, idle=True) for name in names}}
    assert decide(desired, idle, 1.0) == [Stop(name) for name in names]
    # A request wakes the pool while its workers drain.
    fleet.size(2)
    assert decide(fleet.reader.read(), draining, 1.0) == [Undrain("cpu-1"), Undrain("cpu-2")]
