"""The inference request, as both transports hand it to whoever answers it.

A transport decodes bytes into a ``Plan`` (everything a request says apart from its data) and the tensors, makes its own
subclass of ``InferRequest``, and passes that to an ``InferenceService``. The service answers by calling ``complete``,
``fail``, or, for decoupled models, ``emit`` and then ``finish``. These calls come on the event loop's thread, once per
request, and write the bytes: no future or task stands between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from isochrone.clock import NEVER

if TYPE_CHECKING:
    import numpy as np

    from isochrone.errors import IsochroneError

    Tensor = np.ndarray[Any, np.dtype[Any]]
    Tensors = dict[str, Tensor]

#: What a request parameter may be, in either transport.
Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]

NO_PARAMETERS: Parameters = {}


class Plan:
    """What a request says of itself apart from its data: model, tensor names, types, shapes, parameters.

    Agents send the same few headers over and over, so a transport memoises plans by the header's bytes, and whoever
    checks a plan against a model's signature notes it in ``checked_by``: a plan is decoded and checked once, not once
    per request. A plan is immutable but for that note and what the check found; two versions never share one at once.
    """

    __slots__ = (
        "batch_size",
        "checked_by",
        "inputs",
        "key",
        "model_name",
        "model_version",
        "outputs",
        "parameters",
        "priority",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "shape_key",
        "timeout_ns",
    )

    def __init__(
        self,
        model_name: str,
        model_version: str,
        inputs: tuple[tuple[str, str, tuple[int, ...]], ...],
        outputs: tuple[str, ...] | None,
        parameters: Parameters = NO_PARAMETERS,
        *,
        priority: int = 0,
        timeout_ns: int = 0,
        sequence_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> None:
        self.model_name = model_name
        #: As the caller wrote it: "" means "the one the server chooses".
        self.model_version = model_version
        #: What a server looks the model up by.
        self.key = (model_name, model_version)
        #: (name, datatype, shape) of each input, in the order sent.
        self.inputs = inputs
        #: Names of the outputs wanted; None: all.
        self.outputs = outputs
        #: The request's parameters that no field here stands for.
        self.parameters = parameters
        #: Triton's numbering: 1 is highest, 0 asks for the model's default.
        self.priority = priority
        #: The ``timeout`` parameter, relative; 0: none.
        self.timeout_ns = timeout_ns
        self.sequence_id = sequence_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        #: The object whose signature this plan has satisfied, and the rows it found.
        self.checked_by: object | None = None
        self.batch_size = 1
        #: Set with ``checked_by``: requests with equal keys may share a batch.
        self.shape_key: object = None


class OutputChoice:
    """How the caller wants one output."""

    __slots__ = ("binary", "classes", "region", "region_offset", "region_size")

    def __init__(self, binary: bool, classes: int = 0, region: str = "", offset: int = 0, size: int = 0) -> None:
        self.binary = binary
        self.classes = classes
        self.region = region
        self.region_offset = offset
        self.region_size = size

    @property
    def is_plain(self) -> bool:
        return self.binary and not self.classes and not self.region


class InferRequest:
    """One request on its way through a server. Transports subclass it and override the four answers.

    Grouped by who sets it: the transport; the service; the marks of time (monotonic ns) each stage leaves.
    """

    #: Whether the caller can take any number of responses: streams can, unary calls cannot.
    takes_many = False

    __slots__ = (
        "arrived",
        "cancelled",
        "compute_end",
        "compute_start",
        "deadline",
        "dispatched",
        "enqueued",
        "id",
        "infer_end",
        "infer_start",
        "inputs",
        "plan",
        "served_by",
    )

    def __init__(self, plan: Plan, request_id: str, inputs: Tensors, arrived: int, deadline: int = NEVER) -> None:
        self.plan = plan
        self.id = request_id
        self.inputs = inputs
        #: Absolute instant after which the answer is worthless; NEVER if the caller named none.
        self.deadline = deadline
        #: Set by the transport when the caller has gone; whoever holds the request drops it before it costs compute.
        self.cancelled = False
        #: Whoever is answering: has ``model_version``, ``batched``, ``fixed_size`` and ``signature`` for the response.
        self.served_by: Any = None
        self.arrived = arrived
        self.enqueued = arrived
        #: Taken from the queue as part of a batch.
        self.dispatched = 0
        #: compute_start ≤ infer_start ≤ infer_end ≤ compute_end: gather inputs, run, split outputs.
        self.compute_start = 0
        self.infer_start = 0
        self.infer_end = 0
        self.compute_end = 0

    @property
    def stages(self) -> Mapping[str, str] | None:
        """Model → version for the steps of an ensemble, where the caller says so.

        Transports answer from what the message's head said: no request carries a field that only ensembles ask for.
        """
        return None

    def note_step(self, model: str, nanoseconds: int) -> None:
        """A step of the ensemble it is for has ended. Transports keep that if the caller asked for times."""

    def endpoint(self) -> str:
        """What the caller called, in Triton's words; for errors that name it."""
        return "ModelInfer RPC"

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        """Answers with the outputs; the request is over."""
        raise NotImplementedError

    def fail(self, error: IsochroneError) -> None:
        """Answers with an error; the request is over."""
        raise NotImplementedError

    def dropped(self) -> None:
        """Called in place of an answer when the caller has gone; the request is over."""

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        """Answers with one of several responses of a decoupled model; more may follow."""
        raise NotImplementedError

    def finish(self) -> None:
        """Says that a decoupled model has no further response."""
        raise NotImplementedError

    @property
    def is_congested(self) -> bool:
        """Whether the caller reads a decoupled model's responses more slowly than they come."""
        return False

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Calls back once the caller has caught up; only asked of a congested request."""
        callback()
