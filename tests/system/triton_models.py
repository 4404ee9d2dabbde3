"""A worker whose Triton python models a test writes, loads, calls and unloads one by one; and a look inside it."""

from __future__ import annotations

import json
import textwrap
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from server_process import ServerProcess

_HEAD = """import json
import os
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def respond(*values):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, np.int32))])


def given(request):
    return int(request.inputs()[0].as_numpy()[0])


def call(model, *values, outputs=("OUT",), **more):
    tensor = pb_utils.Tensor("IN", np.array(values, np.int32))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=list(outputs), **more)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.005)


"""
#: The body of a decoupled model that sends without end, and counts in a file what it sent.
FOUNTAIN = """
def initialize(self, args):
    self.folder = args["model_repository"]

def execute(self, requests):
    sender, sent = requests[0].get_response_sender(), 0
    with open(os.path.join(self.folder, "sent"), "wb", 0) as file:
        while not sender.is_cancelled():
            sender.send(respond(sent))
            sent += 1
            file.write(b"x")
    sender.send(flags=FINAL)
"""
_CONFIG = """backend: "python"
input {{ name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }}
output {{ name: "OUT" data_type: TYPE_{output} dims: [ -1 ] }}
"""
_ECHO = """
def execute(self, requests):
    return [respond(*request.inputs()[0].as_numpy()) for request in requests]
"""
#: What a model finds in the process that it runs in.
_INSIDE = """
def execute(self, requests):
    import gc

    gc.collect()
    found = {
        "modules": sorted(name for name in list(sys.modules) if name.startswith("isochrone_model_")),
        # Without the loop's pool, which grows as it is used.
        "threads": sorted(each.name for each in threading.enumerate() if not each.name.startswith("asyncio_")),
        "files": len(os.listdir("/proc/self/fd")),
    }
    text = np.array([json.dumps(found).encode()], np.object_)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", text)]) for _ in requests]
"""


class TritonWorker:
    """A worker in the model control mode ``explicit``, and its repository."""

    def __init__(self, server: ServerProcess, repository: Path) -> None:
        self.server = server
        self.repository = repository

    def write(
        self, name: str, body: str = _ECHO, *, decoupled: bool = False, more: str = "", output: str = "INT32"
    ) -> Path:
        """A model; ``body``: the methods of its class, or a whole source that defines it. Returns its directory."""
        return write_model(self.repository, name, body, decoupled=decoupled, more=more, output=output)

    def serve(self, name: str, body: str = _ECHO, **options: Any) -> Path:
        directory = self.write(name, body, **options)
        status, text = self.load(name)
        assert status == 200, text
        return directory

    def load(self, name: str) -> tuple[int, str]:
        return self.post(f"/v2/repository/models/{name}/load", {})

    def unload(self, name: str) -> tuple[int, str]:
        return self.post(f"/v2/repository/models/{name}/unload", {})

    def infer(self, name: str, *values: int, **parameters: Any) -> tuple[int, Any]:
        """Status, and the values of OUT or the error's text."""
        body: dict[str, Any] = {
            "inputs": [{"name": "IN", "datatype": "INT32", "shape": [len(values)], "data": list(values)}]
        }
        if parameters:
            body["parameters"] = parameters
        status, text = self.post(f"/v2/models/{name}/infer", body)
        answer = json.loads(text)
        return status, answer["outputs"][0]["data"] if status == 200 else answer["error"]

    def stream(self, name: str, *values: int, timeout: float = 60) -> list[Any]:
        """Values of OUT of each response of a decoupled model; an error as its text."""
        with grpc.insecure_channel(self.server.grpc_url) as channel:
            return list(self.responses(channel, name, values, timeout))

    def responses(self, channel: Any, name: str, values: Sequence[int], timeout: float = 60) -> Any:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            iter([message(name, *values)]), timeout=timeout
        )
        for response in call:
            if response.error_message:
                yield response.error_message
            else:
                yield np.frombuffer(response.infer_response.raw_output_contents[0], np.int32).tolist()

    def post(self, path: str, body: Any, timeout: float = 60) -> tuple[int, str]:
        request = urllib.request.Request(
            f"http://{self.server.http_url}{path}", json.dumps(body).encode(), method="POST"
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def is_ready(self, name: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.server.http_url}/v2/models/{name}/ready", timeout=60) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False

    # A look inside.

    def inside(self) -> dict[str, Any]:
        _, (text,) = self.infer("inside", 1)
        return dict(json.loads(text))

    def modules(self, name: str) -> list[str]:
        return [module for module in self.inside()["modules"] if module.startswith(f"isochrone_model_{name}_1_")]

    def threads(self, name: str) -> list[str]:
        return [thread for thread in self.inside()["threads"] if thread.startswith(name)]

    def in_flight(self) -> int:
        """Requests that the worker has not answered, without the one that asks."""
        body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
        headers = {"endpoint-load-metrics-format": "json"}
        request = urllib.request.Request(f"http://{self.server.http_url}/v2/models/good/infer", body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            report = json.loads(answer.headers["endpoint-load-metrics"].removeprefix("JSON "))
        return int(report["named_metrics"]["in_flight"])

    def is_fine(self) -> bool:
        """Others are served."""
        return self.infer("good", 4, 5) == (200, [4, 5])

    def logged(self, text: str) -> list[dict[str, Any]]:
        return [event for event in self.server.log_events() if text in json.dumps(event)]


def message(name: str, *values: int) -> Any:
    request = service_pb2.ModelInferRequest(model_name=name)
    request.inputs.add(name="IN", datatype="INT32", shape=[len(values)])
    request.raw_input_contents.append(np.array(values, np.int32).tobytes())
    return request


def write_model(
    repository: Path, name: str, body: str, *, decoupled: bool = False, more: str = "", output: str = "INT32"
) -> Path:
    directory = repository / name
    (directory / "1").mkdir(parents=True, exist_ok=True)
    source = textwrap.dedent(body)
    if "class TritonPythonModel" not in source:
        source = "class TritonPythonModel:\n" + textwrap.indent(source, "    ")
    (directory / "1" / "model.py").write_text(_HEAD + source)
    policy = "model_transaction_policy { decoupled: true }\n" if decoupled else ""
    config = f'name: "{name}"\n' + _CONFIG.format(output=output) + policy + more + "\n"
    (directory / "config.pbtxt").write_text(config)
    return directory


def write_basics(repository: Path) -> Path:
    """The models that every test of a worker needs: one that is fine, and one that looks inside."""
    write_model(repository, "good", _ECHO)
    write_model(repository, "inside", _INSIDE, output="STRING")
    return repository


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
