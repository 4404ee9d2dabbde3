"""The interface of a backend: a function that takes a ``LoadContext`` and returns an ``Executable``.

The worker calls an executable from one thread at a time with whole batches; the executable knows nothing of requests,
queues or sockets.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isochrone.models.signature import Signature
    from isochrone.protocol.messages import Parameters, Tensors


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What a backend is told when it makes one instance."""

    model_name: str
    model_version: str
    #: The version's own directory: where model.onnx, model.py, … lie.
    directory: Path
    #: The completed ``ModelConfig`` message.
    config: Any
    signature: Signature
    #: 0-based number of this instance among the model's.
    instance: int
    #: CPUs this instance is pinned to; empty: not pinned. The worker pins the thread; a backend that starts threads
    #: or processes of its own pins those.
    cpus: tuple[int, ...]
    #: The configuration's ``parameters`` as plain strings.
    parameters: Mapping[str, str]


class Executable(abc.ABC):
    """One loaded instance of a model version."""

    #: A decoupled executable answers through ``stream``; an ordinary one through ``execute``.
    decoupled: bool = False
    #: A decoupled executable whose ``stream`` is asynchronous: many requests run on one instance at once.
    is_async: bool = False
    #: Whether a measured-fast run may happen on the event loop's own thread. False where the runtime wants one thread
    #: of its own (CUDA contexts, thread-local state) or may block.
    inline_allowed: bool = True
    #: Whether returned arrays never share memory with the inputs: then input buffers are reused from batch to batch.
    fresh_outputs: bool = False

    @abc.abstractmethod
    def execute(self, inputs: Tensors, outputs: tuple[str, ...] | None) -> Tensors:
        """Runs one batch. ``inputs`` are C-contiguous and read-only by contract; returned arrays belong to the caller.

        Anything raised is reported to each caller of the batch as ``ModelFailed``.
        """

    def stream(
        self, inputs: Tensors, parameters: Parameters
    ) -> Iterator[Tensors] | AsyncIterator[Tensors]:  # pragma: no cover - overridden where decoupled
        """Runs one request of a decoupled model: 0..N responses."""
        return iter((self.execute(inputs, None),))

    @abc.abstractmethod
    def close(self) -> None:
        """Frees what the instance holds, memory included. Called once, when nothing runs on it."""
