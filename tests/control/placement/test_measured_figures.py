"""Measured figures: in the store and back, and what plans make of them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fleet_records import KEYS, Records
from isochrone.control.placement.figures import Figures, StatedFigures, figures_record, measured_figures
from isochrone.control.placement.fleet_inputs import of_records
from isochrone.control.placement.needs import BatchCurve
from isochrone.control.placement.planning.planner import plan_placement
from isochrone.control.state.codec import decode, encode
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, FiguresRecord

NONE = StatedFigures()
names = st.text(max_size=5)
numbers = st.floats(0, 1e9)
curves = st.dictionaries(st.integers(1, 4096), st.floats(1e-6, 1e3), min_size=1, max_size=5).map(
    lambda points: BatchCurve(tuple(sorted(points.items())))
)


@given(
    st.dictionaries(names, numbers),
    st.dictionaries(names, st.dictionaries(names, curves, min_size=1)),
    st.dictionaries(names, st.integers(1, 64)),
    st.dictionaries(names, numbers),
)
def test_a_record_gives_the_same_figures_back(
    rates: dict[str, float],
    times: dict[str, dict[str, BatchCurve]],
    instances: dict[str, int],
    round_trips: dict[str, float],
) -> None:
    figures = Figures(rates, times, instances, round_trips)
    record = decode(encode(figures_record(figures)), FiguresRecord)
    assert measured_figures(record) == figures


def test_figures_that_make_no_sense_are_left_out() -> None:
    record = FiguresRecord(
        {"a": -1.0, "b": 2.0},
        {"a": {"cpu": ((1, 0.0),), "gpu": ((1, 0.5),)}, "b": {"cpu": ()}},
        {"a": 0, "b": 3},
        {"w": -1.0},
    )
    found = measured_figures(record)
    assert found == Figures({"b": 2.0}, {"a": {"gpu": BatchCurve(((1, 0.5),))}}, {"b": 3})
    assert measured_figures(None) == Figures()


def test_a_batch_of_several_rows_says_little_about_one_row() -> None:
    curve = BatchCurve(((8, 0.08),))
    assert curve.seconds_per_row(0.05) == 0.01, "one row may take less than the batch"
    assert curve.seconds_per_row(0.005) is None, "it cannot take less than its part of the batch"


def served(deadline_ms: int) -> Records:
    text = f"""
name: plant
pools: {{cpu: {{workers: 2, memory: 1GiB, replicas: planned}}}}
models:
  hot: {{memory: 1MiB, slo: {{deadline_ms: {deadline_ms}}}}}
  cold: {{memory: 1MiB}}
"""
    models = ("hot", "cold")
    records = Records(text, {name: Assignment("1", pools=("cpu",), memory=2**20) for name in models})
    for name in ("cpu-1", "cpu-2"):
        records.put(KEYS.worker(name), WorkerRecord(name, name, 1, 1, pool="cpu", device="cpu", memory=2**30))
    return records


def measure(records: Records, rate: float, seconds: float) -> None:
    figures = Figures({"hot": rate}, {"hot": {"cpu": BatchCurve(((1, seconds),))}}, {"hot": 1}, {"cpu-1": 0.001})
    records.put(KEYS.figures, figures_record(figures))


def test_plans_of_a_running_fleet_use_what_is_measured() -> None:
    records = served(deadline_ms=100)
    measure(records, 80.0, 0.01)
    inputs = of_records(records.view, NONE)
    needs = {each.name: each for each in inputs.needs}
    assert needs["hot"].rate == 80.0
    assert needs["cold"].rate is None
    assert {each.name: each.round_trip for each in inputs.workers} == {"cpu-1": 0.001, "cpu-2": 0.0}
    assert inputs.assumptions == (
        "the rate of cold is not measured: replicas are neither added nor given back for load",
        "each worker runs one batch at a time",
    )
    stated = {each.name: each for each in of_records(records.view, StatedFigures({"hot": 5.0})).needs}
    assert stated["hot"].rate == 5.0


def test_a_model_that_no_worker_runs_in_time_is_served_late_rather_than_not_at_all() -> None:
    records = served(deadline_ms=100)
    measure(records, 5.0, 0.2)
    inputs = of_records(records.view, NONE)
    assert {each.name: each.budget for each in inputs.needs} == {"hot": math.inf, "cold": math.inf}
    assert "the deadline of hot does not count: by the measured times no worker keeps it" in inputs.assumptions
    plan = plan_placement(inputs.needs, inputs.workers, {})
    assert not plan.unplaced
    assert len(plan.replicas["hot"]) == 2, "it is busy all the time"
    stated = of_records(records.view, StatedFigures(run_ms={"hot": 200.0}))
    assert stated.needs[1].budget == 0.1, "what a caller states is taken as it is"
