"""POST …/infer: JSON and binary tensors to an ``InferRequest``, and its outputs back to bytes.

The JSON part of a request whose tensors are binary repeats from request to request, so its decoded form, a
``RestPlan``, is memoised by its bytes; so is the JSON part of the answer, by the plan, the version that answered and
the shapes of the outputs. Both transports share the tensor codecs; nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from isochrone.clock import MICROSECOND, NEVER, now_ns
from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.protocol import json_tensors, tensors, timing
from isochrone.protocol.classification import classify
from isochrone.protocol.datatypes import element_count, item_size, name_of, numpy_of, shown
from isochrone.protocol.deflating import deflated
from isochrone.protocol.json_bodies import read_json
from isochrone.protocol.leases import LeasedRequest, regions_named, write_output
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters, Plan
from isochrone.protocol.rest_answers import JSON
from isochrone.wire.exchange import Buffer, Exchange, Headers

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.rest import InferRoute
    from isochrone.protocol.service import InferenceService

_MAX_ANSWERS_MEMOISED = 64
#: Outputs up to this size are copied into the answer; larger ones are written from where they lie.
_COPY_LIMIT = 4096


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Header(msgspec.Struct):
    inputs: list[_Input]
    id: str = ""
    outputs: list[_Output] | None = None
    parameters: dict[str, Any] = {}


_decode_header = msgspec.json.Decoder(_Header).decode
_encode_json = msgspec.json.Encoder().encode


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


class RestPlan(Plan):
    """A decoded JSON part: where the tensors lie, and how the outputs are wanted."""

    __slots__ = ("answers", "binary_default", "bools", "choices", "is_plain", "regions", "request_id", "sources")

    #: (name, datatype, numpy type, shape, count, start, stop) for binary data behind the JSON part;
    #: (name, datatype, region, shape, offset, size, None) for shared memory; arrays of JSON data come ready.
    sources: list[Any]
    choices: dict[str, OutputChoice]
    binary_default: bool
    #: Every input is binary and of fixed size, every output plain: the fast path.
    is_plain: bool
    #: Inputs whose bytes are checked on every path: they may be neither 0 nor 1.
    bools: tuple[str, ...]
    request_id: str
    #: Shared memory that the request reads or writes.
    regions: tuple[str, ...]
    answers: dict[Any, tuple[Headers, bytes]]


def read_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters a plan has fields for, checked; keyword arguments of ``Plan``."""
    fields: dict[str, Any] = {}
    for key, expected in (("priority", int), ("timeout", int), ("sequence_start", bool), ("sequence_end", bool)):
        value = parameters.get(key)
        if value is None:
            continue
        if not isinstance(value, expected) or (expected is int and isinstance(value, bool)):
            raise InvalidArgument(f"parameter '{key}': expected {expected.__name__}, given {shown(value)}")
        if expected is int and not 0 <= value < 1 << 63:
            raise InvalidArgument(f"parameter '{key}': expected 0 to 2^63-1, given {value}")
        fields["timeout_ns" if key == "timeout" else key] = value * MICROSECOND if key == "timeout" else value
    sequence = parameters.get("sequence_id", 0)
    if isinstance(sequence, bool) or not isinstance(sequence, int | str):
        raise InvalidArgument(f"parameter 'sequence_id': expected an integer or a string, given {shown(sequence)}")
    if isinstance(sequence, int) and not 0 <= sequence < 1 << 64:
        raise InvalidArgument(f"parameter 'sequence_id': expected 0 to 2^64-1, given {sequence}")
    fields["sequence_id"] = sequence
    return fields


_KNOWN = frozenset(("priority", "timeout", "sequence_start", "sequence_end", "sequence_id", "binary_data_output"))


def _size_parameter(parameters: dict[str, Any], key: str, where: str) -> int:
    value = parameters.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise InvalidArgument(f"{where}: parameter '{key}': expected a non-negative integer, given {shown(value)}")
    return value


def decode_plan(header: Buffer, length: int, model_name: str, model_version: str) -> RestPlan:
    """Decodes a JSON part; ``length`` is where it ends and binary data begins."""
    message = read_json(header, _decode_header, _Header)
    position = length
    sources: list[Any] = []
    described: list[tuple[str, str, tuple[int, ...]]] = []
    regions: list[object] = []
    plain = True
    for item in message.inputs:
        shape = tuple(item.shape)
        where = f"input '{item.name}'"
        dtype = numpy_of(item.datatype)
        count = element_count(shape, where)
        described.append((item.name, item.datatype, shape))
        parameters = item.parameters
        size = _size_parameter(parameters, "binary_data_size", where) if "binary_data_size" in parameters else -1
        region = parameters.get("shared_memory_region")
        _check_one_source(item, size >= 0, region is not None)
        if region is not None:
            regions.append(region)
            byte_size = _size_parameter(parameters, "shared_memory_byte_size", where)
            offset = _size_parameter(parameters, "shared_memory_offset", where)
            sources.append((item.name, item.datatype, region, shape, offset, byte_size, None))
            plain = False
        elif size >= 0:
            if item.datatype == "BYTES":
                plain = False
            elif size != count * item_size(item.datatype):
                raise tensors.size_mismatch(item.name, model_name, count * item_size(item.datatype), size)
            sources.append((item.name, item.datatype, dtype, shape, count, position, position + size))
            position += size
        elif item.data is not None:
            sources.append(json_tensors.from_json(item.name, item.datatype, shape, item.data))
            plain = False
        else:
            raise InvalidArgument(f"{where} has neither 'data', 'binary_data_size' nor a shared memory region")
    binary_default = message.parameters.get("binary_data_output", False)
    if not isinstance(binary_default, bool):
        raise InvalidArgument(f"parameter 'binary_data_output': expected bool, given {shown(binary_default)}")
    choices: dict[str, OutputChoice] = {}
    for output in message.outputs or ():
        choice = _choice(output, binary_default)
        choices[output.name] = choice
        plain = plain and choice.is_plain
    if message.outputs and len(choices) != len(message.outputs):
        raise InvalidArgument("'outputs' names an output twice")
    if not choices and not binary_default:
        plain = False
    plan = RestPlan(
        model_name,
        model_version,
        tuple(described),
        tuple(choices) or None,
        {key: value for key, value in message.parameters.items() if key not in _KNOWN},
        **read_parameters(message.parameters),
    )
    plan.sources = sources
    plan.choices = choices
    plan.binary_default = binary_default
    plan.is_plain = plain
    plan.bools = tuple(name for name, datatype, _ in described if datatype == "BOOL")
    plan.request_id = message.id
    plan.regions = regions_named(regions, choices)
    plan.answers = {}
    return plan


def _check_one_source(item: _Input, has_binary: bool, has_region: bool) -> None:
    given = {"data": item.data is not None, "binary_data_size": has_binary, "shared_memory_region": has_region}
    named = [f"'{key}'" for key, is_given in given.items() if is_given]
    if len(named) > 1:
        raise InvalidArgument(
            f"input '{item.name}': Input must set only one of the following fields: 'data', 'binary_data_size' in "
            f"'parameters', 'shared_memory_region' in 'parameters'. But set {' '.join(named)}"
        )


def _choice(output: _Output, binary_default: bool) -> OutputChoice:
    parameters = output.parameters
    where = f"output '{output.name}'"
    binary = parameters.get("binary_data", binary_default)
    if not isinstance(binary, bool):
        raise InvalidArgument(f"{where}: parameter 'binary_data': expected bool, given {shown(binary)}")
    region = parameters.get("shared_memory_region", "")
    classes = _size_parameter(parameters, "classification", where)
    for key, given in (("classification", classes), ("binary_data", parameters.get("binary_data", False))):
        if region and given:
            raise InvalidArgument(f"{where}: Output can't set both 'shared_memory_region' and '{key}'")
    return OutputChoice(
        binary,
        classes,
        region,
        _size_parameter(parameters, "shared_memory_offset", where),
        _size_parameter(parameters, "shared_memory_byte_size", where),
    )


def read_inputs(plan: RestPlan, body: Buffer, service: InferenceService) -> Tensors:
    """The tensors a plan describes, as views of the body where their type allows."""
    inputs: Tensors = {}
    if plan.is_plain:
        for name, _, dtype, shape, count, start, stop in plan.sources:
            if stop > len(body):
                raise _short(name, stop - start, len(body) - start)
            inputs[name] = np.frombuffer(body, dtype, count, start).reshape(shape)
        for name in plan.bools:
            inputs[name] = tensors.truth(inputs[name])
        end = plan.sources[-1][6] if plan.sources else len(body)
    else:
        end = -1
        view = memoryview(body)
        for described, source in zip(plan.inputs, plan.sources, strict=True):
            if not isinstance(source, tuple):
                inputs[described[0]] = source
                continue
            name, datatype, where, shape, start_or_count, start, stop = source
            if stop is None:
                view_ = _region(service, name, where, start_or_count, start)
                inputs[name] = tensors.from_binary(name, datatype, shape, view_, plan.model_name)
                continue
            if stop > len(body):
                raise _short(name, stop - start, len(body) - start)
            inputs[name] = tensors.from_binary(name, datatype, shape, view[start:stop], plan.model_name)
            end = stop
    if len(inputs) != len(plan.inputs):
        raise InvalidArgument("the request names an input twice")
    if end >= 0 and end != len(body):
        raise InvalidArgument(f"unexpected additional input data: {len(body) - end} bytes follow the last input")
    return inputs


def _short(name: str, expected: int, given: int) -> InvalidArgument:
    return InvalidArgument(f"unexpected end of the body: input '{name}' announces {expected} bytes, given {given}")


def _region(service: InferenceService, name: str, region: str, offset: int, size: int) -> memoryview:
    if service.shared_memory is None:
        raise InvalidArgument(
            f"input '{name}' is in shared memory, which is switched off; start the server with --allow-shared-memory"
        )
    return service.shared_memory.view(region, offset, size)


class RestInferRequest(InferRequest):
    """An inference request that came over REST; knows how to write its answer."""

    __slots__ = ("exchange", "route", "steps")

    plan: RestPlan

    def __init__(self, exchange: Exchange, route: InferRoute, plan: RestPlan, inputs: Tensors) -> None:
        arrived = exchange.arrived
        timeout = plan.timeout_ns or route.timeout_ns
        if route.timeout_ns and plan.timeout_ns:
            timeout = min(plan.timeout_ns, route.timeout_ns)
        # InferRequest's fields, set here rather than by a second call: this runs for every request.
        self.plan = plan
        self.id = plan.request_id
        self.inputs = inputs
        self.deadline = arrived + timeout if timeout else NEVER
        self.cancelled = False
        self.served_by = None
        self.arrived = arrived
        self.enqueued = arrived
        self.dispatched = 0
        self.compute_start = 0
        self.infer_start = 0
        self.infer_end = 0
        self.compute_end = 0
        self.exchange = exchange
        self.route = route
        exchange.owner = self

    @property
    def stages(self) -> Mapping[str, str] | None:
        return self.route.stages

    def abandoned(self) -> None:
        self.cancelled = True

    def endpoint(self) -> str:
        return "HTTP end point"

    def note_step(self, model: str, nanoseconds: int) -> None:
        if self.route.wants_timing:
            timing.note_step(self, model, nanoseconds)

    def complete(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        plan = self.plan
        served = self.served_by
        if plan.is_plain and served.fixed_size:
            if len(outputs) == 1:
                for name, array in outputs.items():
                    key: Any = (served, name, array.shape)
            else:
                # A python model may give its outputs in any order, and leave some out.
                key = (served, *outputs, *[array.shape for array in outputs.values()])
            if parameters:
                key = (*key, *parameters.items())
            answer = plan.answers.get(key)
            if answer is None:
                answer = self._memoise(key, outputs, parameters)
            headers, start = answer
            parts: list[Buffer] = [start]
            for array in outputs.values():
                if array.nbytes <= _COPY_LIMIT:
                    parts.append(array.tobytes())
                else:
                    parts.append(tensors.to_binary(array, name_of(array.dtype)))
            self._send(headers, parts)
            return
        try:
            headers, parts = self._render(outputs, parameters)
        except IsochroneError as error:
            self.fail(error)
            return
        self._send(headers, parts)

    def _memoise(self, key: Any, outputs: Tensors, parameters: Parameters) -> tuple[Headers, bytes]:
        headers, parts = self._render(outputs, parameters)
        answers = self.plan.answers
        if len(answers) >= _MAX_ANSWERS_MEMOISED:
            answers.clear()
        answers[key] = (headers, bytes(parts[0]))
        return answers[key]

    def _render(self, outputs: Tensors, parameters: Parameters) -> tuple[Headers, list[Buffer]]:
        plan, served = self.plan, self.served_by
        described: list[dict[str, Any]] = []
        blobs: list[Buffer] = []
        default = OutputChoice(plan.binary_default)
        for name, array in outputs.items():
            choice = plan.choices.get(name, default)
            if choice.classes:
                labels = served.signature.output_by_name[name].labels
                array = classify(array, choice.classes, labels, served.batched)
            datatype = name_of(array.dtype)
            item: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
            if choice.region:
                # The entry says nothing of it, as Triton's: C++ clients take any parameter for a binary size.
                write_output(name, choice, tensors.to_binary(array, datatype), self.route.service)
            elif choice.binary:
                blob = tensors.to_binary(array, datatype)
                item["parameters"] = {"binary_data_size": len(blob)}
                blobs.append(blob)
            else:
                item["data"] = json_tensors.to_json(array, datatype)
            described.append(item)
        # In Triton's order, for clients that compare text.
        message: dict[str, Any] = {"id": self.id} if self.id else {}
        message["model_name"], message["model_version"] = plan.model_name, served.model_version
        if parameters:
            message["parameters"] = dict(parameters)
        message["outputs"] = described
        start = _encode_json(message)
        if not blobs:
            return JSON, [start]
        headers: Headers = (
            (b"content-type", b"application/octet-stream"),
            (b"inference-header-content-length", b"%d" % len(start)),
        )
        return headers, [start, *blobs]

    def _send(self, headers: Headers, parts: Sequence[Buffer]) -> None:
        route = self.route
        if route.is_plain:
            self.exchange.respond(200, headers, parts)
            return
        if route.accept_encoding is None:
            self.exchange.respond(200, headers + self._extras(), parts)
        else:
            deflated(self.exchange, route.accept_encoding, headers, parts, self._extras)

    def _extras(self) -> Headers:
        """Headers the caller asked for: where the time went, and how loaded we are."""
        route = self.route
        extras: Headers = ()
        if route.wants_timing:
            extras += ((b"server-timing", timing.server_timing(self, now_ns())),)
        if route.load_format:
            report = route.service.load_report(route.model, route.version)
            render = timing.orca_text if route.load_format == b"text" else timing.orca_json
            extras += ((b"endpoint-load-metrics", render(report)),)
        return extras

    def fail(self, error: IsochroneError) -> None:
        headers = JSON if self.route.is_plain else JSON + self._extras()
        self.exchange.respond(error.http_status, headers, [_encode_json({"error": error.message})])

    def emit(self, outputs: Tensors, parameters: Parameters = NO_PARAMETERS) -> None:
        # infer() refuses decoupled models over REST before they start, so there is one response at most.
        self.complete(outputs, parameters)

    def finish(self) -> None:
        pass


class LeasedRestInferRequest(LeasedRequest, RestInferRequest):
    """One that reads or writes shared memory."""
