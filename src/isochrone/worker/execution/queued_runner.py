"""The base of ``BatchRunner`` and ``StreamRunner``: a queue, instances, rejections, and replacement of hung instances.

Runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import IsochroneError, ModelFailed, Unavailable
from isochrone.worker.execution.failure_log import FailureLog
from isochrone.worker.execution.instance import Instance
from isochrone.worker.execution.replacement import MakeInstance, Replacements, discard
from isochrone.worker.scheduling.batch_queue import BatchQueue, QueueRules
from isochrone.worker.scheduling.latency_curve import LatencyCurve

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.statistics import ModelStatistics


class QueuedRunner(ABC):
    """Runs one version of a stateless model."""

    def __init__(
        self,
        name: str,
        rules: QueueRules,
        curve: LatencyCurve,
        statistics: ModelStatistics,
        request_ended: Callable[[], None],
        execution_timeout_ns: int,
    ) -> None:
        self.queue = BatchQueue(rules, curve)
        self.curve = curve
        self.instances: list[Instance] = []
        self._name = name
        self._rules = rules
        self._statistics = statistics
        #: Called once per request, whatever its outcome.
        self._request_ended = request_ended
        #: 0: none.
        self._execution_timeout_ns = execution_timeout_ns
        self._failures = FailureLog(name, statistics.model_version)
        self._loop = asyncio.get_running_loop()
        self._idle: list[Instance] = []
        self._replacements: Replacements
        #: The error of every request once the version is being unloaded, or has no instance left.
        self._rejection: IsochroneError | None = None

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        """Starts with warm instances."""
        self.instances = instances
        self._idle = list(instances)
        self._replacements = Replacements(self._name, replacement)
        self.queue = BatchQueue(self._rules, self.curve, len(instances))

    @abstractmethod
    def _pump(self) -> None:
        """Starts the batches that may start now."""

    @property
    def pending(self) -> int:
        return self.queue.pending

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        return ""

    def estimated_wait(self, now: int) -> int:
        return self.queue.estimated_wait(now)

    def estimated_run(self) -> int:
        return self.queue.estimated_run()

    def least_run(self) -> int:
        return self.curve.estimate(1)

    def _update_busy(self) -> None:
        idle = self._idle
        self.queue.occupy([0 if instance in idle else instance.free_at for instance in self.instances] or [0])

    # Failures.

    def _fail_rejected(self) -> None:
        rejected, self.queue.rejected = self.queue.rejected, []
        for request, error in rejected:
            self._fail(request, error)

    def _fail(self, request: InferRequest, error: IsochroneError) -> None:
        self._failures.request_failed(error)
        self._send_failure(request, error)

    def _send_failure(self, request: InferRequest, error: IsochroneError) -> None:
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        else:
            request.fail(error)

    # Hung runs.

    def _took_too_long(self, consequence: str) -> ModelFailed:
        limit_ms = self._execution_timeout_ns // MILLISECOND
        return ModelFailed(f"model '{self._name}': a run took over execution_timeout_ms ({limit_ms}); {consequence}")

    def _replace(self, instance: Instance) -> None:
        """Abandons an instance and has it replaced."""
        self.instances.remove(instance)
        if instance in self._idle:
            self._idle.remove(instance)
        self._update_busy()
        self._replacements.abandon(instance, self._replaced)

    def _replaced(self, made: Instance | IsochroneError) -> None:
        """The instance was replaced, or cannot be."""
        if isinstance(made, IsochroneError):
            if not self.instances:
                self._rejection = made
                for request in self.queue.clear():
                    self._fail(request, made)
            return
        if self._rejection is not None:
            discard(made)
            return
        self.instances.append(made)
        self._idle.append(made)
        self._update_busy()
        if self.queue.pending:
            self._pump()

    # Unload.

    def _unloading(self) -> IsochroneError:
        return Unavailable(f"model '{self._name}' is being unloaded")

    def release(self) -> None:
        """Rejects further requests. Called on the loop, before ``close``."""
        self._rejection = self._rejection or self._unloading()

    def close(self) -> None:
        """Frees the instances. It waits for their threads, so it must not run on the loop."""
        for instance in self.instances:
            instance.close()
