"""Requests and answers of the protocol over HTTP, with binary tensors. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from isochrone.client.answers import ModelMetadata, Outputs, TensorMetadata
from isochrone.client.calls import InferCall
from isochrone.client.failures import unreadable
from isochrone.errors import InvalidArgument, IsochroneError
from isochrone.protocol.tensors.binary import from_binary
from isochrone.protocol.tensors.json_values import from_json

_JSON_LENGTH = "inference-header-content-length"
#: Of all outputs, or of each one that is named.
_BINARY = {"binary_data": True}
_NO_PARAMETERS: dict[str, Any] = {}
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

Body = list[bytes | memoryview]


def model_path(model: str, version: str, end: str = "") -> str:
    versions = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(model, safe='')}{versions}{end}"


def encode_infer(call: InferCall) -> tuple[Body, int]:
    """The parts of the body, and the length of the first one, the JSON."""
    request: dict[str, Any] = {}
    if call.id:
        request["id"] = call.id
    request["inputs"] = [
        {
            "name": each.name,
            "shape": each.shape,
            "datatype": each.datatype,
            "parameters": {"binary_data_size": len(each.data)},
        }
        for each in call.inputs
    ]
    if call.outputs:
        request["outputs"] = [{"name": name, "parameters": _BINARY} for name in call.outputs]
        request["parameters"] = call.parameters
    else:
        request["parameters"] = {"binary_data_output": True, **call.parameters}
    try:
        head = _encode(request)
    except (TypeError, msgspec.MsgspecError) as error:  # the id, or the name of an output
        raise InvalidArgument(f"the request cannot be encoded: {error}") from None
    return [head, *(each.data for each in call.inputs)], len(head)


def infer_headers(call: InferCall, json_length: int, seconds: float | None) -> dict[str, str]:
    headers = {**call.headers, _JSON_LENGTH: str(json_length)}
    if seconds is not None:
        headers["x-request-timeout-ms"] = f"{seconds * 1000:.3f}"
    return headers


def decode_infer(headers: Mapping[str, str], body: bytes | memoryview, place: str) -> Outputs:
    view = memoryview(body)
    try:
        position = int(headers.get(_JSON_LENGTH, len(view)))
        message = _decode(view[:position])
        outputs = Outputs(
            model_name=message.get("model_name", ""),
            model_version=str(message.get("model_version", "")),
            id=message.get("id", ""),
            parameters=message.get("parameters"),
        )
        for each in message.get("outputs", ()):
            name, size = each["name"], each.get("parameters", _NO_PARAMETERS).get("binary_data_size")
            if size is None:
                outputs[name] = from_json(name, each["datatype"], each["shape"], each["data"])
            else:
                data = view[position : position + size]
                outputs[name] = from_binary(name, each["datatype"], each["shape"], data)
                position += size
        outputs.server_timing = headers.get("server-timing", "")
        return outputs
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError, IsochroneError) as error:
        raise unreadable(place, error) from None


def decode_metadata(body: bytes | memoryview, place: str) -> ModelMetadata:
    try:
        message = _decode(body)
        return ModelMetadata(
            message["name"],
            tuple(str(version) for version in message.get("versions", ())),
            message.get("platform", ""),
            _tensors(message.get("inputs", ())),
            _tensors(message.get("outputs", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.MsgspecError) as error:
        raise unreadable(place, error) from None


def _tensors(given: Any) -> tuple[TensorMetadata, ...]:
    return tuple(
        TensorMetadata(each["name"], each["datatype"], tuple(int(size) for size in each["shape"])) for each in given
    )
