"""ModelInfer: protobuf bytes to an ``InferRequest`` and back, with the tensors left where they lie.

A request's message is a head (model, ids, tensor names, types, shapes) followed by the tensors' raw bytes. Heads
repeat, so the decoded head is memoised by its bytes, and a repeated one costs a comparison; raw bytes become views of
the received buffer. upb would copy them twice. The answer's head is memoised in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tritonclient.grpc import service_pb2

from isochrone.clock import NEVER, now_ns
from isochrone.errors import InvalidArgument, IsochroneError, MalformedRequest
from isochrone.protocol import tensors, timing
from isochrone.protocol.classification import classify
from isochrone.protocol.datatypes import element_count, item_size, name_of, numpy_of
from isochrone.protocol.grpc import (
    OK_TRAILERS,
    RESPONSE_HEADERS,
    CallHead,
    GrpcRouter,
    error_block,
    fail,
    message_of,
    parse,
    unexpected,
)
from isochrone.protocol.leases import LeasedRequest, infer_leased, regions_named, write_output
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters, Plan
from isochrone.protocol.rest_infer import OutputChoice, read_parameters
from isochrone.protocol.varint import encode_varint, read_varint
from isochrone.wire.exchange import Buffer, Exchange, Route
from isochrone.wire.hpack import Encoder

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.service import InferenceService
    from isochrone.wire.http2_server import ServerStream

#: Field 7, length-delimited: raw_input_contents. Serialisers write fields by number, so these come last.
_RAW_INPUT = 0x3A
#: Field 6, length-delimited: raw_output_contents.
_RAW_OUTPUT = b"\x32"
_ID = b"\x1a"
_MEMO_SIZE = 8
_MAX_HEAD_MEMOISED = 4096
_MAX_ANSWERS_MEMOISED = 64
_KNOWN = frozenset(("priority", "timeout", "sequence_start", "sequence_end", "sequence_id"))
#: Messages up to this size are joined into one buffer; larger ones are written piece by piece.
_JOIN_LIMIT = 16 * 1024

_encode_headers = Encoder().encode


class GrpcPlan(Plan):
    """A decoded message head."""

    __slots__ = ("answers", "bools", "choices", "is_plain", "regions", "request_id", "sources")

    #: (name, numpy type, shape, count, byte size) of each input, when all are plain; otherwise the message's inputs.
    sources: list[Any]
    choices: dict[str, OutputChoice]
    #: Every input is raw and of fixed size, every output is wanted raw: the fast path.
    is_plain: bool
    #: Inputs whose bytes are checked on every path: they may be neither 0 nor 1.
    bools: tuple[str, ...]
    request_id: str
    #: Shared memory that the request reads or writes.
    regions: tuple[str, ...]
    answers: dict[Any, Answer]


def split_raw(body: Buffer, start: int) -> tuple[bytes, list[tuple[int, int]], bool]:
    """A message's head, the (start, stop) of each raw input, and whether the head comes first.

    The head is every field but the raw inputs: a gateway appends the version it pins behind them.
    """
    position, end = start, len(body)
    pieces: list[bytes] = []
    spans: list[tuple[int, int]] = []
    begun = start
    while position < end:
        if body[position] == _RAW_INPUT:
            if position > begun:
                pieces.append(bytes(body[begun:position]))
            length, position = read_varint(body, position + 1)
            spans.append((position, position + length))
            position += length
            begun = position
        else:
            position = _after_field(body, position)
    if position > end:
        where = "raw_input_contents" if begun == position else "a field"
        raise MalformedRequest(f"failed to parse ModelInferRequest: {where} is cut short")
    ordered = begun == end or not spans
    if begun < end:
        pieces.append(bytes(body[begun:end]))
    return b"".join(pieces), spans, ordered and len(pieces) <= 1


def _after_field(body: Buffer, position: int) -> int:
    tag, position = read_varint(body, position)
    kind = tag & 7
    if kind == 2:
        length, position = read_varint(body, position)
        return position + length
    if kind == 0:
        return read_varint(body, position)[1]
    if kind == 1:
        return position + 8
    if kind == 5:
        return position + 4
    raise MalformedRequest(f"failed to parse ModelInferRequest: wire type {kind}")


def plain_parameters(parameters: Any) -> dict[str, Any]:
    """A protobuf parameter map as plain values."""
    result: dict[str, Any] = {}
    for key, value in parameters.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            result[key] = getattr(value, kind)
    return result


def plan_of(message: Any) -> GrpcPlan:
    """Decodes a message head that is not memoised."""
    described: list[tuple[str, str, tuple[int, ...]]] = []
    sources: list[Any] = []
    regions: list[object] = []
    plain = True
    for item in message.inputs:
        shape = tuple(item.shape)
        count = element_count(shape, f"input '{item.name}'")
        described.append((item.name, item.datatype, shape))
        dtype = numpy_of(item.datatype)
        if item.datatype == "BYTES" or item.parameters or item.HasField("contents"):
            plain = False
            if "shared_memory_region" in item.parameters:
                regions.append(item.parameters["shared_memory_region"].string_param)
        sources.append((item.name, dtype, shape, count, count * item_size(item.datatype) if plain else 0))
    choices: dict[str, OutputChoice] = {}
    for output in message.outputs:
        choice = _choice(output)
        choices[output.name] = choice
        plain = plain and choice.is_plain
    if len(choices) != len(message.outputs):
        raise InvalidArgument("'outputs' names an output twice")
    parameters = plain_parameters(message.parameters) if message.parameters else {}
    plan = GrpcPlan(
        message.model_name,
        message.model_version,
        tuple(described),
        tuple(choices) or None,
        {key: value for key, value in parameters.items() if key not in _KNOWN},
        **read_parameters(parameters),
    )
    plan.sources = sources
    plan.choices = choices
    plan.is_plain = plain
    plan.bools = tuple(name for name, datatype, _ in described if datatype == "BOOL")
    plan.request_id = message.id
    plan.regions = regions_named(regions, choices)
    plan.answers = {}
    return plan


def _choice(output: Any) -> OutputChoice:
    parameters = plain_parameters(output.parameters)
    for key in ("classification", "shared_memory_offset", "shared_memory_byte_size"):
        value = parameters.get(key, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InvalidArgument(f"output '{output.name}': parameter '{key}': expected an int64 ≥ 0, given {value!r}")
    region = parameters.get("shared_memory_region", "")
    if region and parameters.get("classification"):
        raise InvalidArgument(
            f"output '{output.name}': Output can't set both 'shared_memory_region' and 'classification'"
        )
    return OutputChoice(
        True,
        parameters.get("classification", 0),
        region,
        parameters.get("shared_memory_offset", 0),
        parameters.get("shared_memory_byte_size", 0),
    )


def read_inputs(plan: GrpcPlan, message: Any, raw: Sequence[Buffer], service: InferenceService) -> Tensors:
    """Inputs of a request off the fast path: typed contents, BYTES, shared memory, or raw."""
    inputs: Tensors = {}
    used = 0
    typed = any(item.HasField("contents") for item in message.inputs)
    if typed and raw:
        raise InvalidArgument(
            "contents field must not be specified when using raw_input_contents for model "
            f"'{plan.model_name}': send one of them"
        )
    for item, (name, datatype, shape) in zip(message.inputs, plan.inputs, strict=True):
        parameters = plain_parameters(item.parameters)
        region = parameters.get("shared_memory_region")
        if region is not None:
            if service.shared_memory is None:
                raise InvalidArgument(
                    f"input '{name}' is in shared memory, which is switched off; "
                    "start the server with --allow-shared-memory"
                )
            size, offset = parameters.get("shared_memory_byte_size", 0), parameters.get("shared_memory_offset", 0)
            view = service.shared_memory.view(region, offset, size)
            inputs[name] = tensors.from_binary(name, datatype, shape, view, plan.model_name)
        elif item.HasField("contents"):
            inputs[name] = tensors.from_contents(name, datatype, shape, item.contents)
        elif used < len(raw):
            inputs[name] = tensors.from_binary(name, datatype, shape, memoryview(raw[used]), plan.model_name)
            used += 1
        elif element_count(shape, name) == 0 and not raw:
            inputs[name] = tensors.from_binary(name, datatype, shape, b"")
        else:
            raise InvalidArgument(
                f"expected raw_input_contents for input '{name}' of model '{plan.model_name}', given {len(raw)} entries"
            )
    if used != len(raw):
        raise InvalidArgument(
            f"raw_input_contents: expected {used} entries for model '{plan.model_name}', given {len(raw)}"
        )
    if len(inputs) != len(plan.inputs):
        raise InvalidArgument("the request names an input twice")
    return inputs


class InferDecoder:
    """Message bytes to a plan and inputs; remembers the heads it saw last."""

    __slots__ = ("_recent", "_service")

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        #: (head bytes, plan), most recent first.
        self._recent: list[tuple[bytes, GrpcPlan]] = []

    def decode(self, body: Buffer, start: int) -> tuple[GrpcPlan, Tensors]:
        opening, skipped = (
            (body, start) if type(body) is bytes else (bytes(body[start : start + _MAX_HEAD_MEMOISED]), 0)
        )
        for head, plan in self._recent:
            if opening.startswith(head, skipped):
                found = self._fast(body, start + len(head), plan)
                if found is not None:
                    return plan, found
        return self._slow(body, start)

    def _fast(self, body: Buffer, position: int, plan: GrpcPlan) -> Tensors | None:
        """The inputs behind a known head; None when what follows is not exactly its raw inputs."""
        inputs: Tensors = {}
        end = len(body)
        for name, dtype, shape, count, size in plan.sources:
            if position >= end or body[position] != _RAW_INPUT:
                return None
            position += 1
            length = body[position] if position < end else 0
            if length < 0x80:
                position += 1
            else:
                length, position = read_varint(body, position)
            if length != size or position + length > end:
                return None
            inputs[name] = np.frombuffer(body, dtype, count, position).reshape(shape)
            position += length
        for name in plan.bools:
            inputs[name] = tensors.truth(inputs[name])
        return inputs if position == end and len(inputs) == len(plan.sources) else None

    def _slow(self, body: Buffer, start: int) -> tuple[GrpcPlan, Tensors]:
        head, spans, ordered = split_raw(body, start)
        message = parse(service_pb2.ModelInferRequest, head)
        plan = plan_of(message)
        view = memoryview(body)
        inputs = read_inputs(plan, message, [view[a:b] for a, b in spans], self._service)
        if ordered and plan.is_plain and not plan.request_id and len(head) <= _MAX_HEAD_MEMOISED:
            self._recent.insert(0, (head, plan))
            del self._recent[_MEMO_SIZE:]
        return plan, inputs


def answer_head(request: InferRequest, plan: GrpcPlan, outputs: Tensors, parameters: Parameters) -> bytes:
    """The serialised answer without its id and raw contents."""
    message = service_pb2.ModelInferResponse(model_name=plan.model_name, model_version=request.served_by.model_version)
    for key, value in parameters.items():
        slot = message.parameters[key]
        if isinstance(value, bool):
            slot.bool_param = value
        elif isinstance(value, int):
            slot.int64_param = value
        elif isinstance(value, float):
            slot.double_param = value
        else:
            slot.string_param = value
    for name, array in outputs.items():
        output = message.outputs.add()
        output.name = name
        output.datatype = name_of(array.dtype)
        output.shape.extend(array.shape)
    return bytes(message.SerializeToString())


class Answer:
    """The bytes around the tensors of an answer: everything the model, its version and the shapes alone decide."""

    __slots__ = ("framed", "prefixes", "size")

    def __init__(self, prefixes: list[bytes], size: int) -> None:
        #: What stands before each output's raw bytes; the first holds the message's head.
        self.prefixes = prefixes
        #: Bytes of the whole message.
        self.size = size
        #: The first prefix behind the gRPC frame of a message without an id.
        self.framed = b"\0" + size.to_bytes(4, "big") + prefixes[0]


def plain_answer(
    request: InferRequest, plan: GrpcPlan, outputs: Tensors, parameters: Parameters = NO_PARAMETERS
) -> Answer:
    """The memoised answer of a plain plan; there is at least one output."""
    if len(outputs) == 1:
        for name, array in outputs.items():
            key: Any = (request.served_by, name, array.shape)
    else:
        # A python model may give its outputs in any order, and leave some out.
        key = (request.served_by, *outputs, *[array.shape for array in outputs.values()])
    if parameters:
        key = (*key, *parameters.items())
    answer = plan.answers.get(key)
    if answer is None:
        prefixes = [_RAW_OUTPUT + encode_varint(array.nbytes) for array in outputs.values()]
        prefixes[0] = answer_head(request, plan, outputs, parameters) + prefixes[0]
        size = sum(len(prefix) for prefix in prefixes) + sum(array.nbytes for array in outputs.values())
        if len(plan.answers) >= _MAX_ANSWERS_MEMOISED:
            plan.answers.clear()
        answer = plan.answers[key] = Answer(prefixes, size)
    return answer


def render(
    request: InferRequest, plan: GrpcPlan, outputs: Tensors, parameters: Parameters, service: InferenceService
) -> tuple[list[Buffer], int]:
    """The answer as buffers, and their total size."""
    outputs = _special_outputs(request, plan, outputs, service)
    head = answer_head(request, plan, outputs, parameters)
    parts: list[Buffer] = [head]
    size = len(head)
    if request.id:
        name = request.id.encode()
        field = _ID + encode_varint(len(name)) + name
        parts.append(field)
        size += len(field)
    for name_, array in outputs.items():
        choice = plan.choices.get(name_)
        # An output in shared memory has an empty entry, as Triton's: clients look entries up by position.
        blob = b"" if choice is not None and choice.region else _raw(array)
        length = len(blob)
        tag = _RAW_OUTPUT + encode_varint(length)
        parts += (tag, blob)
        size += len(tag) + length
    return parts, size


def _raw(array: Any) -> Buffer:
    if array.nbytes <= _JOIN_LIMIT and array.dtype.kind != "O":
        return array.tobytes()  # type: ignore[no-any-return]
    return tensors.to_binary(array, name_of(array.dtype))


def _special_outputs(request: InferRequest, plan: GrpcPlan, outputs: Tensors, service: InferenceService) -> Tensors:
    """Applies classification and writes to shared memory."""
    result: Tensors = {}
    for name, array in outputs.items():
        choice = plan.choices.get(name)
        if choice is not None and choice.classes:
            labels = request.served_by.signature.output_by_name[name].labels
            array = classify(array, choice.classes, labels, request.served_by.batched)
        elif choice is not None and choice.region:
            write_output(name, choice, tensors.to_binary(array, name_of(array.dtype)), service)
        result[name] = array
    return result


class InferMethod:
    """ModelInfer, shared by all its calls."""

    def __init__(self, grpc: GrpcRouter) -> None:
        self._grpc = grpc
        self._decoder = InferDecoder(grpc.service)

    def route(self, call: CallHead) -> Route:
        return InferRoute(self._grpc, self._decoder, call)


class InferRoute(Route):
    """ModelInfer with one particular header block."""

    def __init__(self, grpc: GrpcRouter, decoder: InferDecoder, call: CallHead) -> None:
        self.service = grpc.service
        self._limit = grpc.max_body_bytes
        self._decode = decoder.decode
        self.call = call

    def handle(self, exchange: Exchange) -> None:
        try:
            body = exchange.body
            # An uncompressed message that fills the body, as every unary call's should; else find out what it is.
            if len(body) >= 5 and not body[0] and int.from_bytes(body[1:5], "big") == len(body) - 5:
                plan, inputs = self._decode(body, 5)
            else:
                plan, inputs = self._decode(*message_of(body, self.call.encoding, self._limit))
            if plan.regions:
                infer_leased(self.service, LeasedGrpcInferRequest(exchange, self, plan, inputs), plan.choices)
            else:
                self.service.infer(GrpcInferRequest(exchange, self, plan, inputs))
        except IsochroneError as error:
            exchange.owner = None
            fail(exchange, error)
        except Exception as error:
            exchange.owner = None
            fail(exchange, unexpected(error))


class GrpcInferRequest(InferRequest):
    """A request that came by ModelInfer; knows how to write its answer."""

    __slots__ = ("route", "steps", "stream")

    plan: GrpcPlan

    def __init__(self, stream: Any, route: InferRoute, plan: GrpcPlan, inputs: Tensors) -> None:
        # InferRequest's fields, set here rather than by a second call: this runs for every request.
        arrived = stream.arrived
        self.plan = plan
        self.id = plan.request_id
        self.inputs = inputs
        if plan.timeout_ns or route.call.timeout_ns:
            self.deadline = route.call.deadline(arrived, plan.timeout_ns)
        else:
            self.deadline = NEVER
        self.cancelled = False
        self.served_by = None
        self.arrived = arrived
        self.enqueued = arrived
        self.dispatched = 0
        self.compute_start = 0
        self.infer_start = 0
        self.infer_end = 0
        self.compute_end = 0
        self.stream: ServerStream = stream
        self.route = route
        stream.owner = self

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self.route.call.stages

    def abandoned(self) -> None:
        self.cancelled = True

    def note_step(self, model: str, nanoseconds: int) -> None:
        if self.route.call.wants_timing:
            timing.note_step(self, model, nanoseconds)

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        stream = self.stream
        route = self.route
        plan = self.plan
        if plan.is_plain and outputs and not self.id and route.call.is_plain and self.served_by.fixed_size:
            answer = plain_answer(self, plan, outputs, parameters)
            if answer.size <= _JOIN_LIMIT:
                if len(outputs) == 1:
                    for array in outputs.values():
                        payload = answer.framed + array.tobytes()
                else:
                    payload = self._join(answer, outputs)
                stream.respond_unary(RESPONSE_HEADERS, payload, answer.size + 5, OK_TRAILERS)
                return
        try:
            parts, size = render(self, plan, outputs, parameters, route.service)
        except IsochroneError as error:
            self.fail(error)
            return
        prefix = b"\0" + size.to_bytes(4, "big")
        trailers = OK_TRAILERS
        if not route.call.is_plain:
            extras = route.call.extras(self, route.service, now_ns())
            trailers = _encode_headers([(b"grpc-status", b"0"), *extras])
        if size <= _JOIN_LIMIT:
            stream.respond_unary(RESPONSE_HEADERS, b"".join([prefix, *parts]), size + 5, trailers)
            return
        stream.owner = None
        if stream.local_done:
            return
        stream.send_headers(RESPONSE_HEADERS, False)
        for part in [prefix, *parts]:
            stream.send_data(part)
        stream.send_headers(trailers, True)

    @staticmethod
    def _join(answer: Answer, outputs: Tensors) -> bytes:
        parts = [answer.framed]
        for prefix, array in zip((b"", *answer.prefixes[1:]), outputs.values(), strict=True):
            parts += (prefix, array.tobytes())
        return b"".join(parts)

    def fail(self, error: IsochroneError) -> None:
        call = self.route.call
        extras = () if call.is_plain else call.extras(self, self.route.service, now_ns())
        block = error_block(error.grpc_status, error.message, trailers_only=True, extras=extras)
        self.stream.end_with_trailers(block)

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        # infer() refuses decoupled models on unary calls before they start, so there is one response at most.
        self.complete(outputs, parameters)

    def finish(self) -> None:
        pass


class LeasedGrpcInferRequest(LeasedRequest, GrpcInferRequest):
    """One that reads or writes shared memory."""
