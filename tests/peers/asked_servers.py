"""The same call to any server over HTTP, gRPC and streams, and its answer in a form that can be compared.

Outputs by name with type, shape and bytes; parameters; of an error its code and text. What differs between two runs of
one server (the order of outputs, which response of a stream is called the last) is left out.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from ensemble_calls import Call

_NAMES = {"float32": "FP32", "int32": "INT32", "int64": "INT64", "object": "BYTES"}
_FINAL = "triton_final_response"


@dataclass(frozen=True)
class Answer:
    """``code``: of HTTP or gRPC; ``error``: its text, "" where there is none."""

    code: str
    outputs: dict[str, Any]
    parameters: dict[str, Any]
    identity: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Server:
    """host:port of both protocols."""

    name: str
    http: str
    grpc: str

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.http}{path}", data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def raw(self, path: str, body: bytes, header_length: int) -> tuple[int, Mapping[str, str], bytes]:
        """A request with binary data behind its header; status, headers and body."""
        headers = {"Inference-Header-Content-Length": str(header_length)}
        request = urllib.request.Request(f"http://{self.http}{path}", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers, answer.read()

    def over_http(self, call: Call) -> Answer:
        status, text = self.request("POST", f"/v2/models/{call.model}/infer", _json(call))
        answer = json.loads(text)
        if status != 200:
            return Answer(str(status), {}, {}, error=answer["error"])
        outputs = {
            each["name"]: (each["datatype"], tuple(each["shape"]), tuple(each["data"])) for each in answer["outputs"]
        }
        identity = (answer["model_name"], answer["model_version"], answer.get("id", ""))
        return Answer("200", outputs, answer.get("parameters", {}), identity)

    def over_grpc(self, call: Call) -> Answer:
        with grpc.insecure_channel(self.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                return _read("OK", stub.ModelInfer(_message(call), timeout=60))
            except grpc.RpcError as error:
                return Answer(error.code().name, {}, {}, error=error.details())

    def streamed(self, call: Call, empty_final: bool) -> list[Answer]:
        """The responses of one ModelStreamInfer; without the empty one at the end, if it was asked for."""
        message = _message(call)
        if empty_final:
            message.parameters["triton_enable_empty_final_response"].bool_param = True
        with grpc.insecure_channel(self.grpc) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            found, last = [], False
            for response in stub.ModelStreamInfer(iter([message]), timeout=60):
                inner = response.infer_response
                last = inner.parameters[_FINAL].bool_param if _FINAL in inner.parameters else False
                if response.error_message:
                    last = True
                    found.append(Answer("error", {}, {}, error=response.error_message))
                elif inner.outputs:
                    found.append(_read("OK", inner))
        if empty_final:
            assert last, f"{self.name} does not say when it has answered for the last time"
        return found

    def generated(self, call: Call) -> tuple[int, list[Any]]:
        """Status and events of generate_stream."""
        flat = {name: array.reshape(-1).tolist() for name, array in call.inputs.items()}
        body = {name: values[0] if len(values) == 1 else values for name, values in flat.items()}
        status, text = self.request("POST", f"/v2/models/{call.model}/generate_stream", body)
        if status != 200:
            return status, []
        return status, [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line]

    def ready(self) -> set[tuple[str, str]]:
        """(model, version) of everything that is served."""
        _, text = self.request("POST", "/v2/repository/index", {})
        return {(row["name"], row["version"]) for row in json.loads(text) if row.get("state") == "READY"}

    def runs(self, model: str) -> int:
        """Requests that a model has answered or failed."""
        _, text = self.request("GET", f"/v2/models/{model}/stats")
        counts = json.loads(text)["model_stats"][0]["inference_stats"]
        return int(counts["success"]["count"]) + int(counts["fail"]["count"])


def _json(call: Call) -> dict[str, Any]:
    body: dict[str, Any] = {"inputs": [], "parameters": call.parameters, "id": call.id}
    for name, array in call.inputs.items():
        data = [each.decode() if isinstance(each, bytes) else each for each in array.reshape(-1).tolist()]
        datatype = _NAMES[array.dtype.name]
        body["inputs"].append({"name": name, "shape": list(array.shape), "datatype": datatype, "data": data})
    if call.outputs:
        body["outputs"] = [{"name": name} for name in call.outputs]
    return {key: value for key, value in body.items() if value}


def _message(call: Call) -> Any:
    message = service_pb2.ModelInferRequest(model_name=call.model, id=call.id)
    for name, array in call.inputs.items():
        message.inputs.add(name=name, datatype=_NAMES[array.dtype.name], shape=array.shape)
        if array.dtype == np.object_:
            raw = b"".join(len(each).to_bytes(4, "little") + each for each in array.reshape(-1))
        else:
            raw = array.tobytes()
        message.raw_input_contents.append(raw)
    for name in call.outputs:
        message.outputs.add(name=name)
    for key, value in call.parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(message.parameters[key], field, value)
    return message


def _read(code: str, message: Any) -> Answer:
    outputs = {
        output.name: (output.datatype, tuple(output.shape), raw)
        for output, raw in zip(message.outputs, message.raw_output_contents, strict=True)
    }
    parameters = {
        key: getattr(value, value.WhichOneof("parameter_choice"))
        for key, value in message.parameters.items()
        if key != _FINAL
    }
    return Answer(code, outputs, parameters, (message.model_name, message.model_version, message.id))
