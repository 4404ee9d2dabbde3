"""The sample of a whole fleet, of its status and the readings of its pages. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from isochrone.cli.rollouts.view import outcome_text
from isochrone.cli.top.figures import Figures, ModelFigures, Pair, between, of_models
from isochrone.cli.top.samples import (
    CHANGING,
    FAULT,
    GATEWAYS,
    MODELS,
    USUAL,
    WARNING,
    WORKERS,
    Line,
    Notice,
    Sample,
    Seen,
)
from isochrone.control.api.messages import GatewayStatus, ModelStatus, Status, WorkerStatus

_MODEL_STATES = {"serving": USUAL, "asleep": USUAL, "degraded": WARNING, "unserved": FAULT, "not served": FAULT}


def fleet_sample(status: Status, pairs: Mapping[str, Pair], at: float) -> Sample:
    """``pairs``: by name of a process."""
    gateways = {each.name: pairs[each.name] for each in status.gateways if each.name in pairs}
    workers = {each.name: pairs[each.name] for each in status.workers if each.name in pairs}
    seen = Seen(
        of_models(gateways.values(), workers.values()),
        {name: between(*pair) for name, pair in gateways.items()},
        {name: between(*pair) for name, pair in workers.items()},
    )
    lines = {
        MODELS: tuple(_model(each, seen.models.get(each.name)) for each in status.models),
        WORKERS: tuple(_worker(each, seen.workers.get(each.name)) for each in status.workers),
        GATEWAYS: tuple(_gateway(each, seen.gateways.get(each.name), status.epoch) for each in status.gateways),
    }
    title = f"fleet {status.fleet}  epoch {status.epoch}  leader {status.leader or 'none'}"
    return Sample(at, title, lines, seen, _notices(status), {GATEWAYS: gateways, WORKERS: workers})


def _notices(status: Status) -> tuple[Notice, ...]:
    notices = []
    if not status.store.connected:
        notices.append(Notice(f"the store is unreachable: {status.store.error or status.store.url}", FAULT))
    notices += [Notice(f"the record {fault.key} cannot be read: {fault.reason}", FAULT) for fault in status.faults]
    if status.access_fault is not None:
        notices.append(Notice(status.access_fault.text, FAULT))
    notices += [
        Notice(f"{process.role} {process.name} {process.how}", FAULT if process.deaths else CHANGING)
        for process in status.processes
    ]
    notices += [Notice(outcome_text(record), CHANGING) for record in status.rollouts]
    return tuple(notices)


def _model(model: ModelStatus, figures: ModelFigures | None) -> Line:
    severity = _MODEL_STATES.get(model.state, CHANGING)
    canary = f"{model.canary.version} at {model.canary.weight:.0%}" if model.canary is not None else ""
    facts = (
        ("version", model.version),
        ("previous", model.previous),
        ("canary", canary),
        ("rollout", model.rollout),
        ("stages", ", ".join(model.stages)),
        ("pools", ", ".join(model.pools)),
        ("digest", model.digest),
        ("fault", model.fault),
    )
    return Line(
        model.name,
        asdict(figures or ModelFigures()),
        model.version,
        model.state,
        FAULT if model.fault and severity == USUAL else severity,
        _known(facts),
    )


def _worker(worker: WorkerStatus, figures: Figures | None) -> Line:
    state, severity = "serving", USUAL
    if worker.draining:
        state, severity = "draining", WARNING
    elif worker.fault:
        state, severity = "gets no requests", FAULT
    elif worker.load_failures:
        state, severity = "cannot load", FAULT
    elif worker.standby:
        state, severity = "stands by", CHANGING
    facts = (
        ("address", worker.address),
        ("metrics", worker.metrics),
        ("pool", worker.pool),
        ("tier", worker.tier),
        ("device", worker.device),
        ("kind", worker.kind),
        ("fault", worker.fault),
        *((f"cannot load {model}", reason) for model, reason in worker.load_failures.items()),
    )
    return Line(worker.name, asdict(figures or Figures()), worker.pool, state, severity, _known(facts))


def _gateway(gateway: GatewayStatus, figures: Figures | None, epoch: int) -> Line:
    state, severity = "serving", USUAL
    if not gateway.registered:
        state, severity = "not registered", FAULT
    elif gateway.draining:
        state, severity = "draining", WARNING
    elif gateway.faults:
        state, severity = "cannot read", FAULT
    elif gateway.epoch != epoch:
        state, severity = "behind", WARNING
    elif gateway.names:
        state, severity = "name unresolved", WARNING
    facts = (
        ("address", gateway.address),
        ("metrics", gateway.metrics),
        ("epoch", str(gateway.epoch) if gateway.epoch else ""),
        *((f"cannot read {key}", reason) for key, reason in gateway.faults.items()),
        *((f"the name {name}", reason) for name, reason in gateway.names.items()),
    )
    label = str(gateway.epoch) if gateway.epoch else ""
    return Line(gateway.name, asdict(figures or Figures()), label, state, severity, _known(facts))


def _known(facts: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in facts if value)
