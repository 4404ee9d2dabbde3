"""Python models as executables: inside the server's process, or inside the process of an isolated model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from isochrone.errors import Unsupported
from isochrone.worker.backends.interface import Executable
from isochrone.worker.backends.processes import forks
from isochrone.worker.backends.python.model import UserModel
from isochrone.worker.backends.python.results import WrongResult

if TYPE_CHECKING:
    from isochrone.protocol.messages import Parameters, Tensors


class PythonExecutable(Executable):
    """A model that answers every call with one response."""

    def __init__(self, model: UserModel) -> None:
        self._model = model
        self._infer = model.infer
        self._check = model.check
        self._generation = model.generation

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        try:
            results = self._infer(inputs)
        except BaseException as error:
            raise self._model.failure("infer", error) from error
        if forks.generation != self._generation:
            forks.end_copy()
        try:
            return self._check(results, outputs)
        except WrongResult as wrong:
            raise self._model.wrong(wrong) from None

    def close(self) -> None:
        del self._infer
        self._model.close()


class DecoupledExecutable(Executable):
    """A decoupled model."""

    decoupled = True

    def __init__(self, model: UserModel) -> None:
        self._model = model
        self.is_async = model.is_async

    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        raise Unsupported("a decoupled model answers through a stream of responses")

    def stream(self, inputs: Tensors, parameters: Parameters) -> Iterator[Tensors] | AsyncIterator[Tensors]:
        return self._model.stream(inputs, parameters)

    def close(self) -> None:
        self._model.close()


def executable_of(model: UserModel, decoupled: bool) -> Executable:
    return DecoupledExecutable(model) if decoupled else PythonExecutable(model)
