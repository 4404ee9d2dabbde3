"""The load that a worker reports with its answers: queues, waits, memory.

Under load thousands of answers a second carry a report, so a report is kept for a millisecond.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.clock import MICROSECOND, MILLISECOND, now_ns
from isochrone.errors import IsochroneError
from isochrone.protocol.headers.divisions import DIVISION_KINDS, division_metric
from isochrone.protocol.headers.orca import LoadReport
from isochrone.worker.divided.runner import DividedRunner
from isochrone.worker.generation.runner import GenerationRunner

if TYPE_CHECKING:
    from isochrone.worker.catalog.catalog import Catalog

#: A model's own figures are at most this old.
_KEPT_NS = MILLISECOND
#: The machine's free memory is read so often.
_MEMORY_NS = 100 * MILLISECOND
#: The rate of answers is that of the last period, which lasts at least this long. It is never 0, since Envoy logs an
#: error for every report without a rate.
_RATE_NS = 1_000 * MILLISECOND
_LEAST_RATE = 0.001
#: The figures of the whole worker are added up over all models: at most every so many times of what that takes.
_SHARE = 32


class WorkerLoad:
    """Reports of one worker."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._draining = False
        self._worker = LoadReport({})
        self._worker_until = 0
        self._memory = (0.0, 0)
        self._memory_until = 0
        #: Answers per second in the last period; when the present one began, and the answers until then.
        self._rate = _LEAST_RATE
        self._period = (0, 0)
        #: By model and version as the caller named them.
        self._models: dict[tuple[str, str], LoadReport] = {}
        self._models_until = 0

    def report(self, model_name: str = "", model_version: str = "") -> LoadReport:
        """With a model's name, the wait and run times are that model's."""
        now = now_ns()
        if now > self._models_until:
            self._models_until = now + _KEPT_NS
            self._models.clear()
            if now > self._worker_until:
                self._worker = self._add_up(now)
                ended = now_ns()
                self._worker_until = ended + max(_KEPT_NS, _SHARE * (ended - now))
        if not model_name:
            return self._worker
        key = (model_name, model_version)
        known = self._models.get(key)
        if known is None:
            try:
                runner = self._catalog.find(model_name, model_version).runner
            except IsochroneError:
                return self._worker
            wait, run = runner.estimated_wait(now), runner.estimated_run()
            figures = {
                **self._worker,
                "application_utilization": self._utilization(wait + run),
                "named_metrics.estimated_wait_us": wait / 1000,
                "named_metrics.estimated_run_us": run / 1000,
                "named_metrics.least_run_us": runner.least_run() / 1000,
            }
            if isinstance(runner, GenerationRunner):
                # Triton's names.
                figures["named_metrics.kv_cache_utilization"] = runner.figures.cache_utilization
                figures["named_metrics.max_token_capacity"] = float(runner.figures.token_capacity)
                figures["named_metrics.hung_instances"] = float(runner.figures.hung_instances)
                # What gateways compare deadlines of tokens with.
                figures["named_metrics.inter_token_us"] = runner.figures.estimated_inter_token(now) / 1000
                figures["named_metrics.least_wait_us"] = runner.figures.least_wait(now) / 1000
            if isinstance(runner, DividedRunner):
                for kind in DIVISION_KINDS:
                    late = runner.watch.late_ns(kind)
                    if late is not None:
                        figures[division_metric(kind)] = late / 1000
            known = self._models[key] = LoadReport(figures)
        return known

    def drain(self) -> None:
        """The worker is stopping: gateways must not choose it."""
        self._draining = True
        # Every further answer says so.
        self._models_until = self._worker_until = 0

    def _add_up(self, now: int) -> LoadReport:
        versions = self._catalog.all_versions()
        if now > self._memory_until:
            self._memory_until = now + _MEMORY_NS
            self._memory = _memory()
        share, available = self._memory
        self._measure_rate(now, sum(served.statistics.answered for served in versions))
        figures = {
            "mem_utilization": share,
            "rps_fractional": self._rate,
            "application_utilization": self._utilization(
                max(
                    (served.runner.estimated_wait(now) + served.runner.estimated_run() for served in versions),
                    default=0,
                )
            ),
            "named_metrics.free_memory_bytes": float(available),
            "named_metrics.queue_depth": float(sum(served.runner.pending for served in versions)),
            "named_metrics.in_flight": float(sum(served.in_flight for served in versions)),
            "named_metrics.estimated_wait_us": max(
                (served.runner.estimated_wait(now) / 1000 for served in versions), default=0.0
            ),
            "named_metrics.draining": 1.0 if self._draining else 0.0,
        }
        generating = [served.runner for served in versions if isinstance(served.runner, GenerationRunner)]
        if generating:
            figures["named_metrics.inter_token_us"] = max(
                runner.figures.estimated_inter_token(now) / 1000 for runner in generating
            )
        return LoadReport(figures)

    def _measure_rate(self, now: int, answered: int) -> None:
        since, before = self._period
        if not since:
            self._period = (now, answered)
        elif now - since >= _RATE_NS:
            # A version that was unloaded took its answers with it.
            self._rate = max((answered - before) * 1e9 / (now - since), _LEAST_RATE)
            self._period = (now, answered)

    def _utilization(self, nanoseconds: float) -> float:
        """Requests that would be here if each took that long. Clients that balance by ORCA (gRFC A58) weigh a worker by
        the rate over this: by the inverse of the time that a further request would take."""
        return self._rate * max(nanoseconds, MICROSECOND) / 1e9


def _memory() -> tuple[float, int]:
    """The share of the machine's memory in use, and the available bytes."""
    try:
        with open("/proc/meminfo", "rb") as file:
            lines = dict(line.split(b":") for line in file.read(400).splitlines() if b":" in line)
        total, available = (int(lines[key].split()[0]) for key in (b"MemTotal", b"MemAvailable"))
        return 1 - available / total, available << 10
    except (OSError, KeyError, ValueError):
        return 0.0, 0
