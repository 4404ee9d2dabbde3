"""The user's ``TritonPythonModel``: import, initialize, execute and finalize it, with Triton's rules and error texts.

``executable`` uses it inside the worker, ``isolation`` inside a child process; nothing else calls user code.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrone.clock import now_ns
from isochrone.errors import ConfigError, IsochroneError, ModelFailed
from isochrone.observe.failure_kinds import FailureKinds
from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.processes.child_side import traceback_of
from isochrone.worker.backends.python.triton import shared_module
from isochrone.worker.backends.python.triton.failures import TritonModelException, described, server_error
from isochrone.worker.backends.python.triton.outputs import Answer, answer_of
from isochrone.worker.backends.python.triton.requests import InferenceRequest
from isochrone.worker.backends.python.triton.responses import InferenceResponse, InferenceResponseSender
from isochrone.worker.backends.python.triton.server import Errand, RunningErrands, Server, errand
from isochrone.worker.backends.python.triton.utilities import MODULE_NAMES, make_module
from isochrone.worker.backends.version_modules import VersionModules

if TYPE_CHECKING:
    from isochrone.protocol.messages import InferRequest
    from isochrone.worker.backends.interface import OutletOf

CLASS_NAME = "TritonPythonModel"
_MAX_SETS = 64
#: ``load_model`` is a part of ``unload_model``.
_WAITING = (b"InferenceRequest", b"load_model")


@dataclass(frozen=True, slots=True)
class TritonModelContext:
    """What a model instance is made of; all of it can be sent to a child process."""

    model_name: str
    model_version: str
    #: The directory of the version.
    directory: Path
    filename: str
    #: The argument of ``initialize``.
    args: Mapping[str, str]
    outputs: tuple[str, ...]
    decoupled: bool


class TritonModel:
    """One instance of the user's class."""

    def __init__(self, context: TritonModelContext, server: Server) -> None:
        self.decoupled = context.decoupled
        #: A process that the model forks must not go on in code of the server.
        self._generation = forks.generation
        self._name = context.args["model_instance_name"]
        self._path = context.directory / context.filename
        self._outputs = set(context.outputs)
        self._wanted_sets: dict[tuple[str, ...], set[str]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._errands = RunningErrands()
        self._server = server
        self._unanswerable = FailureKinds()
        utilities = make_module(server, context.directory, self._errands)
        request_type: type[InferenceRequest] = vars(utilities)["InferenceRequest"]
        self._request_type = request_type
        self._modules = VersionModules(
            context.model_name, context.model_version, context.directory, dict.fromkeys(MODULE_NAMES, utilities)
        )
        shared_module.add(self._modules.package, utilities)
        try:
            self._model = self._make(context)
        except BaseException as error:
            forks.end_if_copy(self._generation, error)
            self._remove_modules()
            raise
        forks.end_if_copy(self._generation)
        #: Whether the model's sources name what calls or loads other models: such a run waits for the server.
        self.calls_others = any(self._modules.mentions(name) for name in _WAITING)

    def _make(self, context: TritonModelContext) -> Any:
        if not self._path.is_file() or self._path.suffix != ".py":
            expected = f"a python file with a class named {CLASS_NAME}"
            raise ConfigError(str(self._path), "model file", expected, "no such file")
        try:
            module = self._modules.import_module(self._path.stem)
            model_class = getattr(module, CLASS_NAME, None)
            if not isinstance(model_class, type):
                given = "no such name" if model_class is None else f"a {type(model_class).__name__}"
                raise ConfigError(str(self._path), CLASS_NAME, "a class", given)
            model = model_class()
            if hasattr(model, "initialize"):
                model.initialize(dict(context.args))
        except IsochroneError:
            raise
        except BaseException as error:
            raise ModelFailed(described(error)) from error
        return model

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(getattr(self._model, "execute", None))

    def execute(self, received: Sequence[InferRequest], outlet_of: OutletOf) -> list[Answer]:
        """Runs requests together. An answer is None if the model sends it itself, by now or later."""
        make = self._request_type.received
        requests = [
            make(request, self._wanted(request.plan.outputs), _Outlets(outlet_of, request, self))
            for request in received
        ]
        # Whose deadline counts matters to models that call others; it costs a tenth of a small model's run.
        if self.calls_others:
            return self._execute_for(_errand_of(received), requests)
        try:
            return self._answers(requests, self._call(requests))
        except BaseException as error:
            forks.end_if_copy(self._generation, error)
            return self._failed(requests, error)

    def _execute_for(self, own: Errand, requests: list[InferenceRequest]) -> list[Answer]:
        token = errand.set(own)
        self._errands.begin(own)
        try:
            return self._answers(requests, self._call(requests, own))
        except BaseException as error:
            forks.end_if_copy(self._generation, error)
            return self._failed(requests, error)
        finally:
            self._errands.end(own)
            errand.reset(token)

    def _wanted(self, outputs: tuple[str, ...] | None) -> set[str]:
        """The outputs that a request asks for, as a set that models may read; callers use few of them."""
        if outputs is None:
            return self._outputs
        wanted = self._wanted_sets.get(outputs)
        if wanted is None:
            if len(self._wanted_sets) >= _MAX_SETS:
                self._wanted_sets.clear()
            wanted = self._wanted_sets[outputs] = set(outputs)
        return wanted

    def _call(self, requests: list[InferenceRequest], own: Errand | None = None) -> Any:
        execute = getattr(self._model, "execute", None)
        if execute is None:
            raise _Wrong(f"Python model {self._path} does not implement `execute` method.")
        returned = execute(requests)
        if forks.generation != self._generation:
            forks.end_copy()
        if type(returned) is not list and asyncio.iscoroutine(returned):  # the question costs half a microsecond
            future = asyncio.run_coroutine_threadsafe(returned, self._event_loop())
            if self.decoupled:
                if own is not None:
                    self._errands.begin(own)
                    future.add_done_callback(lambda _: self._errands.end(own))
                future.add_done_callback(lambda done: self._background_done(requests, done))
                return None
            return future.result()
        return returned

    def _answers(self, requests: list[InferenceRequest], returned: Any) -> list[Answer]:
        if type(returned) is list and len(returned) == 1 == len(requests) and not self.decoupled:
            # The usual case, with nothing to count: a tenth of a small model's run.
            request, response = requests[0], returned[0]
            if type(response) is InferenceResponse and request.sender is None:
                request.disown()
                return [self.answer(request.received_as, request.requested_output_names(), response, is_returned=True)]
        if returned is None:
            return [None] * len(requests)
        if self.decoupled:
            raise _Wrong(
                f"Python model '{self._name}' is using the decoupled mode and the execute function must return None."
            )
        if not isinstance(returned, list):
            raise _Wrong(f"Expected a list in the execute return, found type '{type(returned)}'.")
        if len(returned) != len(requests):
            raise _Wrong(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects."
                f" InferenceRequest(s) size is:{len(requests)}, and InferenceResponse(s) size is:{len(returned)}\n"
            )
        for response in returned:
            if not isinstance(response, InferenceResponse) and response is not None:
                raise _Wrong(
                    "Expected an 'InferenceResponse' object in the execute function return list, found type"
                    f" '{type(response)}'."
                )
        self._count(requests, returned)
        return [self._returned(request, response) for request, response in zip(requests, returned, strict=True)]

    @staticmethod
    def _count(requests: list[InferenceRequest], returned: list[InferenceResponse | None]) -> None:
        """Counts the responses as those of their senders. If one may not be sent, none is, and the run has failed."""
        counted: list[InferenceResponseSender] = []
        try:
            for request, response in zip(requests, returned, strict=True):
                if request.sender is not None and response is not None:
                    request.sender.count(True, True)
                    counted.append(request.sender)
        except BaseException:
            for sender in counted:
                sender.take_back(True)
            raise

    def _returned(self, request: InferenceRequest, response: InferenceResponse | None) -> Answer:
        if response is None:
            if request.sender is not None:
                return None
            # Triton never answers such a request.
            request.disown()
            return self._failure(
                "Expected an 'InferenceResponse' object in the execute function return list, found None for a request"
                " whose response sender was not used."
            )
        request.disown()
        return self.answer(request.received_as, request.requested_output_names(), response, is_returned=True)

    def answer(
        self, received: InferRequest, wanted: set[str], response: InferenceResponse, *, is_returned: bool = False
    ) -> Answer:
        """A response of the model as the server sends it; raises nothing."""
        try:
            error = response.error()
            if error is not None:
                return server_error(error)
            return answer_of(response, wanted, received, is_returned=is_returned)
        except BaseException as problem:
            return self._failure(described(problem))

    def _failed(self, requests: list[InferenceRequest], error: BaseException) -> list[Answer]:
        """``execute`` failed: the error of every request that the model has not answered itself."""
        failure = self._failure(str(error)) if isinstance(error, _Wrong) else self._raised(error)
        answers: list[Answer] = []
        is_known = False
        for request in requests:
            sender = request.sender
            if sender is None:
                answers.append(failure)
                request.disown()
                is_known = True
            else:
                answers.append(None)
                is_known = sender.fail(failure) or is_known
        if not is_known:
            self._log(failure)
        return answers

    def _raised(self, error: BaseException) -> IsochroneError:
        """The failure of a run that raised, with the traceback for the log."""
        failure = self._failure(described(error))
        failure.__cause__ = error
        failure.add_note(traceback_of(failure))
        return failure

    def _log(self, failure: IsochroneError) -> None:
        """The run failed after every request of it was answered: only the log can say so."""
        not_shown = self._unanswerable.lets_through(failure, now_ns())
        if not_shown is not None:
            notes = "\n".join(getattr(failure, "__notes__", ()))
            more = f" ({not_shown} more since the last such line)" if not_shown else ""
            self._server.log("warning", f"execute failed after its requests were answered{more}: {failure}\n{notes}")

    def _failure(self, message: str) -> IsochroneError:
        return ModelFailed(f"Failed to process the request(s) for model '{self._name}', message: {message}")

    def check_original(self) -> None:
        """Raises in a process that the model has forked: nobody takes its responses."""
        if forks.generation != self._generation:
            raise TritonModelException(forks.UNREACHABLE)

    def abandoned(self, *, had_sender: bool) -> IsochroneError:
        """The error of a request that nothing will answer any more. Triton never answers it."""
        if had_sender:
            return self._failure("the response sender was deleted before the last response was sent.")
        return self._failure("execute returned None, and the response sender of the request was not used.")

    # Coroutines of the model.

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            forks.end_copies_of(self._loop)
            threading.Thread(target=_serve, args=(self._loop,), name=f"{self._name}-async", daemon=True).start()
        return self._loop

    def _background_done(self, requests: list[InferenceRequest], done: Any) -> None:
        """The coroutine of a decoupled model has ended: what it has not answered will not be answered any more."""
        error = None if done.cancelled() else done.exception()
        if error is None:
            return
        failure = self._raised(error)
        told = [request.get_response_sender().fail(failure) for request in requests]
        if not any(told):
            self._log(failure)

    def close(self) -> None:
        """Runs the user's ``finalize`` and removes its modules, even if it raises."""
        try:
            if self._loop is not None:
                _stop(self._loop)
            if hasattr(self._model, "finalize"):
                self._model.finalize()
            forks.end_if_copy(self._generation)
        except BaseException as error:
            forks.end_if_copy(self._generation, error)
            raise ModelFailed(described(error)) from error
        finally:
            # The object is deleted before its modules, so that its __del__ can use them.
            del self._model
            self._remove_modules()

    def _remove_modules(self) -> None:
        shared_module.remove(self._modules.package)
        self._modules.remove()


class _Wrong(Exception):
    """What ``execute`` returned is wrong; the text is Triton's."""


class _Outlets:
    """Makes the outlet of a request when the model asks for its sender."""

    __slots__ = ("_model", "_outlet_of", "_request")

    def __init__(self, outlet_of: OutletOf, request: InferRequest, model: TritonModel) -> None:
        self._outlet_of = outlet_of
        self._request = request
        self._model = model

    def __call__(self, wanted: set[str]) -> tuple[_ModelOutlet, bool]:
        outlet = _ModelOutlet(self._outlet_of(self._request), self._request, wanted, self._model)
        return outlet, self._model.decoupled


class _ModelOutlet:
    """Passes the responses of a sender on to the worker, as answers."""

    def __init__(self, outlet: Any, request: InferRequest, wanted: set[str], model: TritonModel) -> None:
        self._outlet = outlet
        self._request = request
        self._wanted = wanted
        self._model = model

    def send(self, response: InferenceResponse | None, is_last: bool) -> None:
        self._model.check_original()
        answer = None if response is None else self._model.answer(self._request, self._wanted, response)
        self._outlet.send(answer, is_last)

    def is_cancelled(self) -> bool:
        return bool(self._outlet.is_cancelled())

    def abandoned(self, *, had_sender: bool) -> None:
        self._outlet.send(None if self._model.decoupled else self._model.abandoned(had_sender=had_sender), True)

    def fail(self, error: IsochroneError) -> None:
        self._outlet.send(error, True)


def _errand_of(received: Sequence[InferRequest]) -> Errand:
    if len(received) == 1:
        request = received[0]
        return Errand(request.deadline, request.plan.priority, request.call_chain)
    priorities = [request.plan.priority for request in received if request.plan.priority]
    chains = [request.call_chain for request in received]
    return Errand(max(request.deadline for request in received), min(priorities, default=0), max(chains, key=len))


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.call_soon_threadsafe(loop.stop)
    except RuntimeError:  # it has ended
        pass
