"""The worker, as its models see it: it runs their calls of other models, and loads and unloads models for them."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import structlog

from isochrone.clock import MICROSECOND, now_ns
from isochrone.errors import IsochroneError, Unavailable
from isochrone.observe.model_metrics import ModelMetrics, Series
from isochrone.protocol.messages import Plan
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.python.triton.failures import TritonError, TritonModelException
from isochrone.worker.backends.python.triton.outputs import sendable
from isochrone.worker.backends.python.triton.requests import SEQUENCE_END, SEQUENCE_START
from isochrone.worker.backends.python.triton.responses import InferenceResponse
from isochrone.worker.model_calls.called_request import CalledRequest, CalledStream
from isochrone.worker.model_calls.cycles import Find, check_cycle

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.worker.backends.python.triton.server import Cancel, Deliver, ModelCall
    from isochrone.worker.served_version import ServedVersion

log = structlog.get_logger(__name__)


class CallsOfModels:
    """What the models of one worker ask of it. ``of`` gives each model version its own view."""

    def __init__(
        self,
        find: Find,
        is_ready: Callable[[str, str], bool],
        load: Callable[[str, Mapping[str, Any]], Awaitable[None]],
        unload: Callable[[str, bool], Awaitable[None]],
    ) -> None:
        self._find = find
        self.is_ready = is_ready
        self.load = load
        self.unload = unload
        self.metrics = ModelMetrics()
        #: Models that wait, while they load, for the load or unload of another: (waiting, other). On the loop's thread.
        self._waiting_loads: list[tuple[str, str]] = []
        self.loop = asyncio.get_running_loop()
        self.loop_thread = threading.get_ident()

    def of(self, name: str, version: str) -> ModelServer:
        return ModelServer(self, name, version)

    async def control(self, name: str, other: str, is_loading: bool, change: Callable[[], Awaitable[None]]) -> None:
        """Loads or unloads ``other`` for a model that waits for it; refuses if that load waits for this model's."""
        if not is_loading:
            await change()
            return
        reached = {other}
        while name not in reached:
            further = {last for first, last in self._waiting_loads if first in reached} - reached
            if not further:
                break
            reached |= further
        else:
            chain = f"model '{name}'" if other == name else f"model '{other}', whose load waits for model '{name}',"
            raise Unavailable(
                f"{chain} cannot be loaded or unloaded while model '{name}' loads: both would wait for ever"
            )
        self._waiting_loads.append((name, other))
        try:
            await change()
        finally:
            self._waiting_loads.remove((name, other))

    def submit(self, call: ModelCall, inputs: Tensors, deliver: Deliver, made: list[CalledRequest]) -> None:
        """On the loop's thread."""
        try:
            request = self._request(call, inputs, deliver)
        except (IsochroneError, TritonModelException) as error:
            deliver(_refused(call, error), True)
            return
        made.append(request)
        served: ServedVersion = request.served_by
        try:
            served.submit(request)
        except IsochroneError as error:
            request.refuse(_refused(call, error))

    def _request(self, call: ModelCall, inputs: Tensors, deliver: Deliver) -> CalledRequest:
        name = call.model_name
        version = "" if call.model_version < 0 else str(call.model_version)
        try:
            served = self._find(name, version)
        except IsochroneError as error:
            raise TritonModelException(
                f"Failed for execute the inference request. Model '{name}' is not ready."
            ) from error
        if served.decoupled and not call.takes_many:
            raise TritonModelException(
                f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the"
                " decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec'"
                " calls for decoupled models.'"
            )
        chain = (*call.errand.chain, (served.model_name, served.model_version))
        check_cycle(chain, served, self._find)
        deadline = call.errand.deadline
        if call.timeout_us:
            deadline = min(deadline, now_ns() + call.timeout_us * MICROSECOND)
        plan = Plan(
            name,
            version,
            tuple((each, name_of(array.dtype), array.shape) for each, array in inputs.items()),
            tuple(sorted(call.outputs)) or None,
            dict(call.parameters),
            priority=call.errand.priority,
            timeout_ns=call.timeout_us * MICROSECOND,
            sequence_id=call.correlation_id,
            sequence_start=bool(call.flags & SEQUENCE_START),
            sequence_end=bool(call.flags & SEQUENCE_END),
        )
        made = CalledStream if call.takes_many else CalledRequest
        request = made(plan, call.request_id, inputs, deadline, chain, deliver)
        request.served_by = served
        return request


class ModelServer:
    """The worker, as one model version sees it; the ``Server`` of Triton's python models."""

    def __init__(self, worker: CallsOfModels, name: str, version: str) -> None:
        self._worker = worker
        self._key = (name, version)
        #: The version is not loaded yet: its model's lock is held.
        self.is_loading = False
        self._log = log.bind(model=name, version=version)
        self._generation = forks.generation

    @property
    def may_block(self) -> bool:
        return threading.get_ident() != self._worker.loop_thread

    def call(self, call: ModelCall, deliver: Deliver) -> Cancel:
        made: list[CalledRequest] = []
        chain = call.errand.chain
        if chain[-1:] != (self._key,):
            call = replace(call, errand=replace(call.errand, chain=(*chain, self._key)))
        try:
            self._check_original()
            inputs = {tensor.name(): sendable(tensor) for tensor in call.inputs}
            self._worker.loop.call_soon_threadsafe(self._worker.submit, call, inputs, deliver, made)
        except RuntimeError:  # the loop is closed
            deliver(_refused(call, Unavailable("the server is stopping")), True)
        except Exception as error:
            deliver(_refused(call, error), True)

        def cancel_made() -> None:
            for request in made:
                request.cancel()

        def cancel() -> None:
            if made:
                cancel_made()
                return
            try:
                # The loop has not made the request yet; it will have when it comes to this.
                self._worker.loop.call_soon_threadsafe(cancel_made)
            except RuntimeError:  # the loop is closed
                pass

        return cancel

    def is_model_ready(self, name: str, version: str) -> bool:
        if self.may_block:
            return bool(self._on_loop(lambda: self._worker.is_ready(name, version)))
        try:
            return self._worker.is_ready(name, version)
        except IsochroneError as error:
            raise TritonModelException(str(error)) from None

    def load_model(self, name: str, config: str, files: Mapping[str, bytes] | None) -> None:
        parameters: dict[str, Any] = {"config": config} if config else {}
        for place, content in (files or {}).items():
            parameters[place] = base64.b64encode(content).decode()
        self._control(name, lambda: self._worker.load(name, parameters))

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        self._control(name, lambda: self._worker.unload(name, unload_dependents))

    def _control(self, other: str, change: Callable[[], Awaitable[None]]) -> None:
        self._on_loop(lambda: self._worker.control(self._key[0], other, self.is_loading, change))

    def metric(
        self, name: str, description: str, kind: str, labels: Mapping[str, str], buckets: Sequence[float]
    ) -> Series:
        return self._worker.metrics.series(name, description, kind, labels, buckets)

    def log(self, level: str, message: str) -> None:
        getattr(self._log, level)(str(message))

    def _check_original(self) -> None:
        """Raises in a process that a model has forked: no event loop runs there."""
        if forks.generation != self._generation:
            raise TritonModelException(forks.UNREACHABLE)

    def _on_loop(self, ask: Callable[[], Any]) -> Any:
        """Asks on the loop's thread, and waits for the answer."""
        if not self.may_block:
            raise TritonModelException(
                'the server was asked where it must not wait: set the parameter inline: "false" in config.pbtxt'
            )
        self._check_original()

        async def asked() -> Any:
            answer = ask()
            return await answer if asyncio.iscoroutine(answer) else answer

        try:
            return asyncio.run_coroutine_threadsafe(asked(), self._worker.loop).result()
        except IsochroneError as error:
            raise TritonModelException(str(error)) from None


def _refused(call: ModelCall, error: Exception) -> InferenceResponse:
    """The response to a call that reached no model. Triton's words and code, whatever the reason."""
    text = f"Model {call.model_name} - Error when running inference: {error}"
    return InferenceResponse.received([], TritonError(text), "")
