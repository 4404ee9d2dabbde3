"""Planned pools under a measured load: replicas follow it in time, and noise does not move them."""

from __future__ import annotations

import math
import random

import pytest
from measured_plant import MeasuredPlant, loaded
from planned_plant import KEYS, MIB

from isochrone.control.placement.figures import StatedFigures
from isochrone.control.placement.fleet_inputs import of_records
from isochrone.control.state.records import Assignment, FiguresRecord

#: Seconds of one run.
RUN = {"a": 0.01, "b": 0.02, "c": 0.02}
OTHERS = {"b": 5.0, "c": 0.5}


@pytest.mark.long
@pytest.mark.parametrize("run", [0.01, 1.0])
@pytest.mark.parametrize("utilisation", [0.5, 0.7, 1.0, 1.4])
def test_a_constant_load_adds_what_it_needs_and_moves_nothing_more(utilisation: float, run: float) -> None:
    """Half an hour of random arrivals at each threshold: of one replica, of giving back the second, of the third."""
    plant = loaded({**RUN, "a": run})
    first = len(plant.moves)
    plant.run(1800.0, {"a": utilisation / run, **OTHERS})
    moves = plant.moves[first:]
    print(f"utilisation {utilisation}, run of {run} s: {len(moves)} moves in 30 minutes: {moves}")
    assert len(moves) <= 3, moves
    assert len(plant.replicas["a"]) - 1 in range(math.floor(utilisation / 0.77), math.ceil(utilisation / 0.5))


@pytest.mark.long
@pytest.mark.parametrize("load", [1.0, 2.0, 2.6, 3.2])
def test_many_models_find_their_places_and_stay_there(load: float) -> None:
    """Twelve models on four workers, whose loads together are ``load`` workers."""
    source = random.Random(2)
    seconds = {f"m{number}": source.choice((0.01, 0.03, 0.1)) for number in range(12)}
    weights = {model: source.random() ** 2 for model in seconds}
    rates = {model: load * weights[model] / sum(weights.values()) / each for model, each in seconds.items()}
    models = {model: Assignment("1", pools=("cpu",), memory=5 * MIB) for model in seconds}
    plant = MeasuredPlant(seconds, 2, MANY, models)
    plant.join("cpu-1", "cpu-2", "cpu-3", "cpu-4")
    plant.settle()
    first = len(plant.moves)
    plant.run(300.0, rates)
    settled = len(plant.moves)
    plant.run(1500.0, rates)
    print(f"load {load}: {settled - first} moves in 5 minutes, {len(plant.moves) - settled} in the next 25")
    assert len(plant.moves) - settled <= 2, plant.moves[settled:]


def test_a_ramp_gets_a_replica_before_one_worker_is_full() -> None:
    plant = loaded(RUN)
    plant.run(20.0, {"a": 10.0, **OTHERS})
    rate = 10.0
    while len([worker for worker in plant.workers.values() if worker.ready("a")]) < 2:
        rate += 2.0
        plant.run(2.0, {"a": rate, **OTHERS})
    print(f"the second replica is ready at a utilisation of {rate * RUN['a']:.2f}")
    assert 0.7 < rate * RUN["a"] < 1.0
    assert any("replica loads: a" in move and "are busy" in move for move in plant.moves)


def test_a_step_is_noticed_within_seconds_and_given_back_after_minutes() -> None:
    plant = loaded(RUN)
    plant.run(300.0, {"a": 10.0, **OTHERS})
    plant.run(15.0, {"a": 130.0, **OTHERS})
    assert len(plant.replicas["a"]) == 2
    plant.run(100.0, {"a": 10.0, **OTHERS})
    assert len(plant.replicas["a"]) == 2, "a pause of 100 s gives nothing back"
    plant.run(300.0, {"a": 10.0, **OTHERS})
    assert len(plant.replicas["a"]) == 1
    assert any("replica unloads: a" in move and "does not need it" in move for move in plant.moves)


def test_bursts_give_nothing_back_between_them() -> None:
    plant = loaded(RUN)
    plant.run(60.0, {"a": 1.0, **OTHERS})
    for _ in range(2):
        plant.run(6.0, {"a": 130.0, **OTHERS})
        plant.run(54.0, {"a": 1.0, **OTHERS})
    moves = len(plant.moves)
    assert len(plant.replicas["a"]) > 1
    for _ in range(20):
        plant.run(6.0, {"a": 130.0, **OTHERS})
        plant.run(54.0, {"a": 1.0, **OTHERS})
    assert len(plant.moves) - moves <= 1, plant.moves[moves:]


def replicated() -> MeasuredPlant:
    """Without measured figures, all workers have the models that they had."""
    plant = MeasuredPlant(RUN)
    plant.join("cpu-1", "cpu-2", "cpu-3", models=("a", "b"))
    plant.settle()
    return plant


def test_replicas_are_given_back_only_after_a_minute_of_readings() -> None:
    plant = replicated()
    plant.run(50.0, {"a": 10.0, **OTHERS})
    assert len(plant.replicas["a"]) == 3
    plant.run(60.0, {"a": 10.0, **OTHERS})
    assert len(plant.replicas["a"]) == 1
    assert len(plant.replicas["b"]) == 1


def test_a_new_leader_begins_with_the_figures_of_the_last_one() -> None:
    plant = loaded(RUN)
    plant.run(100.0, {"a": 80.0, **OTHERS})
    assert len(plant.replicas["a"]) == 2
    before = plant.records.view.figures
    assert before is not None
    plant.lead_anew()
    plant.load()
    moves = len(plant.moves)
    plant.run(40.0, {"a": 10.0, **OTHERS})
    after = plant.records.view.figures
    assert after is not None
    assert after.rates["a"] == before.rates["a"]
    assert plant.moves[moves:] == []


def test_the_record_is_written_every_five_seconds_at_most_and_only_on_change() -> None:
    plant = loaded(RUN)
    plant.run(300.0, {"a": 30.0, **OTHERS})
    revision = plant.records.entries[KEYS.figures].revision
    plant.run(60.0, {"a": 30.0, **OTHERS})
    assert plant.records.entries[KEYS.figures].revision - revision <= 12


def test_round_trips_of_workers_are_recorded() -> None:
    plant = loaded(RUN)
    plant.round_trips = {"cpu-1": 0.002}
    plant.run(10.0, {"a": 30.0})
    figures = plant.records.view.figures
    assert figures is not None
    assert figures.round_trips == {"cpu-1": 0.002}
    (worker, *_) = of_records(plant.records.view, StatedFigures()).workers
    assert (worker.name, worker.round_trip) == ("cpu-1", 0.002)


def test_without_a_planned_pool_there_is_no_record() -> None:
    plant = loaded(RUN)
    plant.run(10.0, {"a": 30.0})
    assert plant.records.view.figures != FiguresRecord()
    plant.apply(PLAIN)
    plant.run(2.0, {})
    assert KEYS.figures not in plant.records.entries
    assert plant.measuring.pools == ()


MANY = """
name: plant
store: {lease_seconds: 4}
pools: {cpu: {workers: 4, memory: 100MiB, replicas: planned}}
"""

PLAIN = """
name: plant
pools: {cpu: {workers: 3, memory: 100MiB}}
models: {a: {memory: 1MiB}}
"""
