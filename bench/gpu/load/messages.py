"""ModelInfer requests of the GPU benches as bytes, tensors inside or in shared memory; what an answer holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tritonclient.grpc import service_pb2

from bench.gpu.models.specs import ModelSpec
from bench.realistic.messages import ID_DIGITS, Message


@dataclass(frozen=True)
class RegionPair:
    """A slot's places in registered regions: all inputs one after the other, and the output."""

    inputs: str
    output: str
    inputs_offset: int = 0
    output_offset: int = 0


def infer_message(spec: ModelSpec, row: Mapping[str, np.ndarray], regions: RegionPair | None = None) -> Message:
    """A request of one row in its gRPC frame, with a place for an id."""
    request = service_pb2.ModelInferRequest(model_name=spec.name, id="0" * ID_DIGITS)
    offset = 0 if regions is None else regions.inputs_offset
    for tensor in spec.inputs:
        given = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=(1, *tensor.dims))
        if regions is None:
            request.raw_input_contents.append(row[tensor.name].tobytes())
        else:
            _refer(given.parameters, regions.inputs, tensor.row_bytes, offset)
            offset += tensor.row_bytes
    wanted = request.outputs.add(name=spec.output.name)
    if regions is not None:
        _refer(wanted.parameters, regions.output, spec.output.row_bytes, regions.output_offset)
    payload = request.SerializeToString()
    return Message.of(b"\0" + len(payload).to_bytes(4, "big") + payload)


def _refer(parameters: object, region: str, size: int, offset: int) -> None:
    parameters["shared_memory_region"].string_param = region  # type: ignore[index]
    parameters["shared_memory_byte_size"].int64_param = size  # type: ignore[index]
    if offset:
        parameters["shared_memory_offset"].int64_param = offset  # type: ignore[index]


def messages_of(spec: ModelSpec) -> list[Message]:
    """One message per sample, with its tensors inside."""
    samples = spec.samples()
    count = len(next(iter(samples.values())))
    return [infer_message(spec, {name: rows[at] for name, rows in samples.items()}) for at in range(count)]


def answered(spec: ModelSpec, body: bytes) -> np.ndarray:
    """The output of an answer as it came over the wire: one row."""
    response = service_pb2.ModelInferResponse.FromString(body[5:])
    return np.frombuffer(response.raw_output_contents[0], spec.output.dtype).reshape(spec.output.dims)


_NAME, _VERSION, _ID = 0x0A, 0x12, 0x1A


def heading(body: bytes) -> tuple[bytes, bytes]:
    """Version and id of an answer, without decoding it: name, version and id come before the tensors, in any order."""
    version = identity = b""
    at = 5
    while (tag := body[at]) in (_NAME, _VERSION, _ID):
        end = at + 2 + body[at + 1]
        if tag == _VERSION:
            version = body[at + 2 : end]
        elif tag == _ID:
            identity = body[at + 2 : end]
        if end == len(body):
            break
        at = end
    return version, identity
