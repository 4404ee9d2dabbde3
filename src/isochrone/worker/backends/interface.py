"""The interface of a backend: a function that takes a ``LoadContext`` and returns an ``Executable``.

The worker calls an executable from one thread at a time with whole batches; the executable knows nothing of requests,
queues or sockets.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isochrone.models.signature import Signature
    from isochrone.protocol.messages import Parameters, Tensors


@dataclass(frozen=True, slots=True)
class LoadContext:
    """The model, version and instance to load."""

    model_name: str
    model_version: str
    #: The directory of the version, with model.onnx, model.py, …
    directory: Path
    #: The completed ``ModelConfig`` message.
    config: Any
    signature: Signature
    #: Number of this instance, from 0.
    instance: int
    #: CPUs of this instance; empty: any. The worker pins the thread; a backend pins the threads and processes that it
    #: starts.
    cpus: tuple[int, ...]
    #: The configuration's ``parameters`` as plain strings.
    parameters: Mapping[str, str]
    #: Makes the loaded object of a model that exists in memory only; None: the model is in ``directory``.
    make_model: Callable[[Any], Any] | None = None


class Executable(abc.ABC):
    """One loaded instance of a model version."""

    #: The worker calls ``stream`` of a decoupled executable and ``execute`` of an ordinary one.
    decoupled: bool = False
    #: ``stream`` returns an asynchronous iterator: many requests run on one instance at the same time.
    is_async: bool = False
    #: Whether a run that measurements show to be fast may happen on the event loop's thread. False if the runtime needs
    #: one thread of its own (CUDA contexts, thread-local state) or may block.
    inline_allowed: bool = True
    #: Whether runs only compute, so that they take about as long for any input of one shape. Such runs may hold the
    #: event loop's thread for longer than those of code that may wait for something.
    only_computes: bool = False
    #: Whether returned arrays never share memory with the inputs, so that input buffers can be reused.
    fresh_outputs: bool = False

    @abc.abstractmethod
    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        """Runs one batch. ``inputs`` are C-contiguous and must not be written; returned arrays belong to the caller.

        ``outputs`` are the names to return; None: all. An exception becomes the ``ModelFailed`` of each request.
        """

    def stream(
        self, inputs: Tensors, parameters: Parameters
    ) -> Iterator[Tensors] | AsyncIterator[Tensors]:  # pragma: no cover - overridden where decoupled
        """Runs one request of a decoupled model, with any number of responses."""
        return iter((self.execute(inputs, None),))

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the instance, including its memory. Called once, when nothing runs on it."""
