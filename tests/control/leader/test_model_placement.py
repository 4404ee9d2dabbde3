"""The leader's part in model placement: from records and workers' reports to the next placement records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planned_plant import EVENT, LEASE, MIB, MODELS, TEXT, Plant, committed, started

from fleet_records import KEYS, file_of
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.leader.model_placement import KNOWN_SECONDS
from isochrone.control.placement.applying.absences import START_SECONDS
from isochrone.control.placement.applying.execution import Holding, Needed
from isochrone.control.placement.applying.planned_pools import planned_pools
from isochrone.control.placement.applying.rejections import FIRST_PAUSE, LONGEST_PAUSE, Rejections
from isochrone.control.placement.figures import Figures, StatedFigures
from isochrone.control.rollout.desired_versions import LACKS_ROOM
from isochrone.control.rollout.observed_state import LOADING, READY, Failure, Loaded, ObservedWorker
from isochrone.control.state.codec import encode
from isochrone.control.state.records import KUBERNETES, Assignment, EpochRecord, FleetRecord, PlacementRecord
from isochrone.control.state.rollout_records import DONE, DRAINING, PENDING, PREPARING, Change


def test_models_spread_over_the_workers_each_with_its_reason() -> None:
    plant = started()
    assert sorted(plant.replicas.values()) == [("cpu-1",), ("cpu-2",), ("cpu-3",)]
    assert ("replica loads", "a", f"worker {plant.replicas['a'][0]}: the model has too few replicas") in plant.events
    assert not plant.step(10.0)
    assert len(plant.events) == 3, "nothing else happens"


def test_new_models_are_placed_while_their_rollout_prepares() -> None:
    plant = Plant(versions={})
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.step()
    assert plant.replicas == {}
    changes = {model: Change("1", pools=("cpu",), memory=40 * MIB) for model in MODELS}
    plant.records.rollout("r1", PREPARING, changes)
    plant.step()
    assert set(plant.replicas) == set(MODELS)


def test_workers_that_are_starting_get_their_part_when_they_are_there() -> None:
    plant = Plant()
    plant.join("cpu-1")
    plant.step()
    assert list(plant.replicas.values()) == [("cpu-1",)], "the others are expected"
    plant.load()
    plant.join("cpu-2")
    plant.step(1.0)
    assert sorted(plant.replicas.values()) == [("cpu-1",), ("cpu-2",)]
    plant.load()
    plant.step(START_SECONDS)
    assert len(plant.replicas) == 3, "the third one did not come"


def test_the_models_of_a_lost_worker_are_placed_again_and_no_others_move() -> None:
    plant = started()
    before = plant.replicas
    (lost,) = before["a"]
    plant.leave(lost)
    plant.step(LEASE / 2)
    assert plant.replicas == before, "only its lease may have ended"
    plant.step(LEASE)
    assert lost not in plant.replicas["a"]
    assert {model: names for model, names in plant.replicas.items() if model != "a"} == {
        model: names for model, names in before.items() if model != "a"
    }
    assert ("replicas lost", lost, "its models are placed again: a") in plant.events
    plant.settle()


def test_a_worker_that_returns_in_time_keeps_its_models() -> None:
    plant = started()
    before = plant.replicas
    plant.leave("cpu-2")
    plant.step(LEASE / 2)
    plant.join("cpu-2")
    plant.step(LEASE)
    assert plant.replicas == before


def test_a_model_with_too_few_replicas_says_so_once() -> None:
    text = TEXT.replace("a: {memory: 40MiB}", "a: {memory: 40MiB, min_replicas: 4}")
    plant = Plant(text)
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.settle()
    plant.settle()
    why = plant.records.view.placements["cpu"].short["a"]
    assert why.startswith("it has 3 of 4 replicas")
    assert [event for event in plant.events if event[0] == "replicas are missing"] == [
        ("replicas are missing", "a", why)
    ]


def test_a_model_that_fits_nowhere_says_why_and_is_placed_when_there_is_room() -> None:
    models = [f"m{number}" for number in range(7)]
    plant = Plant(versions=committed(*models))
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.settle()
    record = plant.records.view.placements["cpu"]
    assert len(record.replicas) == 6, "two of 40 MiB on each of 100"
    ((left, why),) = record.unplaced.items()
    assert "no allowed worker has 40 MiB free" in why
    assert ("model is not placed", left, why) in plant.events
    plant.records.put(KEYS.epoch, EpochRecord(8, committed(*(model for model in models if model != "m0"))))
    plant.settle()
    record = plant.records.view.placements["cpu"]
    assert not record.unplaced
    assert len(record.replicas) == 6


def test_memory_of_what_is_not_unloaded_yet_counts() -> None:
    plant = Plant(versions=committed("a", "b"))
    plant.join("cpu-1")
    plant.step(0.0)
    plant.load()
    plant.step(START_SECONDS)
    plant.load()
    assert set(plant.replicas) == {"a", "b"}
    # a is retired and c is new: c waits until a has left.
    plant.records.put(KEYS.epoch, EpochRecord(8, committed("b", "c")))
    plant.step(0.1)
    record = plant.records.view.placements["cpu"]
    assert set(record.replicas) == {"b"}
    assert record.reserved == {"cpu-1": 80 * MIB}
    assert record.memory["a"] == 40 * MIB
    worker = plant.workers["cpu-1"]
    unloading = {"a": {"1": Loaded("UNLOADING")}, "b": {"1": Loaded(READY)}}
    plant.workers["cpu-1"] = ObservedWorker(worker.record, unloading)
    plant.step(0.1)
    assert set(plant.replicas) == {"b"}
    plant.workers["cpu-1"] = ObservedWorker(worker.record, {"a": {}, "b": {"1": Loaded(READY)}})
    plant.step(0.1)
    assert set(plant.replicas) == {"b", "c"}


def test_a_previous_version_makes_room() -> None:
    plant = Plant(versions={"a": Assignment("2", previous="1", pools=("cpu",), memory=40 * MIB)})
    plant.join("cpu-1")
    plant.step(START_SECONDS)
    plant.step(START_SECONDS)
    plant.load()
    assert plant.workers["cpu-1"].ready("a").keys() == {"1", "2"}
    more = {**committed("b"), "a": plant.records.view.assignments["a"]}
    plant.records.put(KEYS.epoch, EpochRecord(8, more))
    plant.step(0.1)
    assert set(plant.replicas) == {"a"}, "80 of 100 MiB are in use"
    plant.load()
    assert plant.workers["cpu-1"].ready("a").keys() == {"2"}, "the previous version makes room"
    plant.step(0.1)
    assert set(plant.replicas) == {"a", "b"}


def test_other_models_make_room_for_a_rollout_that_waits() -> None:
    plant = Plant(versions=committed("a", "b", "c", "d"))
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.settle()
    both = next(name for name in plant.workers if sum(name in names for names in plant.replicas.values()) == 2)
    model = next(model for model, names in plant.replicas.items() if names == (both,))
    since = {"pending": 1.0, LACKS_ROOM: 1.0}
    plant.records.rollout("r1", PENDING, {model: Change("2", "1", pools=("cpu",), memory=40 * MIB)}, since=since)
    plant.settle()
    assert sum(both in names for names in plant.replicas.values()) == 1
    assert all(len(names) == 1 for names in plant.replicas.values())


def test_nothing_is_lost_while_no_worker_is_registered() -> None:
    plant = started()
    before = plant.replicas
    for name in list(plant.workers):
        plant.leave(name)
    plant.step(100 * LEASE)
    plant.step(100 * LEASE)
    assert plant.replicas == before
    plant.join("cpu-1")
    plant.step(1.0)
    assert plant.replicas == before, "the others have the time of a start"


def test_a_model_that_cannot_be_loaded_goes_elsewhere() -> None:
    plant = Plant(versions=committed("a"))
    plant.join("cpu-1", "cpu-2", "cpu-3")
    plant.step()
    ((name,),) = plant.replicas.values()
    failure = Failure(frozenset({"1"}), "no file")
    plant.workers[name] = ObservedWorker(plant.workers[name].record, {}, {"a": failure})
    plant.step(0.1)
    (other,) = set(plant.replicas["a"]) - {name}
    plant.workers[other] = ObservedWorker(plant.workers[other].record, {"a": {"1": Loaded(LOADING)}})
    plant.step(0.1)
    assert set(plant.replicas["a"]) == {name, other}
    plant.workers[other] = ObservedWorker(plant.workers[other].record, {"a": {"1": Loaded(READY)}})
    plant.step(0.1)
    assert set(plant.replicas["a"]) == {name, other}, "no gateway knows it yet"
    plant.step(KNOWN_SECONDS)
    assert plant.replicas["a"] == (other,)
    assert ("replica unloads", "a", f"worker {name}: the worker could not load it") in plant.events


def test_a_drained_worker_gives_its_models_away_once_they_are_ready_elsewhere() -> None:
    plant = started()
    (name,) = plant.replicas["a"]
    plant.records.put(KEYS.drain(name), EVENT)
    plant.step(0.1)
    assert len(plant.replicas["a"]) == 2
    plant.step(0.1)
    assert len(plant.replicas["a"]) == 2, "it is not ready yet"
    plant.settle()
    assert name not in plant.replicas["a"]
    assert len(plant.replicas["a"]) == 1


def test_what_a_worker_holds() -> None:
    plant = started()
    (name,) = plant.replicas["a"]
    plant.records.put(KEYS.drain(name), EVENT)
    states = {"a": {"1": Loaded(READY)}, "b": {"1": Loaded(LOADING), "2": Loaded("UNAVAILABLE")}}
    failure = Failure(frozenset({"1"}), "no file")
    plant.workers[name] = ObservedWorker(plant.workers[name].record, states, {"c": failure})
    view = plant.records.view
    fleet = parse_fleet(TEXT, "fleet.yaml", Path("/"))
    pools = planned_pools(fleet, view, plant.workers, view.placements, (), {}, Figures())
    assert pools.holdings[name] == Holding(
        100 * MIB,
        {"a": {"1": 40 * MIB}, "b": {"1": 40 * MIB}},
        frozenset("a"),
        frozenset("c"),
        leaving={"b": 40 * MIB},
        serves=False,
        pool="cpu",
    )
    assert pools.needed["a"] == Needed({"1": 40 * MIB}, pools=frozenset({"cpu"}))


def test_a_pool_that_becomes_planned_keeps_what_its_workers_have() -> None:
    plant = Plant(versions=committed("a", "b"))
    plant.join("cpu-1", "cpu-2", models=("a", "b"))
    plant.workers["cpu-2"] = ObservedWorker(plant.workers["cpu-2"].record, None)
    assert plant.step()
    assert plant.placement.is_undecided(plant.records.view, plant.workers["cpu-1"].record), "one has not reported"
    assert plant.placement.placements(plant.records.view) == {"cpu": PlacementRecord()}
    plant.join("cpu-2", models=("a", "b"))
    plant.step()
    assert not plant.placement.is_undecided(plant.records.view, plant.workers["cpu-1"].record)
    assert plant.replicas == {"a": ("cpu-1", "cpu-2"), "b": ("cpu-1", "cpu-2")}


@pytest.mark.parametrize("value", [b"{", encode(PlacementRecord())])
def test_a_pool_that_is_not_planned_has_no_record(value: bytes) -> None:
    plant = Plant(TEXT.replace("planned", "all"))
    plant.join("cpu-1")
    plant.records.put(KEYS.placement("cpu"), value)
    plant.step()
    assert KEYS.placement("cpu") not in plant.records.entries
    assert plant.placement.placements(plant.records.view) == {}


def test_a_record_that_cannot_be_read_is_made_again_from_what_workers_have() -> None:
    plant = started()
    before = plant.replicas
    plant.records.put(KEYS.placement("cpu"), b"{")
    plant.step(0.1)
    assert plant.replicas == before


def test_a_hot_model_gets_another_replica_when_its_rate_is_known() -> None:
    plant = started()
    plant.measure(StatedFigures({"a": 100.0}, {"a": 9.0}).over(Figures()))
    plant.step(10.0)
    assert len(plant.replicas["a"]) == 2
    assert any(what == "replica loads" and "are busy" in why for what, _, why in plant.events)


def test_a_worker_that_returns_late_keeps_what_nothing_else_serves() -> None:
    plant = started()
    (name,) = plant.replicas["a"]
    worker = plant.workers[name]
    plant.leave(name)
    plant.step(LEASE / 2)
    plant.step(LEASE)
    (other,) = plant.replicas["a"]
    assert other != name
    plant.records.put(KEYS.worker(name), worker.record)
    plant.workers[name] = ObservedWorker(worker.record)
    plant.step(0.1)
    assert plant.placement.is_undecided(plant.records.view, worker.record), "it has not reported"
    plant.workers[name] = worker
    plant.step(0.1)
    assert plant.replicas["a"] == tuple(sorted((name, other)))
    assert not plant.placement.is_undecided(plant.records.view, worker.record)
    assert ("replica stays", "a", f"worker {name}: it serves the model there, and no other worker does") in plant.events


def test_a_worker_that_reports_after_its_pool_became_planned_keeps_what_nothing_else_serves() -> None:
    plant = Plant()
    plant.join("cpu-1", "cpu-2", "cpu-3", models=MODELS[:2])
    real = plant.workers["cpu-3"]
    plant.lead_anew()
    plant.step(0.0)
    plant.step(11.0)
    assert plant.replicas == {}
    plant.workers["cpu-3"] = real
    plant.step(0.1)
    assert plant.replicas["a"] == plant.replicas["b"] == ("cpu-3",)


def apply(plant: Plant, text: str, generation: int = 2, **fields: Any) -> None:
    spec = file_of(text).fleet.model_dump(mode="json")
    plant.records.put(KEYS.fleet, FleetRecord(generation, text, spec, "/fleet", "b", 901.0, **fields))


def test_the_record_of_a_dropped_pool_stays_while_anything_serves_there() -> None:
    plant = started()
    before = plant.replicas
    apply(plant, TEXT.replace("  cpu: {workers: 3, memory: 100MiB, replicas: planned}", "  gpu: {workers: 1}"))
    plant.step(1.0)
    for name in list(plant.workers):
        plant.leave(name)
    plant.step(1.0)
    assert plant.replicas == before, "only leases may have ended"
    models = {model: Assignment("1", pools=("gpu",)) for model in MODELS}
    plant.records.put(KEYS.epoch, EpochRecord(8, models))
    left = {"a": Change("1", "1", pools=("gpu",), left=("cpu",))}
    plant.records.rollout("r1", DRAINING, left, epoch=8)
    plant.step(1.0)
    assert plant.replicas == before
    plant.records.rollout("r1", DONE, left, epoch=8)
    plant.step(1.0)
    assert not plant.records.view.placements


def test_workers_that_the_file_no_longer_asks_for_give_their_models_away() -> None:
    plant = started()
    (model,) = [model for model, names in plant.replicas.items() if names == ("cpu-3",)]
    apply(plant, TEXT.replace("workers: 3", "workers: 2"))
    plant.step(0.1)
    assert len(plant.replicas[model]) == 2, "it is loaded elsewhere while its worker is there"
    plant.leave("cpu-3")
    plant.step(0.1)
    assert "cpu-3" not in plant.replicas[model], "it is lost at once: it does not come back"


def test_in_pods_workers_beyond_the_file_stay() -> None:
    plant = started()
    before = plant.replicas
    apply(plant, TEXT.replace("workers: 3", "workers: 2"), engine=KUBERNETES)
    plant.step(0.1)
    assert plant.replicas == before


def test_a_model_that_cannot_be_loaded_keeps_no_other_one_out() -> None:
    text = TEXT.replace("workers: 3", "workers: 1")
    models = {"a": Assignment("1", pools=("cpu",), memory=80 * MIB), **committed("b")}
    plant = Plant(text, models)
    plant.join("cpu-1")
    record, loads_of_a, unserved = plant.workers["cpu-1"].record, 0, 0
    for _ in range(120):
        plant.step(5.0)
        given = {model for model, names in plant.replicas.items() if names}
        # A worker forgets the failure of a load that it should not make any more.
        failures = {"a": Failure(frozenset({"1"}), "bad file")} if "a" in given else {}
        plant.workers["cpu-1"] = ObservedWorker(
            record, {model: {"1": Loaded(READY)} for model in given - {"a"}}, failures
        )
        loads_of_a += "a" in given
        unserved += "b" not in given
    assert unserved <= 2
    assert loads_of_a <= 2


def test_pauses_grow_and_end_with_the_process_and_the_version() -> None:
    rejections, attempt = Rejections(), ("w", "first", "m", "1")
    rejections.give_up(attempt, 0.0)
    assert rejections.rejected(FIRST_PAUSE - 1) == {"w": frozenset("m")}
    assert rejections.rejected(FIRST_PAUSE) == {}
    rejections.give_up(attempt, 100.0)
    assert rejections.rejected(100.0 + 2 * FIRST_PAUSE - 1) == {"w": frozenset("m")}
    for _ in range(20):
        rejections.give_up(attempt, 0.0)
    assert rejections.rejected(LONGEST_PAUSE) == {}
    rejections.give_up(attempt, 0.0)
    rejections.keep_only({("w", "second", "m", "1")})
    assert rejections.rejected(0.0) == {}
