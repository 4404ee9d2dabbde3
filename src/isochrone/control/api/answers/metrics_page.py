"""A controller's metrics page: what the fleet should be and what it is, from the records. Pure.

Every controller has the same figures, apart from its connection to the store: rules believe one that reaches it. Labels
do not repeat those of a scrape target (``name``, ``role``), which Prometheus would rename.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from isochrone.control.api.answers.status import fleet_status
from isochrone.control.api.messages import Status, StoreState
from isochrone.control.fleet.derived.engine_processes import processes_on
from isochrone.control.fleet.reading.present_fleet import present_fleet
from isochrone.control.state.records import KUBERNETES, Assignment
from isochrone.control.state.rollout_records import RolloutRecord
from isochrone.control.state.view import View

_PREFIX = "isochrone_controller_"
#: The state of a model that the file names and that was never committed.
_NOT_SERVED = "not served"
_PROCESS = ProcessCollector(registry=None)


def metrics_page(view: View, store: StoreState, accept: str) -> tuple[bytes, str]:
    """(body, content type) in the format of the Accept header: OpenMetrics or plain text."""
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # prometheus_client raises for a malformed version in the header.
        encode, content_type = choose_encoder("")
    return encode(_Families(view, store)), content_type


class _Families(Collector):
    """The metric families of one scrape."""

    def __init__(self, view: View, store: StoreState) -> None:
        self._view = view
        self._store = store

    def collect(self) -> Iterator[Metric]:
        view = self._view
        status = fleet_status(view, self._store)
        yield _gauge("has_leader", "1: a controller leads", bool(status.leader))
        yield _gauge("store_connected", "1: this controller reads and writes the store", self._store.connected)
        yield _gauge("epoch", "The committed epoch", status.epoch)
        yield from _processes(view)
        yield from _models(status, view)
        yield _rollouts(status)
        yield _aborted(status.aborted)
        yield from _PROCESS.collect()


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_PREFIX + name, text, float(value))


def _processes(view: View) -> Iterator[Metric]:
    workers = GaugeMetricFamily(
        _PREFIX + "worker_registered", "0: expected, and not registered", labels=("worker", "pool")
    )
    pools = {name: record.pool for name, record in view.workers.items()}
    expected_workers, expected_gateways = _expected(view)
    for name, pool in sorted({**expected_workers, **pools}.items()):
        workers.add_metric((name, pool), float(name in pools))
    gateways = GaugeMetricFamily(_PREFIX + "gateway_registered", "0: expected, and not registered", labels=("gateway",))
    registered = view.gateways
    for name in sorted({*expected_gateways, *registered}):
        gateways.add_metric((name,), float(name in registered))
    yield from (workers, gateways)


def _expected(view: View) -> tuple[dict[str, str], set[str]]:
    """Workers with their pools, and gateways, of the applied file at its present size. In a cluster, Kubernetes knows
    how many there should be."""
    record = view.fleet
    if record is None or record.engine == KUBERNETES:
        return {}, set()
    specs = processes_on(record.engine, present_fleet(record, view), Path(record.directory)).values()
    workers = {spec.name: spec.pool for spec in specs if spec.role == "worker"}
    return workers, {spec.name for spec in specs if spec.role == "gateway"}


def _models(status: Status, view: View) -> Iterator[Metric]:
    served = GaugeMetricFamily(
        _PREFIX + "model_served", "0: a gateway would not answer a request to it", labels=("model",)
    )
    for model in status.models:
        coming = model.state == _NOT_SERVED and not model.rollout
        served.add_metric((model.name,), float(not model.fault and not coming))
    shares = GaugeMetricFamily(
        _PREFIX + "model_share",
        "Share of a model's traffic that a version gets; part: committed or canary",
        labels=("model", "version", "part"),
    )
    for name, assignment in sorted(view.assignments.items()):
        for version, part, share in _shares(assignment):
            shares.add_metric((name, version, part), share)
    yield from (served, shares)


def _shares(assignment: Assignment) -> Iterator[tuple[str, str, float]]:
    canary = assignment.canary
    yield assignment.version, "committed", 1.0 - (canary.weight if canary is not None else 0.0)
    if canary is not None:
        yield canary.version, "canary", canary.weight


def _rollouts(status: Status) -> Metric:
    family = GaugeMetricFamily(
        _PREFIX + "rollout",
        "1: a rollout under way, by its state and the step of its canary",
        labels=("rollout", "model", "state", "step"),
    )
    for record in status.rollouts:
        for model in record.changes:
            family.add_metric((record.identity, model, record.state, str(record.step)), 1.0)
    return family


def _aborted(record: RolloutRecord | None) -> Metric:
    family = GaugeMetricFamily(
        _PREFIX + "rollout_aborted",
        "1: the last aborted rollout, until a later one changes its models; cause: evaluation, user or failure",
        labels=("rollout", "model", "cause"),
    )
    if record is not None:
        for model in record.changes:
            family.add_metric((record.identity, model, _cause(record)), 1.0)
    return family


def _cause(record: RolloutRecord) -> str:
    if record.abort_asked:
        return "user"
    return "evaluation" if any(not verdict.passed for verdict in record.verdicts) else "failure"
