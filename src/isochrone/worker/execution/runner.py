"""The base of every runner: failed requests, hung instances, rejection of requests during an unload.

Runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from isochrone.clock import MILLISECOND, now_ns
from isochrone.errors import IsochroneError, ModelFailed, Unavailable
from isochrone.worker.execution.failure_log import FailureLog
from isochrone.worker.execution.instances.replacement import MakeInstance, Replacements

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.backends.interface import PostingOutlet
    from isochrone.worker.execution.instances.instance import Instance
    from isochrone.worker.execution.runner_context import RunnerContext


class Runner:
    """Runs the requests of one model version on its instances."""

    def __init__(self, context: RunnerContext) -> None:
        self.curve = context.curve
        self.instances: list[Instance] = []
        self._name = context.name
        self._statistics = context.statistics
        #: Called once per request, whatever its outcome.
        self._request_ended = context.request_ended
        #: 0: none.
        self._execution_timeout_ns = context.execution_timeout_ns
        self._failures = FailureLog(context.name, context.statistics.model_version)
        self._loop = asyncio.get_running_loop()
        self._replacements: Replacements
        #: The error of every request once the version is being unloaded, or has no instance left.
        self._rejection: IsochroneError | None = None

    def start(self, instances: list[Instance], replacement: MakeInstance) -> None:
        """Starts with warm instances."""
        self.instances = instances
        self._replacements = Replacements(self._name, replacement)

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        return ""

    def outlet_of(self, request: InferRequest) -> PostingOutlet:
        """Where an executable that takes requests sends the answers that it does not return."""
        raise NotImplementedError

    def is_available(self) -> bool:
        """Whether an instance can run a request now. An instance that is being replaced counts as one that can."""
        return not self.instances or any(instance.executable.is_available() for instance in self.instances)

    def least_run(self) -> int:
        return self.curve.estimate(1)

    def _fail(self, request: InferRequest, error: IsochroneError) -> None:
        self._failures.request_failed(error)
        self._send_failure(request, error)

    def _send_failure(self, request: InferRequest, error: IsochroneError) -> None:
        self._statistics.record_failure(error.code, now_ns() - request.arrived)
        self._statistics.trace_failure(request, error)
        self._request_ended()
        if request.cancelled:
            request.dropped()
        else:
            request.fail(error)

    def _took_too_long(self, consequence: str) -> ModelFailed:
        limit_ms = self._execution_timeout_ns // MILLISECOND
        return ModelFailed(f"model '{self._name}': a run took over execution_timeout_ms ({limit_ms}); {consequence}")

    def _unloading(self) -> IsochroneError:
        return Unavailable(f"model '{self._name}' is being unloaded")

    def release(self) -> None:
        """Rejects further requests. Called on the loop, before ``close``."""
        self._rejection = self._rejection or self._unloading()
