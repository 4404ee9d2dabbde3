"""Decoding of ModelInferRequest messages into a ``GrpcPlan`` and tensors, without copying the tensors.

A message is a head (model, ids, tensor names, types, shapes) followed by the tensors' raw bytes. Heads repeat, so
decoded heads are memoised by their bytes, and a repeated head costs a comparison. Raw bytes become views of the
received buffer; upb would copy them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from tritonclient.grpc import service_pb2

from isochrone.errors import InvalidArgument, MalformedRequest
from isochrone.protocol.grpc.calls import parse
from isochrone.protocol.messages import OutputChoice, Plan
from isochrone.protocol.parameters import PLAN_PARAMETERS, read_parameters
from isochrone.protocol.shared_memory_requests import input_view, regions_named
from isochrone.protocol.tensors.binary import from_binary, from_contents, truth
from isochrone.protocol.tensors.datatypes import element_count, item_size, numpy_of
from isochrone.protocol.varint import read_varint
from isochrone.wire.exchange import Buffer

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.service import InferenceService

#: Field 7, length-delimited: raw_input_contents. Serialisers write fields in order of their numbers, so these are last.
_RAW_INPUT = 0x3A
_MEMO_SIZE = 8
_MAX_HEAD_MEMOISED = 4096


class Answer:
    """The bytes around the tensors of an answer; they depend only on the model, its version and the shapes."""

    __slots__ = ("framed", "prefixes", "size")

    def __init__(self, prefixes: list[bytes], size: int) -> None:
        #: The bytes before each output's raw bytes; the first contains the message's head.
        self.prefixes = prefixes
        #: Bytes of the whole message.
        self.size = size
        #: The first prefix after the gRPC prefix of a message without an id.
        self.framed = b"\0" + size.to_bytes(4, "big") + prefixes[0]


class GrpcPlan(Plan):
    """A decoded message head."""

    __slots__ = ("answers", "bools", "choices", "is_plain", "regions", "request_id", "sources")

    #: (name, numpy type, shape, count, byte size) of each input, when all are plain; otherwise the message's inputs.
    sources: list[Any]
    choices: dict[str, OutputChoice]
    #: Every input is raw and of fixed size, every output is requested raw: the fast path.
    is_plain: bool
    #: BOOL inputs: their bytes may be other than 0 and 1, and are normalised on every path.
    bools: tuple[str, ...]
    request_id: str
    #: Shared memory that the request reads or writes.
    regions: tuple[str, ...]
    answers: dict[Any, Answer]


def split_raw(body: Buffer, start: int) -> tuple[bytes, list[tuple[int, int]], bool]:
    """A message's head, the (start, stop) of each raw input, and whether the head comes first.

    The head is every field except the raw inputs. It may be split: a gateway appends the pinned version to a message.
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
    """Decode a message head that is not memoised."""
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
        {key: value for key, value in parameters.items() if key not in PLAN_PARAMETERS},
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
    """Read the inputs off the fast path: typed contents, BYTES, shared memory, or raw."""
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
            size, offset = parameters.get("shared_memory_byte_size", 0), parameters.get("shared_memory_offset", 0)
            view = input_view(name, region, offset, size, service)
            inputs[name] = from_binary(name, datatype, shape, view, plan.model_name)
        elif item.HasField("contents"):
            inputs[name] = from_contents(name, datatype, shape, item.contents)
        elif used < len(raw):
            inputs[name] = from_binary(name, datatype, shape, memoryview(raw[used]), plan.model_name)
            used += 1
        elif element_count(shape, name) == 0 and not raw:
            inputs[name] = from_binary(name, datatype, shape, b"")
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
    """Decodes message bytes into a plan and inputs; memoises the most recent heads."""

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
        """The inputs after a known head; None: the rest is not exactly its raw inputs."""
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
            inputs[name] = truth(inputs[name])
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
