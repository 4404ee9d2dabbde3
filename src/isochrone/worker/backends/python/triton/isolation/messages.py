"""Messages between the worker and the process of an isolated Triton model.

Questions and answers go over the first link, one at a time; notices (of the worker) and reports (of the child) over the
second one, at any time. Tensors are in the payload of a message, or in a shared block if that is said. No pickle: a
model's process cannot make the server run code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from isochrone.errors import IsochroneError
from isochrone.protocol.messages import Parameter
from isochrone.worker.backends.processes.frames import Frame, LinkBroken, frame
from isochrone.worker.backends.processes.places import Packing, Place
from isochrone.worker.backends.python.triton.failures import TritonError, server_error, triton_error

if TYPE_CHECKING:
    from isochrone.worker.backends.processes.places import Bytes

Parameters = Mapping[str, Parameter]
Chain = tuple[tuple[str, str], ...]

#: Tensors of a message up to this size are in the message. Larger ones are faster in a block: a call with 28,000 bytes
#: each way takes 200 µs there, and 250 in the message.
INLINE_BYTES = 2 * 1024
#: Responses of a stream that its caller may not have read yet; the worker acknowledges half as many at a time, and so
#: does the process for the responses of a called model.
RESPONSES_AHEAD = 16
TAKEN_AT_ONCE = 8


class Message(msgspec.Struct, tag=True, array_like=True):
    pass


# Questions.


class Start(Message):
    """Load this model."""

    model_name: str
    model_version: str
    directory: str
    filename: str
    args: dict[str, str]
    outputs: list[str]
    decoupled: bool
    cpus: list[int]


class Form(msgspec.Struct, array_like=True):
    """What requests of one plan have in common; its places are counted from a request's first byte."""

    model_name: str
    model_version: str
    places: list[Place]
    outputs: tuple[str, ...] | None
    parameters: Parameters
    priority: int
    timeout_ns: int
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool


class RequestHead(msgspec.Struct, array_like=True):
    """A request."""

    number: int
    id: str
    #: Where the process keeps its form; negative: nowhere.
    slot: int
    #: None: the process has it.
    form: Form | None
    #: Where its inputs begin.
    offset: int
    deadline: int
    chain: Chain


class Execute(Message):
    """Run these requests together; large results go into response block number ``response``."""

    requests: list[RequestHead]
    response: int
    #: The request block that has the inputs, and the part of it to map; -1: they are in the payload.
    block: int
    size: int
    has_callers: bool


class Close(Message):
    """Finalize the model and exit."""


# Answers.


class Error(Message):
    """An error of a request, as Triton numbers them."""

    code: int
    message: str
    #: Where the model raised it, for the worker's log.
    traceback: str = ""


class Outputs(Message):
    places: list[Place]
    parameters: Parameters


Outcome = Error | Outputs | None


class Started(Message):
    is_async: bool


class Failed(Message):
    """The load or ``finalize`` failed; ``config`` has the four parts of a ConfigError."""

    message: str
    config: list[str] = []


class Returned(Message):
    """``execute`` has returned; None: a response sender answers the request."""

    #: The number of the first request: an answer to other requests must not be taken for that to these.
    first: int
    outcomes: list[Outcome]
    #: The part of the response block to map; -1: the outputs are in the payload.
    size: int
    #: Request blocks in which the model still uses inputs.
    held: list[int]


class Closed(Message):
    pass


# Notices.


class Gone(Message):
    """The callers of these requests have gone."""

    numbers: list[int]


class Taken(Message):
    """The caller of a stream has taken this many further responses."""

    number: int
    count: int


class CallResponse(Message):
    """A response of a called model."""

    call: int
    places: list[Place]
    error: Error | None
    parameters: str
    is_last: bool


class Reply(Message):
    """The answer to ``Ask``."""

    question: int
    value: float
    error: str | None


# Reports.


class Answered(Message):
    """A response of a sender."""

    number: int
    outcome: Outcome
    is_last: bool


class Call(Message):
    """A call of another model."""

    call: int
    model_name: str
    model_version: int
    places: list[Place]
    outputs: list[str]
    request_id: str
    correlation_id: int | str
    flags: int
    timeout_us: int
    parameters: Parameters
    takes_many: bool
    deadline: int
    priority: int
    chain: Chain


class CancelCall(Message):
    call: int


class CallTaken(Message):
    """The model has taken this many further responses of a call."""

    call: int
    count: int


class LogLine(Message):
    level: Literal["info", "warning", "error", "debug"]
    message: str


class Ask(Message):
    """A question that the worker answers with ``Reply``."""

    question: int
    kind: Literal["ready", "load", "unload", "metric", "change"]
    #: Of a model, or of a metric.
    name: str
    version: str = ""
    config: str = ""
    files: dict[str, bytes] | None = None
    unload_dependents: bool = False
    #: Of a metric: its number in this process; how it is made; or how it is changed, and by what.
    metric: int = 0
    description: str = ""
    metric_kind: str = ""
    labels: dict[str, str] | None = None
    buckets: tuple[float, ...] = ()
    how: str = ""
    by: float | None = None


Question = Start | Execute | Close
Answer = Started | Failed | Returned | Closed
Notice = Gone | Taken | CallResponse | Reply
Report = Answered | Call | CancelCall | CallTaken | LogLine | Ask

_encoder = msgspec.msgpack.Encoder()
questions = msgspec.msgpack.Decoder(Question)
answers = msgspec.msgpack.Decoder(Answer)
notices = msgspec.msgpack.Decoder(Notice)
reports = msgspec.msgpack.Decoder(Report)


def encoded(message: Message, payload: Packing | bytes = b"") -> Frame:
    """Raises an exception of msgspec or Python if a value has no form in a message."""
    return frame(_encoder.encode(message), payload)


def decoded(decoder: Any, body: memoryview | Bytes) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError) as error:
        raise LinkBroken(f"not a message: {error}") from error


def error_message(error: IsochroneError, traceback: str = "") -> Error:
    known = triton_error(error)
    return Error(known.code(), known.message(), traceback)


def error_of(message: Error) -> IsochroneError:
    """The error of a request's caller."""
    if message.code not in range(8):
        raise LinkBroken(f"an error of the unknown code {message.code}")
    error = server_error(TritonError(message.message, message.code))
    if message.traceback:
        error.add_note(message.traceback)
    return error
