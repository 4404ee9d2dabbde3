"""Needs and offers of a fleet.yaml and of a fleet's records."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fleet_records import KEYS, Records
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.control.placement.figures import StatedFigures
from isochrone.control.placement.fleet_inputs import of_file, of_records
from isochrone.control.placement.planning.planner import plan_placement
from isochrone.control.placement.workers import DRAINING, LOST, SERVING
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, EventRecord, LoadFailuresRecord, Split
from isochrone.control.state.rollout_records import CANARY, DONE, Change, RolloutRecord
from isochrone.errors import InvalidArgument, NotFound

TEXT = """
name: plant
pools:
  edge: {workers: 2, tier: edge, memory: 1GiB, distance_ms: 1}
  core: {workers: 1, tier: core, device: gpu}
  outside: {addresses: ["10.0.0.7:8000"], kind: triton, memory: 2GiB}
models:
  detector: {version: 1, memory: 300MiB, slo: {deadline_ms: 20}, traffic: {tiers: [edge, core]}}
  pipe:
    {version: 1, stages: [detector], with: [detector], pools: [core], traffic: {device: gpu, tiers: {order: [core]}}}
"""
NONE = StatedFigures()


def test_a_file_states_needs_and_offers() -> None:
    fleet = parse_fleet(TEXT, "fleet.yaml", Path("/srv"))
    inputs = of_file(fleet, {"detector": (), "pipe": ("detector",)}, NONE)
    detector, pipe = inputs.needs
    assert (detector.memory, detector.budget, detector.tiers) == (300 * 2**20, 0.02, ("edge", "core"))
    assert (pipe.together, pipe.changes_with, pipe.pools) == (("detector",), ("detector",), ("core",))
    assert (pipe.devices, pipe.tiers, pipe.budget, pipe.rate) == (("gpu",), ("core",), math.inf, None)
    assert {each.name: (each.tier, each.memory, each.round_trip) for each in inputs.workers} == {
        "edge-1": ("edge", 2**30, 0.002),
        "edge-2": ("edge", 2**30, 0.002),
        "core-1": ("core", 0, 0.0),
        "outside-10.0.0.7-8000": ("", 2**31, 0.0),
    }
    assert not inputs.replicas
    assert inputs.assumptions == (
        "the rate of detector, pipe is not measured: replicas are neither added nor given back for load",
        "the memory of pipe is not stated (models.NAME.memory): it takes none",
        "the memory of pool core is not stated (pools.NAME.memory): it is not checked",
        "round trips of pool edge are those of the file (pools.NAME.distance_ms), not measured ones",
        "each worker runs one batch at a time",
        "each worker is taken for a machine of its own",
    )


def test_stated_figures_take_the_place_of_measured_ones() -> None:
    fleet = parse_fleet(TEXT, "fleet.yaml", Path("/srv"))
    figures = StatedFigures({"detector": 50.0}, {"detector": 4.0}, frozenset({"edge-2"}))
    inputs = of_file(fleet, {"detector": (), "pipe": ()}, figures)
    assert inputs.needs[0].rate == 50.0
    assert inputs.needs[0].seconds_per_row("gpu", math.inf) == 0.004
    assert {each.name for each in inputs.workers if each.state == LOST} == {"edge-2"}
    assert "detector" not in inputs.assumptions[0]


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (StatedFigures(rates={"x": 1.0}), "rate: expected a model of the fleet (detector), given 'x'"),
        (StatedFigures(rates={"detector": -1.0}), "rate of detector: expected a number above 0, given -1"),
        (StatedFigures(run_ms={"detector": 0.0}), "run_ms of detector: expected a number above 0, given 0"),
        (StatedFigures(run_ms={"detector": math.nan}), "run_ms of detector: expected a number above 0, given nan"),
        (StatedFigures(without=frozenset({"w"})), "without: expected a worker of the fleet (core-1"),
    ],
)
def test_figures_of_nothing_are_refused(figures: StatedFigures, expected: str) -> None:
    fleet = parse_fleet(TEXT, "fleet.yaml", Path("/srv"))
    with pytest.raises(InvalidArgument) as caught:
        of_file(fleet, {"detector": ()}, figures)
    assert expected in str(caught.value)


def served() -> Records:
    records = Records(
        versions={
            "detector": Assignment("1", pools=("cpu",), memory=2**20),
            "tracker": Assignment("1", pools=("cpu",), memory=5),
            "pipeline": Assignment("1", pools=("cpu",), stages=("detector", "tracker")),
        }
    )
    for number in (1, 3):
        worker = WorkerRecord(f"cpu-{number}", f"10.0.0.{number}", 8000, 8001, pool="cpu", device="cpu", memory=2**30)
        records.put(KEYS.worker(worker.name), worker)
    return records


def test_records_state_what_runs() -> None:
    records = served()
    records.put(KEYS.drain("cpu-3"), EventRecord(1.0, "ada", "drain"))
    records.put(KEYS.load_failures, LoadFailuresRecord({"cpu-3": {"tracker": "1: no memory"}}))
    inputs = of_records(records.view, NONE)
    assert inputs.replicas == {
        "detector": {"cpu-1", "cpu-3"},
        "tracker": {"cpu-1"},
        "pipeline": {"cpu-1", "cpu-3"},
    }
    states = {each.name: (each.state, each.machine, each.rejected) for each in inputs.workers}
    assert states["cpu-1"] == (SERVING, "10.0.0.1", frozenset())
    assert states["cpu-3"] == (DRAINING, "10.0.0.3", {"tracker"})
    # Of the file, and not registered.
    assert states["cpu-2"][0] == LOST
    assert {each.name: each.together for each in inputs.needs}["pipeline"] == ("detector", "tracker")


def test_a_rollout_under_way_counts_the_new_version() -> None:
    records = served()
    change = Change("2", "1", pools=("cpu",), memory=77)
    records.put(KEYS.rollout("r1"), RolloutRecord("r1", {"detector": change}, CANARY))
    records.put(KEYS.rollout("r2"), RolloutRecord("r2", {"tracker": change}, DONE))
    assert {each.name: each.incoming for each in of_records(records.view, NONE).needs} == {
        "detector": 77,
        "pipeline": 0,
        "tracker": 0,
    }


def test_a_canary_without_its_rollout_counts_too() -> None:
    records = Records(versions={"detector": Assignment("1", canary=Split("2"), pools=("cpu",), memory=9)})
    assert [each.incoming for each in of_records(records.view, NONE).needs] == [9]


def test_a_fleet_that_serves_all_models_everywhere_is_left_as_it_is() -> None:
    """No rate is measured: nothing is a reason to move."""
    inputs = of_records(served().view, NONE)
    assert not plan_placement(inputs.needs, inputs.workers, inputs.replicas).moves


def test_without_a_file_there_is_nothing_to_plan() -> None:
    with pytest.raises(NotFound, match="isochrone apply"):
        of_records(Records(None).view, NONE)
