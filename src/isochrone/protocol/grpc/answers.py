"""Encoding of ModelInferResponse messages as buffers, without copying large tensors.

Everything except the tensors (the message's head) repeats from answer to answer, so it is memoised on the request's
plan, by the version that answered and the outputs' types and shapes. A Triton model may return other types than it
declares, and each time another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tritonclient.grpc import service_pb2

from isochrone.protocol.grpc.plan import Answer, GrpcPlan
from isochrone.protocol.messages import NO_PARAMETERS, InferRequest, Parameters
from isochrone.protocol.shared_memory_requests import write_output
from isochrone.protocol.tensors.binary import to_binary
from isochrone.protocol.tensors.classification import classify
from isochrone.protocol.tensors.datatypes import name_of
from isochrone.varint import encode_varint
from isochrone.wire.exchange import Buffer

if TYPE_CHECKING:
    from isochrone.protocol.messages import Tensors
    from isochrone.protocol.services.service import InferenceService

#: Field 6, length-delimited: raw_output_contents.
_RAW_OUTPUT = b"\x32"
_MAX_ANSWERS_MEMOISED = 64
#: Messages up to this size are joined into one buffer; larger ones are written piece by piece.
JOIN_LIMIT = 16 * 1024


def id_field(request_id: str) -> bytes:
    """Field 3, length-delimited: id."""
    raw = request_id.encode()
    return b"\x1a" + encode_varint(len(raw)) + raw


def answer_head(request: InferRequest, plan: GrpcPlan, outputs: Tensors, parameters: Parameters) -> bytes:
    """The serialised answer without its id, which comes before it, and raw contents."""
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


def plain_answer(
    request: InferRequest, plan: GrpcPlan, outputs: Tensors, parameters: Parameters = NO_PARAMETERS
) -> Answer | None:
    """The memoised answer for a plain plan with at least one output; None: an output has no fixed size."""
    if len(outputs) == 1:
        for name, array in outputs.items():
            key: Any = (request.served_by, name, array.dtype.num, array.shape)
    else:
        # A python model may return its outputs in any order and omit some.
        arrays = outputs.values()
        key = (request.served_by, *outputs, *[array.dtype.num for array in arrays], *[array.shape for array in arrays])
    if parameters:
        key = (*key, *parameters.items())
    answer = plan.answers.get(key)
    if answer is None:
        if any(array.dtype.kind == "O" for array in outputs.values()):
            return None
        prefixes = [_RAW_OUTPUT + encode_varint(array.nbytes) for array in outputs.values()]
        prefixes[0] = answer_head(request, plan, outputs, parameters) + prefixes[0]
        size = sum(len(prefix) for prefix in prefixes) + sum(array.nbytes for array in outputs.values())
        if len(plan.answers) >= _MAX_ANSWERS_MEMOISED:
            plan.answers.clear()
        answer = plan.answers[key] = Answer(prefixes, size)
    return answer


def regional_answer(
    request: InferRequest, plan: GrpcPlan, outputs: Tensors, parameters: Parameters, service: InferenceService
) -> Answer:
    """The answer of a plan whose outputs are all in shared memory: they are written there, the rest is memoised."""
    for name, array in outputs.items():
        write_output(name, plan.choices[name], array, service)
    shapes = tuple([(name, array.dtype.num, array.shape) for name, array in outputs.items()])
    key: Any = (request.served_by, shapes, *parameters.items()) if parameters else (request.served_by, shapes)
    answer = plan.answers.get(key)
    if answer is None:
        # As in Triton, an output in shared memory has an empty entry: clients look up entries by position.
        head = answer_head(request, plan, outputs, parameters) + (_RAW_OUTPUT + b"\0") * len(outputs)
        if len(plan.answers) >= _MAX_ANSWERS_MEMOISED:
            plan.answers.clear()
        answer = plan.answers[key] = Answer([head], len(head))
    return answer


def render(
    request: InferRequest, plan: GrpcPlan, outputs: Tensors, parameters: Parameters, service: InferenceService
) -> tuple[list[Buffer], int]:
    """The answer as buffers, and their total size."""
    outputs = _special_outputs(request, plan, outputs, service)
    head = answer_head(request, plan, outputs, parameters)
    parts: list[Buffer] = [id_field(request.id), head] if request.id else [head]
    size = sum(len(part) for part in parts)
    for name, array in outputs.items():
        choice = plan.choices.get(name)
        # As in Triton, an output in shared memory has an empty entry: clients look up entries by position.
        blob = b"" if choice is not None and choice.region else _raw(array)
        length = len(blob)
        tag = _RAW_OUTPUT + encode_varint(length)
        parts += (tag, blob)
        size += len(tag) + length
    return parts, size


def _raw(array: Any) -> Buffer:
    if array.nbytes <= JOIN_LIMIT and array.dtype.kind != "O":
        return array.tobytes()  # type: ignore[no-any-return]
    return to_binary(array, name_of(array.dtype))


def _special_outputs(request: InferRequest, plan: GrpcPlan, outputs: Tensors, service: InferenceService) -> Tensors:
    """Apply classification, and write outputs to shared memory."""
    result: Tensors = {}
    for name, array in outputs.items():
        choice = plan.choices.get(name)
        if choice is not None and choice.classes:
            labels = request.served_by.signature.output_by_name[name].labels
            array = classify(array, choice.classes, labels, request.served_by.batched)
        elif choice is not None and choice.region:
            write_output(name, choice, array, service)
        result[name] = array
    return result
