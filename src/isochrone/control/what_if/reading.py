"""The situation of a running fleet: of its records, of one reading of its workers, and of the history of figures. Pure.

What is not measured is not invented: a model without requests or times is left out, and each gap is one sentence of the
situation's assumptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from isochrone.control.figures.history import History
from isochrone.control.fleet.derived.gateway_rules import gateway_rules
from isochrone.control.fleet.reading.present_fleet import present_fleet
from isochrone.control.fleet.settings.spec import Fleet
from isochrone.control.scaling.reading.fleet_counters import FleetReading
from isochrone.control.state.assignment import is_assigned
from isochrone.control.state.process_records import WorkerRecord
from isochrone.control.state.records import Assignment, FleetRecord
from isochrone.control.state.view import View
from isochrone.control.what_if.measured_times import ModelTimes, Points, model_times
from isochrone.control.what_if.situation import MeasuredModel, Situation, SituationModel, SituationWorker
from isochrone.errors import NotFound

#: Seconds of the history that count as today.
WINDOW = 60
#: ms from a gateway to a worker whose way nobody measured.
_USUAL_WAY_MS = 0.05
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class _Sources:
    """What all models are read from."""

    fleet: Fleet
    reading: FleetReading
    history: History
    #: Those that get requests.
    workers: Mapping[str, WorkerRecord]
    #: Seconds of the history, up to ``WINDOW``; 0: there is none.
    seconds: int


def require_fleet(view: View) -> FleetRecord:
    """Raises ``NotFound`` if no fleet.yaml was applied."""
    record = view.fleet
    if record is None:
        raise NotFound("no fleet.yaml has been applied yet; run 'isochrone apply FILE'")
    view.require(view.keys.epoch)
    return record


def situation_of(view: View, reading: FleetReading, history: History) -> Situation:
    """Raises ``NotFound`` if no fleet.yaml was applied."""
    record = require_fleet(view)
    fleet, failures, placements = present_fleet(record, view), view.load_failures, view.placements
    standbys, drains = view.standbys, view.drains
    workers = {name: each for name, each in view.workers.items() if name not in drains and name not in standbys}
    sources = _Sources(fleet, reading, history, workers, _seconds(history))
    holders = {
        model: tuple(
            name
            for name, worker in workers.items()
            if is_assigned(worker, model, each.pools, placements) and model not in failures.get(name, {})
        )
        for model, each in view.assignments.items()
    }
    assumptions = [
        "requests arrive at random, independently of each other (Poisson), and have the deadlines of fleet.yaml",
        "models on one worker do not slow each other down beyond what was measured",
    ]
    models: dict[str, SituationModel] = {}
    speeds: dict[str, dict[str, float]] = {}
    left_out: dict[str, str] = {}
    for name, assignment in sorted(view.assignments.items()):
        times = _times(name, assignment, sources, view, holders[name])
        if isinstance(times, str):
            left_out[name] = times
            continue
        models[name] = _model(name, times, sources)
        if assignment.stages:
            assumptions.append(f"{name} is simulated as one run that takes as long as its stages together")
        for worker, speed in times.speeds.items():
            speeds.setdefault(worker, {})[name] = speed
    if standbys:
        assumptions.append(f"workers that stand by ({len(standbys)}) do not step in")
    return Situation(
        tuple(models.values()),
        tuple(
            _worker(worker, tuple(model for model in models if name in holders[model]), speeds.get(name, {}), sources)
            for name, worker in workers.items()
        ),
        view.keys.fleet_name,
        max(1, len(view.gateways)),
        json.loads(gateway_rules(fleet)),
        left_out,
        tuple(assumptions),
        sources.seconds,
    )


def _seconds(history: History) -> int:
    latest, since = history.latest(), history.since
    return 0 if latest is None or since is None else min(WINDOW, latest.at + 1 - since)


def _times(
    name: str, assignment: Assignment, sources: _Sources, view: View, holders: tuple[str, ...]
) -> ModelTimes | str:
    """Its times, or why it is left out."""
    if not sources.seconds:
        return "no figures have been collected yet; ask again in a few seconds"
    if not sources.history.window(name, None, sources.seconds).requests:
        return f"it had no requests in the last {sources.seconds} s"
    if not holders:
        return "no worker serves it"
    devices = {worker: sources.workers[worker].device for worker in holders}
    times = model_times(name, assignment.version, sources.reading.workers, devices)
    if assignment.stages:
        stages = [
            model_times(
                stage,
                view.assignments[stage].version if stage in view.assignments else "",
                sources.reading.workers,
                devices,
            )
            for stage in (times.configuration.steps if times is not None else ()) or assignment.stages
        ]
        known = [each for each in stages if each is not None]
        return _in_sequence(known) if len(known) == len(stages) else "the times of its stages are not measured yet"
    if times is None:
        return "no worker has reported times of its batches yet"
    if not times.configuration.has_batch_times:
        return "it answers with streams: the times of its batches are not known"
    return times


def _in_sequence(stages: list[ModelTimes]) -> ModelTimes:
    """One run of all stages for one row; as many at a time as the scarcest stage has instances."""
    devices = {device for stage in stages for device in stage.curves}
    curves: dict[str, Points] = {}
    for device in devices:
        points = [stage.curves.get(device) or next(iter(stage.curves.values())) for stage in stages]
        curves[device] = ((1, sum(each[0][1] for each in points)),)
    instances = min(stage.configuration.instances for stage in stages)
    configuration = stages[0].configuration._replace(instances=instances, max_rows=1, delay_ns=0)
    return ModelTimes(curves, {}, 1, configuration)


def _model(name: str, times: ModelTimes, sources: _Sources) -> SituationModel:
    figures = sources.history.window(name, None, sources.seconds)
    slo, configuration = sources.fleet.of(name).slo, times.configuration
    total = figures.requests or 1
    return SituationModel(
        name,
        _rounded((figures.requests - figures.excused) / sources.seconds),
        dict(times.curves),
        times.rows,
        slo.deadline_ms,
        slo.priority,
        configuration.max_rows,
        configuration.delay_ns / 1e6,
        configuration.instances,
        MeasuredModel(
            _rounded(figures.percentile_ns(0.5) / 1e6),
            _rounded(figures.percentile_ns(0.99) / 1e6),
            _rounded(figures.deadline_misses / total),
            _rounded(figures.rejected / total),
            _rounded(figures.failed / total),
        ),
    )


def _worker(
    worker: WorkerRecord, models: tuple[str, ...], speeds: dict[str, float], sources: _Sources
) -> SituationWorker:
    latest = sources.history.latest()
    figures = latest.workers.get(worker.name) if latest is not None else None
    pool = sources.fleet.pools.get(worker.pool)
    way = pool.distance_ms if pool is not None and pool.distance_ms else _USUAL_WAY_MS
    if figures is not None and figures.round_trip_s is not None:
        way = _rounded(figures.round_trip_s * 1000 / 2)
    return SituationWorker(
        worker.name,
        models,
        worker.pool,
        worker.tier,
        worker.device,
        way,
        speeds,
        figures.in_flight if figures is not None else -1,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
