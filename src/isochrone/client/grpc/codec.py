"""Requests and answers of the protocol over gRPC, as the protobuf messages that NVIDIA keeps. No I/O."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import service_pb2

from isochrone.client.answers import ModelMetadata, Outputs, TensorMetadata
from isochrone.client.calls import InferCall, Parameter
from isochrone.client.failures import unreadable
from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.protocol.tensors.binary import CONTENTS_FIELD, from_binary, from_contents


def encode_infer(call: InferCall) -> Any:
    """A ``ModelInferRequest``."""
    request = service_pb2.ModelInferRequest(model_name=call.model, model_version=call.version, id=call.id)
    for each in call.inputs:
        request.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        request.raw_input_contents.append(bytes(each.data))
    for name in call.outputs:
        request.outputs.add(name=name)
    for key, value in call.parameters.items():
        setattr(request.parameters[key], _field(value), value)
    return request


def _field(value: Parameter) -> str:
    if isinstance(value, bool):
        return "bool_param"
    if isinstance(value, int):
        return "int64_param" if value < 1 << 63 else "uint64_param"
    if isinstance(value, float):
        return "double_param"
    return "string_param"


def decode_infer(response: Any, place: str) -> Outputs:
    """From a ``ModelInferResponse``."""
    outputs = Outputs(model_name=response.model_name, model_version=response.model_version, id=response.id)
    parameters = response.parameters
    if parameters:
        for key, value in parameters.items():
            outputs.parameters[key] = getattr(value, value.WhichOneof("parameter_choice"))
    # One copy of each; every access to a field of bytes makes another.
    raw = list(response.raw_output_contents)
    try:
        for index, each in enumerate(response.outputs):
            name, datatype, shape = each.name, each.datatype, tuple(each.shape)
            if index < len(raw):
                outputs[name] = from_binary(name, datatype, shape, raw[index])
            elif datatype in CONTENTS_FIELD:
                outputs[name] = from_contents(name, datatype, shape, each.contents)
            else:
                raise InvalidArgument(f"output '{name}' has no contents")
    except (ValueError, IsochroneError) as error:
        raise unreadable(place, error) from None
    return outputs


def decode_metadata(response: Any) -> ModelMetadata:
    """From a ``ModelMetadataResponse``."""
    return ModelMetadata(
        response.name,
        tuple(response.versions),
        response.platform,
        _tensors(response.inputs),
        _tensors(response.outputs),
    )


def _tensors(given: Any) -> tuple[TensorMetadata, ...]:
    return tuple(TensorMetadata(each.name, each.datatype, tuple(each.shape)) for each in given)
