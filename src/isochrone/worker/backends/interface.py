"""The interface of a backend: a function that takes a ``LoadContext`` and returns an ``Executable``.

The worker calls an executable from one thread at a time with whole batches; the executable knows nothing of requests,
queues or sockets.
"""

from __future__ import annotations

import abc
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Union

from isochrone.errors import IsochroneError, ModelFailed

if TYPE_CHECKING:
    from isochrone.models.signature import Signature
    from isochrone.protocol.messages import InferRequest, Parameters, Tensors
    from isochrone.secure.sandbox.confinement import Confinement

#: The outputs of a request, its error, or None: the executable sends the answer itself, through an ``Outlet``.
Answer = Union["Tensors", IsochroneError, None]
TakeAnswers = Callable[[list[Answer]], None]


class WrongOutputs(ModelFailed):
    """A model ran, and its outputs are not those that are declared."""


class InstanceLost(ModelFailed):
    """This process cannot run its instance any more; another one can."""

    #: What becomes of an isolated model's process.
    ending = "its process was ended"

    def __init__(self, label: str, reason: str) -> None:
        """``label``: the model."""
        super().__init__(f"{label}: {reason}")
        self.reason = reason


class DeviceLost(InstanceLost):
    """A device, such as a GPU, has failed in such a way that this process cannot use it any more; another one can.

    ``reason`` is the error of the device.
    """

    ending = "its process lost its device and was ended"


class Outlet(Protocol):
    """Where an executable sends the answer to one request, or several; from any thread."""

    def send(self, answer: Answer, is_last: bool) -> None:
        """``answer`` None: there is no further one. It may block while the caller reads slowly."""

    def is_cancelled(self) -> bool: ...


OutletOf = Callable[["InferRequest"], Outlet]


class PostingOutlet(Outlet, Protocol):
    """An outlet of the worker: a thread that serves several requests can send without waiting for one of them."""

    def post(self, answer: Answer, taken: Callable[[], None]) -> None:
        """Sends an answer that others follow, and never blocks; ``taken`` is called, on any thread, when the caller has
        taken it."""


PostingOutletOf = Callable[["InferRequest"], PostingOutlet]


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
    #: For models that call others: a ``ModelServer`` of ``worker.model_calls``. None: there is no server.
    server: Any = None
    #: Makes the loaded object of a model that exists in memory only; None: the model is in ``directory``.
    make_model: Callable[[Any], Any] | None = None
    #: The file of the configuration, or what stands in for it, for errors; "": config.pbtxt above ``directory``.
    config_source: str = ""
    #: The number of the instance's GPU; None: the configuration gives it none.
    gpu: int | None = None
    #: The share of its memory that may be used after the load.
    gpu_share: float = 1.0
    #: How the process is confined that runs the model's Python code; None: models are not confined.
    confinement: Confinement | None = None
    #: Whether the model may run code of its files unconfined. The operator decides.
    trusted: bool = True


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
    #: Whether the worker calls ``execute_requests`` with the requests as they are, instead of ``execute`` with their
    #: gathered inputs, or ``stream``.
    takes_requests: bool = False
    #: Whether ``begin_requests`` may be called; only where ``takes_requests``, and not ``decoupled``.
    begins_on_loop: bool = False
    #: Whether the worker calls ``launch_batch`` and ``collect_batch`` instead of ``execute``: a batch is prepared while
    #: the one before it computes.
    overlaps: bool = False
    #: Whether the event loop may ask ``batch_is_complete`` again and again, while it has nothing else to do.
    polls: bool = False
    #: Whether inputs may be ``DeviceArray`` objects; only where ``takes_requests`` or ``overlaps``.
    takes_device_arrays: bool = False
    #: Whether batches are padded to the sizes of captured graphs; and the rows that were computed for nobody by it.
    pads: bool = False
    padded_rows: int = 0
    #: CUDA graphs that were captured at load.
    captured_graphs: int = 0
    #: Whether zeros may be run at load. False for code that expects to run for callers only.
    warms_up: bool = True
    #: Whether it ends runs itself that take longer than ``execution_timeout_ms``, so that the worker need not.
    ends_long_runs: bool = False
    #: Where answers go that ``execute_requests`` does not return; set by the worker where ``takes_requests``.
    outlet_of: PostingOutletOf
    #: In the process of an isolated model: tells the worker why the process ends, before it does. From any thread,
    #: while nothing is being executed.
    report_loss: Callable[[InstanceLost], None] | None = None

    def is_available(self) -> bool:
        """False: its process has ended, and the next one has not loaded yet. Called on any thread."""
        return True

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

    def execute_requests(self, requests: Sequence[InferRequest]) -> list[Answer]:
        """Runs requests together, with an answer for each; raises nothing. Only where ``takes_requests``.

        A decoupled executable answers through ``outlet_of`` alone: it returns errors and None.
        """
        raise NotImplementedError

    def begin_requests(self, requests: Sequence[InferRequest], done: TakeAnswers) -> bool:
        """Starts what ``execute_requests`` does without a thread; raises nothing. Only where ``begins_on_loop``.

        It is called on the loop's thread and never blocks. False: ``execute_requests`` has to run them. Otherwise
        ``done`` gets the answers later, on the loop's thread, once; after ``close`` it may not be called any more.
        """
        return False

    def launches_quickly(self, requests: Sequence[InferRequest], rows: int) -> bool:
        """Whether ``launch_batch`` takes so little time that the event loop's thread may call it."""
        return False

    def launch_batch(self, requests: Sequence[InferRequest], rows: int) -> Any:
        """Starts a batch and returns before it has ended. Only where ``overlaps``.

        On the instance's thread, or on the event loop's while no other batch is in the instance.
        Another batch may be running. An exception makes the worker run the requests one by one by ``execute``.
        """
        raise NotImplementedError

    def batch_is_complete(self, flight: Any) -> bool:
        """Whether ``collect_batch`` would not wait. Only where ``polls``, on the event loop's thread."""
        raise NotImplementedError

    def collect_batch(self, flight: Any) -> list[Tensors]:
        """Waits for a batch that ``launch_batch`` started: the outputs of each request.

        Called once for each, in the order of launches, on another thread, or on the event loop's if it is complete.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def close(self) -> None:
        """Frees the instance, including its memory. Called once, when no thread runs anything on it; requests that
        ``begin_requests`` started may have no answer yet, if nobody waits for it."""
