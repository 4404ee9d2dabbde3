"""The user's ``Model`` class: import, construct, call and close it; every exception becomes a ``ModelFailed``.

``executable`` uses it, inside the server or inside a child process (``isolated``); nothing else calls user code. It
must stay light to import, since every child process imports it.
"""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isochrone.errors import ConfigError, ModelFailed
from isochrone.secure.sandbox.explained import hint
from isochrone.worker.backends.interface import WrongOutputs
from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.python.results import ResultCheck, WrongResult
from isochrone.worker.backends.version_modules import VersionModules

if TYPE_CHECKING:
    from isochrone.protocol.messages import Parameters, Tensors

# gRPC sends errors in a trailer, and clients reject headers beyond 8 KiB.
_LONGEST_MESSAGE = 2000


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The argument of a model's ``load``."""

    model_name: str
    model_version: str
    #: The directory of the version, with weights and vocabularies.
    directory: Path
    #: The completed configuration, with the field names of config.pbtxt.
    config: Mapping[str, Any]
    #: The configuration's ``parameters`` as plain strings.
    parameters: Mapping[str, str]
    #: Number of this instance, from 0.
    instance: int


def _may_leave_out(config: Mapping[str, Any]) -> bool:
    """Whether a response may lack an output: only if the model has optional inputs and no sequence state."""
    optional = any(each.get("optional") for each in config.get("input", ()))
    return optional and not config.get("sequence_batching", {}).get("state")


class UserModel:
    """One instance of the user's class."""

    def __init__(self, context: ModelContext, filename: str, outputs: dict[str, str], decoupled: bool) -> None:
        self._directory = context.directory
        self._label = f"model '{context.model_name}' version {context.model_version}"
        #: A process that the model forks must not go on in code of the server.
        self.generation = forks.generation
        #: Checks the results of ``infer``. Callers convert ``WrongResult`` with ``wrong``.
        self.check = ResultCheck(outputs, complete=not _may_leave_out(context.config)).check
        path = context.directory / filename
        if not path.is_file() or path.suffix != ".py":
            raise ConfigError(str(path), "model file", "a python file with a class named Model", "no such file")
        self._modules = VersionModules(context.model_name, context.model_version, context.directory)
        try:
            self._model = self._make(path, context)
            forks.end_if_copy(self.generation)
            #: The user's bound method. Callers convert its exceptions with ``failure``.
            self.infer: Callable[..., Any] = self._model.infer
            #: Whether ``infer`` is an async generator, so that one object can serve many requests at the same time.
            self.is_async = inspect.isasyncgenfunction(self.infer)
            self._takes_parameters = self._check_infer(path, decoupled)
        except BaseException:
            self._modules.remove()
            raise

    def _make(self, path: Path, context: ModelContext) -> Any:
        try:
            module = self._modules.import_module(path.stem)
        except BaseException as error:
            raise self.failure("import", error) from error
        model_class = getattr(module, "Model", None)
        if not isinstance(model_class, type):
            given = "no such name" if model_class is None else f"a {type(model_class).__name__}"
            raise ConfigError(str(path), "Model", "a class", given)
        if not callable(getattr(model_class, "infer", None)):
            raise ConfigError(str(path), "Model.infer", "a method infer(self, inputs)", "no such method")
        step = "Model()"
        try:
            model = model_class()
            step = "load"
            if hasattr(model, "load"):
                model.load(context)
        except BaseException as error:
            raise self.failure(step, error) from error
        return model

    def _check_infer(self, path: Path, decoupled: bool) -> bool:
        """Rejects an ``infer`` that cannot work; returns whether it accepts the request's parameters."""
        lazy = inspect.isgeneratorfunction(self.infer) or self.is_async
        if inspect.iscoroutinefunction(self.infer):
            expected = "an async generator (it has no yield)" if decoupled else "a plain method"
            raise ConfigError(str(path), "Model.infer", expected, "a coroutine function")
        if lazy and not decoupled:
            expected = "a plain method, or model_transaction_policy { decoupled: true } in the configuration"
            raise ConfigError(str(path), "Model.infer", expected, "a generator")
        try:
            taken = inspect.signature(self.infer).parameters.values()
        except (TypeError, ValueError):  # written in C
            return False
        positional = [p for p in taken if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        return len(positional) > 1 or any(p.kind is p.VAR_POSITIONAL for p in taken)

    def results(self, results: Any, requested: tuple[str, ...] | None) -> Tensors:
        """The requested outputs among the results of ``infer``, checked."""
        forks.end_if_copy(self.generation)
        try:
            return self.check(results, requested)
        except WrongResult as wrong:
            raise self.wrong(wrong) from None

    def wrong(self, wrong: WrongResult) -> WrongOutputs:
        return WrongOutputs(f"{self._label}: infer returned a wrong result: {wrong}")

    def stream(self, inputs: Tensors, parameters: Parameters) -> Iterator[Tensors] | AsyncIterator[Tensors]:
        """The responses of a decoupled model, each checked; an async iterator if the model is async."""
        try:
            responses = self.infer(inputs, parameters) if self._takes_parameters else self.infer(inputs)
        except BaseException as error:
            raise self.failure("infer", error) from error
        if hasattr(responses, "__anext__"):
            return self._async_responses(responses)
        if hasattr(responses, "__next__"):
            return self._responses(responses)
        raise ModelFailed(
            f"{self._label}: infer of a decoupled model: expected a generator, given a {type(responses).__name__}"
        )

    def _responses(self, responses: Iterator[Any]) -> Iterator[Tensors]:
        try:
            for response in responses:
                yield self.results(response, None)
        except (GeneratorExit, ModelFailed):
            raise
        except BaseException as error:
            raise self.failure("infer", error) from error
        finally:
            forks.end_if_copy(self.generation)
            # Also after a disconnect: the user's ``finally`` blocks run now, not at the next garbage collection.
            if hasattr(responses, "close"):
                try:
                    responses.close()
                except BaseException as error:
                    raise self.failure("infer, while being closed,", error) from error

    async def _async_responses(self, responses: AsyncIterator[Any]) -> AsyncIterator[Tensors]:
        forks.end_copies_of(asyncio.get_running_loop())
        try:
            async for response in responses:
                yield self.results(response, None)
        except (GeneratorExit, ModelFailed):
            raise
        except BaseException as error:
            raise self.failure("infer", error) from error
        finally:
            if hasattr(responses, "aclose"):
                try:
                    await responses.aclose()
                except BaseException as error:
                    raise self.failure("infer, while being closed,", error) from error

    def close(self) -> None:
        """Runs the user's ``close`` and removes its modules, even if it raises."""
        try:
            self._close_model()
        finally:
            # The object is deleted before its modules, so that its __del__ can use them.
            self._modules.remove()

    def _close_model(self) -> None:
        """Runs the user's ``close`` and deletes the object."""
        try:
            if hasattr(self._model, "close"):
                self._model.close()
            forks.end_if_copy(self.generation)
        except BaseException as error:
            raise self.failure("close", error) from error
        finally:
            del self._model, self.infer

    def failure(self, step: str, error: BaseException) -> ModelFailed:
        """The error for an exception of user code, including SystemExit and KeyboardInterrupt."""
        forks.end_if_copy(self.generation, error)
        try:
            said = str(error)
        except Exception:
            said = "(its message cannot be read)"
        if len(said) > _LONGEST_MESSAGE:
            said = said[:_LONGEST_MESSAGE] + "…"
        raised = type(error).__name__ + (f": {said}" if said else "")
        return ModelFailed(f"{self._label}: {step} raised {raised}{hint(error)}{self._line(error)}")

    def _line(self, error: BaseException) -> str:
        """The innermost line in the user's files; "" if there is none."""
        if isinstance(error, SyntaxError) and error.filename and error.lineno:
            places = [(error.filename, error.lineno)]
        else:
            frames = traceback.extract_tb(error.__traceback__)
            places = [(frame.filename, frame.lineno or 0) for frame in frames]
        for filename, number in reversed(places):
            if Path(filename).is_relative_to(self._directory):
                return f" ({Path(filename).relative_to(self._directory)}:{number})"
        return ""
