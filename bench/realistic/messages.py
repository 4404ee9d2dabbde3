"""Requests as bytes, with a place where each copy gets an id of its own: made once, sent a million times.

An id has a fixed number of digits, so that nothing but those digits changes from one copy to the next.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from tritonclient.grpc import service_pb2

from bench.worker.models import INPUT, OUTPUT
from bench.worker.payloads import GRPC_INFER_PATH

ID_DIGITS = 12
_NO_ID = "0" * ID_DIGITS
STREAM_PATH = GRPC_INFER_PATH.replace("ModelInfer", "ModelStreamInfer")
#: Sequence ids whose varint has five bytes.
FIRST_SEQUENCE = 1 << 28


@dataclass(frozen=True)
class Message:
    """One request; ``id_at`` is where its id begins, -1 if it has none."""

    data: bytes
    id_at: int = -1

    @classmethod
    def of(cls, data: bytes) -> "Message":
        return cls(data, data.find(_NO_ID.encode()))


def grpc_message(
    model: str,
    shape: Sequence[int],
    tensor: bytes,
    *,
    with_id: bool = False,
    sequence: tuple[int, bool, bool] | None = None,
) -> Message:
    """A ModelInferRequest in its gRPC frame; ``sequence``: its id, and whether the request starts and ends it."""
    request = service_pb2.ModelInferRequest(model_name=model, id=_NO_ID if with_id else "")
    if sequence is not None:
        number, starts, ends = sequence
        request.parameters["sequence_id"].int64_param = FIRST_SEQUENCE + number
        request.parameters["sequence_start"].bool_param = starts
        request.parameters["sequence_end"].bool_param = ends
    request.inputs.add(name=INPUT, datatype="FP32", shape=shape)
    request.outputs.add(name=OUTPUT)
    request.raw_input_contents.append(tensor)
    payload = request.SerializeToString()
    return Message.of(b"\0" + len(payload).to_bytes(4, "big") + payload)


def http_message(
    model: str, shape: Sequence[int], tensor: Sequence[float] | bytes, *, with_id: bool = False
) -> Message:
    """A whole POST; a tensor of numbers is sent as JSON, one of bytes as binary data."""
    header: dict[str, object] = {"id": _NO_ID} if with_id else {}
    described: dict[str, object] = {"name": INPUT, "shape": list(shape), "datatype": "FP32"}
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: bench", "Content-Type: application/octet-stream"]
    if isinstance(tensor, bytes):
        described["parameters"] = {"binary_data_size": len(tensor)}
        header |= {"inputs": [described], "outputs": [{"name": OUTPUT, "parameters": {"binary_data": True}}]}
        text = json.dumps(header).encode()
        lines.append(f"Inference-Header-Content-Length: {len(text)}")
        body = text + tensor
    else:
        described["data"] = list(tensor)
        header |= {"inputs": [described]}
        body = json.dumps(header).encode()
        lines[2] = "Content-Type: application/json"
    lines.append(f"Content-Length: {len(body)}")
    return Message.of("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
