"""A model version that is served: it checks requests against its signature, counts them and passes them to its runner.

Its state changes only on the loop's thread. The count of in-flight requests lets an unload wait for the last one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from isochrone.clock import NEVER, now_ns
from isochrone.errors import IsochroneError, Unsupported
from isochrone.worker.execution.runner import Runner
from isochrone.worker.request_wrappers import CachingRequest
from isochrone.worker.response_cache import ResponseCache, response_key

if TYPE_CHECKING:
    from isochrone.models.repository.description import ModelDescription
    from isochrone.protocol.messages import InferRequest, Plan
    from isochrone.worker.activation_cache.reuse import ActivationReuse
    from isochrone.worker.execution.inline.watchdog import InlineWatchdog
    from isochrone.worker.statistics import ModelStatistics


class RequestRunner(Protocol):
    """The interface of the runners of a version: of batches, streams, sequences, or ensembles."""

    @property
    def pending(self) -> int: ...

    def submit(self, request: InferRequest) -> None: ...

    def estimated_wait(self, now: int) -> int:
        """ns until a new request would start."""
        ...

    def estimated_run(self) -> int:
        """ns that the run of a new request would take, in the batch that it would join; 0: not known."""
        ...

    def least_run(self) -> int:
        """ns that the run of a request takes alone, the minimum; 0: not known."""
        ...

    def steps_digest(self, stages: Mapping[str, str] | None) -> str:
        """Digests of the versions that an ensemble would run for a request with these stages; "" for a model."""
        ...

    def check_stuck(self, now: int) -> None: ...

    def fail_all(self, error: IsochroneError | None = None) -> None: ...

    def release(self) -> None: ...

    def close(self) -> None: ...


class ServedVersion:
    """One version, ready for requests."""

    def __init__(
        self,
        description: ModelDescription,
        version: int,
        digest: str,
        statistics: ModelStatistics,
        watchdog: InlineWatchdog,
    ) -> None:
        self.model_name = description.name
        self.model_version = str(version)
        self.number = version
        self.description = description
        self.digest = digest
        self.statistics = statistics
        self._watchdog = watchdog
        self.signature = description.signature
        self.batched = description.signature.max_batch_size > 0
        #: No output is BYTES: the size of an answer depends on shapes alone, so transports memoise the bytes around it.
        self.fixed_size = all(spec.datatype != "BYTES" for spec in description.signature.outputs)
        self.decoupled: bool = description.config.model_transaction_policy.decoupled
        self.runner: RequestRunner
        #: Of an ensemble: the versions of its steps when it was last checked against them.
        self.checked_steps: list[ServedVersion] = []
        #: Set when responses of this model are cached.
        self.cache: ResponseCache | None = None
        #: Set when outputs of this model are reused for similar pictures.
        self.activations: ActivationReuse | None = None
        #: Of requests that state none; 0: none.
        self.default_deadline_ns = 0
        #: Whether its instances take ``DeviceArray`` objects as inputs.
        self.runs_on_devices = False
        self._is_ready = True
        self.in_flight = 0
        self._drained: asyncio.Event | None = None

    def set_ready(self, is_ready: bool) -> None:
        self._is_ready = is_ready

    @property
    def is_ready(self) -> bool:
        """False: it is loaded, but no instance of it can answer."""
        return self._is_ready and (not isinstance(self.runner, Runner) or self.runner.is_available())

    def submit(self, request: InferRequest) -> None:
        """Runs a request, or raises: it does not fit the model, or cannot be queued."""
        plan = request.plan
        if plan.checked_by is not self:
            plan = request.plan = self._own(plan)
            self._check(plan)
        request.served_by = self
        if self.default_deadline_ns and request.deadline == NEVER:
            request.deadline = request.arrived + self.default_deadline_ns
        if self.cache is not None:
            caching = self._look_up(request, self.cache)
            if caching is None:
                return
            request = caching
        if self.activations is not None:
            computed = self.activations.look_up(request)
            if computed is None:
                return
            request = computed
        self.in_flight += 1
        watchdog = self._watchdog
        if watchdog.last_requested is not self:
            watchdog.last_requested, watchdog.last_change = self, request.arrived
        try:
            self.runner.submit(request)
        except IsochroneError as error:
            self.request_ended()
            if self.activations is not None and self.activations.answer_rejected(request):
                return
            self.statistics.record_rejected(error.code)
            self.statistics.waiting = self.runner.pending
            self.statistics.trace_failure(request, error)
            raise

    @staticmethod
    def _own(plan: Plan) -> Plan:
        """The plan itself, or a copy while requests of another version may still use it."""
        other = plan.checked_by
        return plan.copy() if isinstance(other, ServedVersion) and other.in_flight else plan

    def _check(self, plan: Plan) -> None:
        plan.batch_size = self.signature.check(plan.inputs, plan.outputs)
        start = 1 if self.batched else 0
        plan.shape_key = tuple(sorted((name, shape[start:]) for name, _, shape in plan.inputs))
        # Another version of an ensemble may have other steps.
        plan.step_plans = None
        plan.checked_by = self

    @property
    def takes_device_arrays(self) -> bool:
        """Whether steps before it in an ensemble may pass ``DeviceArray`` objects to it: a cache reads them."""
        return self.runs_on_devices and self.cache is None and self.activations is None

    def hold(self) -> None:
        """Keeps the version loaded until ``request_ended`` is called: a request will follow."""
        self.in_flight += 1

    def cache_digest(self, stages: Mapping[str, str] | None = None) -> str:
        """The digest of everything beside the request that decides an answer: this version, and those of its steps."""
        return self.digest + self.runner.steps_digest(stages)

    def request_ended(self) -> None:
        """Counts a request out, whatever its outcome."""
        self.in_flight -= 1
        if self._drained is not None and not self.in_flight:
            self._drained.set()

    async def drain(self, seconds: float) -> bool:
        """Waits until no request is in flight; False: the time has passed."""
        if not self.in_flight:
            return True
        self._drained = asyncio.Event()
        try:
            async with asyncio.timeout(seconds):
                await self._drained.wait()
        except TimeoutError:
            return False
        return True

    def reject_unary(self, endpoint: str) -> None:
        if self.decoupled:
            raise Unsupported(
                f"{endpoint} doesn't support models with decoupled transaction policy: '{self.model_name}'; "
                "use ModelStreamInfer or generate_stream"
            )

    def _look_up(self, request: InferRequest, cache: ResponseCache) -> InferRequest | None:
        """Answers from the cache. On a miss, returns a request to run instead, which stores its answer."""
        started = now_ns()
        key = response_key(request, self.model_name, self.model_version, self.cache_digest(request.stages))
        outputs = cache.lookup(key)
        now = now_ns()
        cache.lookup_ns += now - started
        if outputs is None:
            return CachingRequest(request, cache, key, self.statistics, now - started)
        # As in Triton: the queue time of a hit ends where the look-up begins.
        request.dispatched = started
        request.compute_start = request.infer_start = now
        request.infer_end = request.compute_end = now
        self.statistics.record_cache_hit(request, now, now - started)
        request.complete(outputs)
        return None
