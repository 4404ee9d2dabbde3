"""The periodic events of gateways and workers: ejections and slow starts, late calls in queues, utilisation."""

from __future__ import annotations

from collections.abc import Sequence

from isochrone.clock import MILLISECOND, SECOND
from isochrone.simulate.engine import Engine
from isochrone.simulate.processes.exact_worker import ExactWorker
from isochrone.simulate.processes.gateways import Gateway
from isochrone.simulate.processes.models_worker import ModelsWorker
from isochrone.simulate.processes.worker import Worker

_REFRESH_NS = 100 * MILLISECOND


class Upkeep:
    """Of one run. ``allotted``: cores or instances of each worker, ns of compute per ns."""

    def __init__(
        self, engine: Engine, workers: Sequence[Worker], gateways: Sequence[Gateway], allotted: Sequence[float]
    ) -> None:
        self._engine = engine
        self._workers = workers
        self._gateways = gateways
        self._allotted = allotted

    def attach(self, *, is_watched: bool) -> None:
        """Schedule the events. ``is_watched``: gateways look for ejections, outliers and slow starts."""
        engine = self._engine
        if is_watched:
            engine.at(engine.now + _REFRESH_NS, self._refresh, 0)
        exact = [worker for worker in self._workers if isinstance(worker, ExactWorker | ModelsWorker)]
        if exact:
            engine.at(engine.now + _REFRESH_NS, self._check, exact)
        if any(gateway.weighs_utilisation for gateway in self._gateways):
            engine.at(engine.now + SECOND, self._utilisation, [0.0] * len(self._workers))

    def _refresh(self, now: int, times: int) -> None:
        """End ejections and advance slow starts ten times a second; detect outliers once a second."""
        for gateway in self._gateways:
            if times % 10 == 9:
                gateway.judge(now)
            gateway.sweep(now)
        self._engine.at(now + _REFRESH_NS, self._refresh, times + 1)

    def _check(self, now: int, workers: Sequence[ExactWorker | ModelsWorker]) -> None:
        for worker in workers:
            worker.check(now)
        self._engine.at(now + _REFRESH_NS, self._check, workers)

    def _utilisation(self, now: int, before: list[float]) -> None:
        """Report the workers' utilisation to policies that weigh by it, as a monitoring system would."""
        used = [worker.used for worker in self._workers]
        shares = [
            (new - old) / SECOND / allotted for new, old, allotted in zip(used, before, self._allotted, strict=True)
        ]
        for gateway in self._gateways:
            gateway.utilised(shares)
        self._engine.at(now + SECOND, self._utilisation, used)
