"""The inference request, as both transports pass it to an ``InferenceService``.

A transport decodes bytes into a ``Plan`` (everything in a request except its data) and tensors, and creates its own
subclass of ``InferRequest``. The service answers by calling ``complete``, ``fail``, or, for decoupled models, ``emit``
and then ``finish``. It makes these calls on the event loop's thread, and they write the response: there is no future or
task in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from isochrone.clock import NEVER

if TYPE_CHECKING:
    import numpy as np

    from isochrone.errors import IsochroneError

    Tensor: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    Tensors: TypeAlias = dict[str, Tensor]

#: The types of a request parameter, in either transport.
Parameter = bool | int | float | str
Parameters = Mapping[str, Parameter]

NO_PARAMETERS: Parameters = {}


class Plan:
    """Everything in a request except its data: model, tensor names, types, shapes, parameters.

    Agents repeat the same few headers, so a transport memoises plans by what is the same in them, and the service
    records in ``checked_by`` that it has checked a plan against a model's signature: a plan is decoded and checked
    once, not once per request. Only that record, the check's results and the plans of steps change after construction.
    Two versions never share a plan at the same time.
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
        "step_plans",
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
        #: As the caller wrote it; "": the server chooses the version.
        self.model_version = model_version
        #: The key by which a server looks up the model.
        self.key = (model_name, model_version)
        #: (name, datatype, shape) of each input, in the order sent.
        self.inputs = inputs
        #: Names of the requested outputs; None: all.
        self.outputs = outputs
        #: The request's parameters that have no field of their own.
        self.parameters = parameters
        #: Triton's numbering: 1 is highest, 0 asks for the model's default.
        self.priority = priority
        #: The ``timeout`` parameter, relative; 0: none.
        self.timeout_ns = timeout_ns
        self.sequence_id = sequence_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        #: The object whose signature this plan satisfies, and the number of rows.
        self.checked_by: object | None = None
        self.batch_size = 1
        #: Set with ``checked_by``: requests with equal keys may share a batch.
        self.shape_key: object = None
        #: Of a request to an ensemble: the plans of its steps, memoised like this one.
        self.step_plans: dict[object, Plan] | None = None

    def copy(self) -> Plan:
        """Another plan that says the same."""
        other = Plan(self.model_name, self.model_version, self.inputs, self.outputs)
        self._copy_fields_to(other)
        return other

    def _copy_fields_to(self, other: Plan) -> None:
        other.parameters = self.parameters
        other.priority = self.priority
        other.timeout_ns = self.timeout_ns
        other.sequence_id = self.sequence_id
        other.sequence_start = self.sequence_start
        other.sequence_end = self.sequence_end
        other.checked_by = self.checked_by
        other.batch_size = self.batch_size
        other.shape_key = self.shape_key
        other.step_plans = self.step_plans


class OutputChoice:
    """The form in which the caller requests one output."""

    __slots__ = ("binary", "classes", "region", "region_offset", "region_size")

    def __init__(self, binary: bool, classes: int = 0, region: Any = "", offset: int = 0, size: int = 0) -> None:
        self.binary = binary
        self.classes = classes
        #: The name of a shared memory region as the caller wrote it, whatever its type; "": none.
        self.region = region
        self.region_offset = offset
        self.region_size = size

    @property
    def is_plain(self) -> bool:
        return self.binary and not self.classes and not self.region


class InferRequest:
    """One inference request. Transports subclass it and override ``complete``, ``fail``, ``emit`` and ``finish``.

    The fields are grouped by the component that sets them: the transport, the service, and the stages, each of which
    leaves a timestamp (monotonic ns).
    """

    #: Whether the caller accepts any number of responses: streams do, unary calls do not.
    takes_many: ClassVar[bool] = False

    __slots__ = (
        "_cancelled",
        "arrived",
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
        #: Absolute instant after which the answer is useless; NEVER: no deadline.
        self.deadline = deadline
        self._cancelled = False
        #: The model version that answers; has ``model_version``, ``batched``, ``fixed_size`` and ``signature``.
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
    def cancelled(self) -> bool:
        """Set by the transport when the caller has disconnected; the request is then dropped before it costs compute.

        A property here and in the subclasses: compiled code reads an attribute past the property of a subclass.
        """
        return self._cancelled

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._cancelled = value

    @property
    def stages(self) -> Mapping[str, str] | None:
        """Model → version for the steps of an ensemble, if the caller specified them.

        Transports read it from the message's head, so that requests carry no field that only ensembles need.
        """
        return None

    @property
    def trace_context(self) -> Mapping[str, str] | None:
        """The headers of the caller's trace context, if there are any; read like ``stages``."""
        return None

    @property
    def caller_id(self) -> str:
        """An id that the head carries, for a request whose message has none; "": none. Read like ``stages``."""
        return ""

    @property
    def division(self) -> str:
        """How a divided model shall run it, if the caller says so; "": the worker chooses. Read like ``stages``."""
        return ""

    @property
    def shares_inputs(self) -> bool:
        """Whether somebody else may read the inputs' memory: a model that writes to them needs a copy."""
        return False

    def shares_input(self, name: str) -> bool:
        """The same of one input, where ``shares_inputs`` is true."""
        return True

    def keeps_on_device(self, output: str) -> bool:
        """Whether everyone who reads an output takes a tensor on a device (``DeviceArray``) as well as an array."""
        return False

    def output_target(self, output: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """The memory on a device into which the caller wants an output of this shape written; None: it has none.

        On any thread. A model that wrote an output there returns the target as that output.
        """
        return None

    @property
    def call_chain(self) -> tuple[Any, ...]:
        """The versions (model, version) that wait for this request: models that called each other."""
        return ()

    def note_step(self, model: str, nanoseconds: int) -> None:
        """Record the duration of one step of an ensemble, if the caller asked for timing."""

    def exchange_of(self) -> Any:
        """The exchange that it came by; None: another request, or the server itself, made it."""
        return None

    def endpoint(self) -> str:
        """The called endpoint under Triton's name, for error messages."""
        return "ModelInfer RPC"

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        """Answer with the outputs and end the request."""
        raise NotImplementedError

    def fail(self, error: IsochroneError) -> None:
        """Answer with an error and end the request."""
        raise NotImplementedError

    def dropped(self) -> None:
        """End the request without an answer: the caller has disconnected."""

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        """Send one of several responses of a decoupled model; more may follow."""
        raise NotImplementedError

    def finish(self) -> None:
        """End the request: a decoupled model has no further response."""
        raise NotImplementedError

    def finish_with(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        """Send the last response of a decoupled model, which said that it is the last one."""
        self.emit(outputs, parameters)
        self.finish()

    @property
    def is_congested(self) -> bool:
        """Whether the caller reads a decoupled model's responses more slowly than the model produces them."""
        return False

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the caller has caught up. Only for a congested request."""
        callback()
