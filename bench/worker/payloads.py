"""Requests as bytes, ready for wrk, h2load or a socket: built once, sent a million times.

Nothing is encoded per request: a load generator that encodes measures itself. No server imports this module.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from tritonclient.grpc import service_pb2

from bench.worker.models import INPUT, OUTPUT

GRPC_INFER_PATH = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class HttpRequest:
    """One POST, as a load generator needs it."""

    path: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def json_request(path: str, document: object) -> HttpRequest:
    """A POST of a JSON document, compact as the JSON libraries of real clients write it."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return HttpRequest(path, body, {"Content-Type": "application/json"})


def http_infer(model: str, shape: Sequence[int], data: bytes) -> HttpRequest:
    """An infer of one float32 tensor, binary both ways, as tritonclient's HTTP client sends it."""
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": INPUT,
                    "shape": list(shape),
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": len(data)},
                }
            ],
            "outputs": [{"name": OUTPUT, "parameters": {"binary_data": True}}],
        },
        separators=(",", ":"),
    ).encode()
    return HttpRequest(
        f"/v2/models/{model}/infer",
        header + data,
        {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(header)),
        },
    )


def http_infer_json(model: str, shape: Sequence[int], values: Sequence[float]) -> HttpRequest:
    """The same infer with its tensor as JSON, for servers that know no binary tensors."""
    tensor = {"name": INPUT, "shape": list(shape), "datatype": "FP32", "data": list(values)}
    return json_request(f"/v2/models/{model}/infer", {"inputs": [tensor]})


def grpc_infer(model: str, shape: Sequence[int], data: bytes) -> bytes:
    """A ModelInferRequest with raw contents in its gRPC frame (flag byte, length), the body h2load sends."""
    request = service_pb2.ModelInferRequest(model_name=model)
    request.inputs.add(name=INPUT, datatype="FP32", shape=shape)
    request.outputs.add(name=OUTPUT)
    request.raw_input_contents.append(data)
    message: bytes = request.SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message


def wrk_script(request: HttpRequest) -> str:
    """The Lua script that makes wrk send this request; bytes are escaped by number, whatever they are."""
    lines = ['wrk.method = "POST"']
    lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in request.headers.items()]
    lines.append('wrk.body = "' + "".join(f"\\{byte:03d}" for byte in request.body) + '"')
    return "\n".join(lines) + "\n"
