"""What runners of models without state share: a queue before instances, refusals, and instances that are replaced.

``Runner`` and ``StreamRunner`` are made of it; they decide what leaves the queue and when. All on the loop's thread.
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
    """One version of a model, its queue and its instances."""

    def __init__(
        self,
        name: str,
        rules: QueueRules,
        curve: LatencyCurve,
        statistics: ModelStatistics,
        over: Callable[[], None],
        execution_timeout_ns: int,
    ) -> None:
        self.queue = BatchQueue(rules, curve)
        self.curve = curve
        self.instances: list[Instance] = []
        self._name = name
        self._rules = rules
        self._statistics = statistics
        #: Called when a request is over, however it ended.
        self._over = over
        #: 0: none.
        self._execution_timeout_ns = execution_timeout_ns
        self._failures = FailureLog(name, statistics.model_version)
        self._loop = asyncio.get_running_loop()
        self._idle: list[Instance] = []
        self._replacements: Replacements
        #: Why no request is taken: the version is going away, or none of its instances is left.
        self._refusal: IsochroneError | None = None

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        """Puts warmed instances to work."""
        self.instances = instances
        self._idle = list(instances)
        self._replacements = Replacements(self._name, replacement)
        self.queue = BatchQueue(self._rules, self.curve, len(instances))

    @abstractmethod
    def _pump(self) -> None:
        """Starts what may start now."""

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

    def _note_free(self) -> None:
        idle = self._idle
        self.queue.occupy([0 if instance in idle else instance.free_at for instance in self.instances] or [0])

    # Failing.

    def _fail_refused(self) -> None:
        refused, self.queue.refused = self.queue.refused, []
        for request, error in refused:
            self._fail(request, error)

    def _fail(self, request: InferRequest, error: IsochroneError) -> None:
        self._failures.request_failed(error)
        self._send_failure(request, error)

    def _send_failure(self, request: InferRequest, error: IsochroneError) -> None:
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._over()
        if request.cancelled:
            request.dropped()
        else:
            request.fail(error)

    # Runs that do not end.

    def _took_too_long(self, consequence: str) -> ModelFailed:
        limit_ms = self._execution_timeout_ns // MILLISECOND
        return ModelFailed(f"model '{self._name}': a run took over execution_timeout_ms ({limit_ms}); {consequence}")

    def _replace(self, instance: Instance) -> None:
        """Gives an instance up; another one will take its place."""
        self.instances.remove(instance)
        if instance in self._idle:
            self._idle.remove(instance)
        self._note_free()
        self._replacements.give_up(instance, self._replaced)

    def _replaced(self, made: Instance | IsochroneError) -> None:
        """A new instance is there, or there will be none."""
        if isinstance(made, IsochroneError):
            if not self.instances:
                self._refusal = made
                for request in self.queue.clear():
                    self._fail(request, made)
            return
        if self._refusal is not None:
            discard(made)
            return
        self.instances.append(made)
        self._idle.append(made)
        self._note_free()
        if self.queue.pending:
            self._pump()

    # The end.

    def _unloading(self) -> IsochroneError:
        return Unavailable(f"model '{self._name}' is being unloaded")

    def release(self) -> None:
        """On the loop, before ``close``."""
        self._refusal = self._refusal or self._unloading()

    def close(self) -> None:
        """Frees the instances; blocks for their threads, so it runs off the loop."""
        for instance in self.instances:
            instance.close()
