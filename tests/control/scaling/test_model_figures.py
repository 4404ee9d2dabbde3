"""Figures of models from readings: rows that callers offer, times of batches; what is not known is absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from isochrone.control.placement.figures import Figures
from isochrone.control.placement.needs import BatchCurve
from isochrone.control.scaling.measured.model_figures import ModelFigures, PlannedModels
from isochrone.control.scaling.reading.fleet_counters import (
    BatchCounts,
    FleetReading,
    GatewayCounts,
    ModelConfiguration,
    RequestCounts,
    VersionStatistics,
    WorkerStatistics,
)

#: Requests, rows of a request, seconds of a batch of one request.
Served = tuple[int, int, float]
ONE = PlannedModels({"m": ()}, {"a": "cpu"}, single={"m"})


class Readings:
    """A fleet that is read every 2 s. Counters grow by what each reading says."""

    def __init__(self, models: PlannedModels = ONE, known: Figures | None = None) -> None:
        self.models = models
        self.measured = ModelFigures(known or Figures())
        self.now = 0.0
        self.received: dict[str, RequestCounts] = {}
        self.served: dict[tuple[str, str], dict[int, BatchCounts]] = {}
        self.answers: dict[tuple[str, str], int] = {}
        self.configurations: dict[str, ModelConfiguration] = {}

    def read(
        self,
        received: Mapping[str, int] | None,
        served: Mapping[str, Mapping[str, Served]],
        refused: Mapping[str, int] | None = None,
    ) -> Figures:
        """``received``: by model; None: the gateway is silent. ``served``: by worker, by model."""
        self.now += 2.0
        for model, count in (received or {}).items():
            before = self.received.get(model, RequestCounts())
            more = (refused or {}).get(model, 0)
            self.received[model] = RequestCounts(before.received + count, before.refused + more)
        workers = {name: self._worker(name, each) for name, each in served.items()}
        gateway = None if received is None else GatewayCounts("1", dict(self.received))
        return self.measured.take(FleetReading(self.now, {"gw": gateway}, workers), self.models)

    def _worker(self, name: str, served: Mapping[str, Served]) -> WorkerStatistics:
        found = {}
        for model, (requests, rows, seconds) in served.items():
            batches = self.served.setdefault((name, model), {})
            if requests:
                before = batches.get(rows, BatchCounts(0, 0))
                batches[rows] = BatchCounts(before[0] + requests, before[1] + round(requests * seconds * 1e9))
            number = self.answers[name, model] = self.answers.get((name, model), 0) + requests
            configuration = self.configurations.get(model, ModelConfiguration()) if batches else None
            found[model] = {"1": VersionStatistics(dict(batches), 0, number, number, configuration)}
        return WorkerStatistics("1", found)

    def repeat(self, times: int, received: Mapping[str, int], served: Mapping[str, Mapping[str, Served]]) -> Figures:
        for _ in range(times):
            found = self.read(received, served)
        return found


def test_rates_are_in_rows_and_times_by_batch() -> None:
    found = Readings().repeat(40, {"m": 20}, {"a": {"m": (20, 4, 0.02)}})
    assert found.rates == {"m": 40.0}
    assert found.curves == {"m": {"cpu": BatchCurve(((4, 0.02),))}}
    assert found.instances == {"m": 1}
    assert found.round_trips == {}


def test_refused_requests_are_offered_too() -> None:
    readings = Readings()
    for _ in range(40):
        found = readings.read({"m": 200}, {"a": {"m": (100, 1, 0.01)}}, refused={"m": 100})
    assert found.rates == {"m": 100.0}


def test_without_executions_only_the_absence_of_requests_is_known() -> None:
    assert Readings().repeat(40, {"m": 0}, {"a": {"m": (0, 1, 0.0)}}).rates == {"m": 0.0}
    refused = Readings().repeat(40, {"m": 10}, {"a": {"m": (0, 1, 0.0)}})
    assert refused == Figures()


def test_a_silent_gateway_leaves_the_rates_unknown_after_a_while() -> None:
    readings = Readings()
    readings.repeat(40, {"m": 20}, {"a": {"m": (20, 1, 0.01)}})
    found = [readings.read(None, {"a": {"m": (20, 1, 0.01)}}).rates for _ in range(20)]
    assert found[0] == {"m": 10.0}
    assert found[-1] == {}
    again = readings.repeat(3, {"m": 20}, {"a": {"m": (20, 1, 0.01)}})
    assert again.rates == {"m": 10.0}
    assert again.curves


def test_streaming_models_are_not_measured() -> None:
    readings = Readings()
    readings.configurations["m"] = ModelConfiguration(has_batch_times=False)
    assert readings.repeat(40, {"m": 20}, {"a": {"m": (20, 1, 3.0)}}) == Figures()


def test_stages_run_for_their_ensembles() -> None:
    models = PlannedModels({"e": ("s", "t"), "s": (), "t": ()}, {"a": "cpu"}, single={"e", "s", "t"})
    readings = Readings(models)
    readings.configurations["e"] = ModelConfiguration(steps=("s", "t", "t"))
    served = {"e": (20, 1, 0.05), "s": (30, 1, 0.01), "t": (40, 1, 0.01)}
    # Callers ask for s, too; half of the requests for e are refused.
    for _ in range(40):
        found = readings.read({"e": 40, "s": 10}, {"a": served}, refused={"e": 20})
    assert found.rates == {"e": 20.0, "s": 25.0, "t": 40.0}
    assert found.curves.keys() == {"s", "t"}, "the time of an ensemble is that of its stages"


def test_an_ensemble_with_a_stage_that_is_not_measured_has_no_rates() -> None:
    models = PlannedModels({"e": ("s", "t"), "s": (), "t": (), "other": ()}, {"a": "cpu"}, single={"e", "s", "t"})
    readings = Readings(models)
    readings.configurations["e"] = ModelConfiguration(steps=("s", "t"))
    readings.configurations["t"] = ModelConfiguration(has_batch_times=False)
    served = {"e": (20, 1, 0.05), "s": (20, 1, 0.01), "t": (20, 1, 0.01)}
    assert readings.repeat(40, {"e": 20}, {"a": served}).rates == {"other": 0.0}


def test_only_the_part_of_planned_pools_counts() -> None:
    models = replace(ONE, other_pools={"m": 1})
    found = Readings(models).repeat(60, {"m": 80}, {"a": {"m": (20, 1, 0.01)}, "elsewhere": {"m": (60, 1, 0.01)}})
    assert found.rates == {"m": 10.0}


def test_curves_are_by_kind_of_device_and_of_all_its_workers() -> None:
    models = PlannedModels({"m": ()}, {"a": "cpu", "b": "cpu", "c": "gpu"}, single={"m"})
    served = {"a": {"m": (10, 1, 0.01)}, "b": {"m": (10, 1, 0.03)}, "c": {"m": (10, 1, 0.002)}}
    found = Readings(models).repeat(40, {"m": 30}, served)
    assert found.curves["m"].keys() == {"cpu", "gpu"}
    (point,) = found.curves["m"]["cpu"].points
    assert 0.018 <= point[1] <= 0.022
    assert found.curves["m"]["gpu"].points == ((1, 0.002),)


def test_batches_that_are_not_worth_it_are_no_points() -> None:
    readings = Readings()
    for rows, seconds in ((1, 0.01), (2, 0.019), (4, 0.02), (5, 0.024)):
        found = readings.repeat(5, {"m": 10}, {"a": {"m": (10, rows, seconds)}})
    assert [rows for rows, _ in found.curves["m"]["cpu"].points] == [1, 4]


def test_figures_hold_while_the_load_is_the_same() -> None:
    readings = Readings()
    before = readings.repeat(60, {"m": 100}, {"a": {"m": (100, 1, 0.01)}})
    for number in range(60):
        count = 100 + (-1) ** number * 8
        assert readings.read({"m": count}, {"a": {"m": (count, 1, 0.0105)}}) == before


def test_times_hold_while_no_worker_says_anything() -> None:
    readings = Readings()
    before = readings.repeat(40, {"m": 20}, {"a": {"m": (20, 1, 0.01)}})
    readings.models = replace(ONE, devices={"b": "cpu"})
    after = readings.repeat(5, {"m": 20}, {"b": {"m": (0, 1, 0.0)}})
    assert after.curves == before.curves
    assert after.rates == before.rates


def test_what_a_leader_knew_is_the_beginning_of_the_next() -> None:
    known = Figures({"m": 80.0, "gone": 1.0}, {"m": {"cpu": BatchCurve(((2, 0.01),))}}, {"m": 3}, {"a": 0.001})
    readings = Readings(known=known)
    first = readings.read({"m": 20}, {"a": {"m": (20, 2, 0.01)}})
    assert first.rates == {"m": 80.0}
    assert first.round_trips == {}, "they are measured elsewhere"
    assert readings.repeat(20, {"m": 20}, {"a": {"m": (20, 2, 0.01)}}).rates == {"m": 80.0}, "a decrease counts slowly"
    assert readings.repeat(200, {"m": 20}, {"a": {"m": (20, 2, 0.01)}}).rates["m"] < 25
    more = Readings(known=known)
    assert more.repeat(4, {"m": 200}, {"a": {"m": (200, 2, 0.01)}}).rates["m"] > 150, "an increase at once"
