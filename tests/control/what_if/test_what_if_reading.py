"""The situation of a fleet: of its records, its workers' counters and the history of figures."""

from __future__ import annotations

import json

import msgspec
import pytest

from fleet_records import KEYS, Records
from isochrone.control.figures.frames import Frame, ModelFigures, WorkerFigures
from isochrone.control.figures.history import History
from isochrone.control.scaling.reading.counter_pages import model_configuration
from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    FleetReading,
    ModelConfiguration,
    VersionStatistics,
    WorkerStatistics,
)
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EventRecord
from isochrone.control.what_if.measured_times import model_times
from isochrone.control.what_if.reading import situation_of
from isochrone.control.what_if.situation import Situation, SituationModel, SituationWorker, read_situation
from isochrone.errors import InvalidArgument, NotFound

FLEET = """
name: plant
defaults: {policy: least_connections}
pools:
  cpu: {workers: 3, min: 1, max: 4, distance_ms: 2}
models:
  detector: {version: 1, pools: [cpu], slo: {deadline_ms: 30}}
  tracker: {version: 1, pools: [cpu]}
  pipeline: {version: 1, pools: [cpu], stages: [detector, tracker]}
  writer: {version: 1, pools: [cpu]}
  unused: {version: 1, pools: [cpu]}
"""
BATCHING = ModelConfiguration(2, max_rows=8, delay_ns=500_000)


def statistics(ns: int = 2_000_000) -> WorkerStatistics:
    """``ns``: of a batch of one row."""
    detector = VersionStatistics({1: BatchCounts(100, 100 * ns), 4: BatchCounts(100, 200 * ns)}, successes=500)
    tracker = VersionStatistics({2: BatchCounts(10, 10_000_000)}, successes=10, configuration=ModelConfiguration())
    pipeline = VersionStatistics(
        {1: BatchCounts(5, 1)}, successes=5, configuration=ModelConfiguration(steps=("detector", "tracker", "tracker"))
    )
    writer = VersionStatistics(
        {1: BatchCounts(5, 5)}, successes=5, configuration=ModelConfiguration(has_batch_times=False)
    )
    versions = {
        "detector": detector._replace(configuration=BATCHING),
        "tracker": tracker,
        "pipeline": pipeline,
        "writer": writer,
    }
    return WorkerStatistics("i", {name: {"1": each} for name, each in versions.items()})


def a_history(begin: int = 1_800_000_000) -> History:
    history = History()
    for at in range(begin, begin + 10):
        models = {
            (name, "1"): ModelFigures(name, "1", answered=20, deadline_exceeded=4, failed=1, durations={3: 20})
            for name in ("detector", "tracker", "pipeline", "writer")
        }
        history.add(Frame(at, models, {"w1": WorkerFigures("w1", in_flight=3, round_trip_s=0.001)}))
    return history


def a_fleet() -> Records:
    names = ("detector", "tracker", "writer", "unused")
    versions = {name: Assignment("1", pools=("cpu",)) for name in names}
    versions["pipeline"] = Assignment("1", pools=("cpu",), stages=("detector", "tracker"))
    records = Records(FLEET, versions)
    for name in ("w1", "w2", "w3", "w4"):
        records.put(KEYS.workers + name, WorkerRecord(name, "h", 1, 1, pool="cpu", device="cpu"))
    records.put(KEYS.drains + "w3", EventRecord(1.0, "ada", "drain", "w3"))
    records.put(KEYS.standbys + "w4", EventRecord(1.0, "ada", "standby", "w4"))
    return records


def a_reading(**workers: WorkerStatistics | None) -> FleetReading:
    return FleetReading(1.0, {}, workers or {"w1": statistics(), "w2": statistics()})


def test_workers_models_load_and_rules_are_those_of_the_fleet() -> None:
    found = situation_of(a_fleet().view, a_reading(), a_history())
    assert [(worker.name, worker.pool, worker.device) for worker in found.workers] == [
        ("w1", "cpu", "cpu"),
        ("w2", "cpu", "cpu"),
    ]
    assert [(worker.way_ms, worker.in_flight) for worker in found.workers] == [(0.5, 3), (2.0, -1)]
    models = {model.name: model for model in found.models}
    detector = models["detector"]
    assert (detector.rate, detector.deadline_ms, detector.instances) == (25.0, 30.0, 2)
    assert (detector.max_rows, detector.delay_ms, detector.rows) == (8, 0.5, 1)
    assert detector.curves == {"cpu": ((1, 2.0), (4, 4.0))}
    assert detector.measured is not None
    assert (detector.measured.missed, detector.measured.failed) == (0.16, 0.04)
    # Its requests do not share batches: one request is one row, whatever it has.
    assert models["tracker"].curves == {"cpu": ((1, 1.0),)}
    # The steps of an ensemble, one after the other.
    assert models["pipeline"].curves == {"cpu": ((1, 4.0),)}
    assert any("pipeline is simulated as one run" in each for each in found.assumptions)
    assert found.left_out["unused"] == "it had no requests in the last 10 s"
    assert "streams" in found.left_out["writer"]
    assert found.rules["models"]["detector"]["policy"] == "least_connections"
    assert (found.fleet, found.measured_seconds) == ("plant", 10)


def test_a_history_that_begins_within_a_minute_is_as_long_as_it_is() -> None:
    found = situation_of(a_fleet().view, a_reading(), a_history(1_800_000_045))
    assert found.measured_seconds == 10
    assert next(model.rate for model in found.models if model.name == "detector") == 25.0


def test_a_situation_survives_its_file() -> None:
    found = situation_of(a_fleet().view, a_reading(), a_history())
    assert read_situation(msgspec.json.encode(found), "today.json") == found


def test_a_worker_that_is_slower_than_the_others_has_its_speed() -> None:
    reading = a_reading(w1=statistics(2_000_000), w2=statistics(6_000_000))
    found = situation_of(a_fleet().view, reading, a_history())
    speeds = {worker.name: worker.speeds["detector"] for worker in found.workers}
    # The curve is the mean of both, 4 ms for one row.
    assert speeds == {"w1": 2.0, "w2": pytest.approx(2 / 3, rel=0.01)}


def test_without_figures_or_answers_of_workers_models_are_left_out() -> None:
    silent = situation_of(a_fleet().view, a_reading(w1=None, w2=None), a_history())
    assert silent.models == ()
    assert silent.left_out["detector"] == "no worker has reported times of its batches yet"
    new = situation_of(a_fleet().view, a_reading(), History())
    assert set(new.left_out.values()) == {"no figures have been collected yet; ask again in a few seconds"}
    with pytest.raises(NotFound):
        situation_of(Records(None).view, a_reading(), History())


def test_rare_sizes_of_batches_do_not_count() -> None:
    batches = {1: BatchCounts(100_000, 10**11), 7: BatchCounts(1, 10**9), 8: BatchCounts(5000, 10**10)}
    version = VersionStatistics(batches, successes=140_000, configuration=BATCHING)
    found = model_times("m", "1", {"w": WorkerStatistics("i", {"m": {"1": version}})}, {"w": "gpu"})
    assert found is not None
    assert found.curves == {"gpu": ((1, 1.0), (8, 2.0))}


@pytest.mark.parametrize(
    ("config", "rows", "delay_ns"),
    [
        ({"max_batch_size": 8}, 1, 0),
        ({"max_batch_size": 8, "dynamic_batching": {}}, 8, 0),
        ({"max_batch_size": 0, "dynamic_batching": {"max_queue_delay_microseconds": "100"}}, 1, 100_000),
    ],
)
def test_requests_share_batches_only_with_dynamic_batching(config: object, rows: int, delay_ns: int) -> None:
    found = model_configuration(json.dumps(config).encode())
    assert (found.max_rows, found.delay_ns) == (rows, delay_ns)


def a_file(**changes: object) -> bytes:
    model = SituationModel("m", 1.0, {"": ((1, 1.0),)})
    situation = Situation((model,), (SituationWorker("w", ("m",)),))
    return msgspec.json.encode({**json.loads(msgspec.json.encode(situation)), **changes})


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "expected a situation"),
        (b"[]", "expected a situation"),
        (a_file(modles=[]), "unknown field `modles`"),
        (a_file(gateways=0), "gateways"),
        (a_file(workers=[{"name": "w", "models": ["x"]}]), "given 'x'"),
        (a_file(workers=[{"name": "w", "models": []}] * 2), "each worker once"),
        (a_file(workers=[{"name": "w", "models": [], "speeds": {"m": 0}}]), "speeds above 0"),
        (a_file(models=[{"name": "m", "rate": -1, "curves": {"": [[1, 1]]}}]), "a rate"),
        (a_file(models=[{"name": "m", "rate": 1, "curves": {}}]), "at least one kind of device"),
        (a_file(models=[{"name": "m", "rate": 1, "curves": {"gpu": [[2, 1], [1, 1]]}}]), "curves.gpu"),
        (a_file(models=[{"name": "m", "rate": 1, "curves": {"": [[1, 1]]}, "max_rows": 0}]), "rows"),
    ],
)
def test_a_file_with_errors_is_rejected_with_its_name_and_what_was_expected(content: bytes, expected: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        read_situation(content, "today.json")
    assert raised.value.message.startswith("today.json: ")
    assert expected in raised.value.message
