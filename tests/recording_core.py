"""A second stage in the test's hands, over HTTP and over gRPC: records what it is sent, and answers ``y = x``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc


class RecordingCore:
    def __init__(self) -> None:
        self.address = ""
        #: Headers or metadata of each request, names in lower case; and the bodies of those over HTTP.
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        #: HTTP: how an answer is sent, its headers and the encoded body.
        self.encode: Any = lambda body: ({}, body)
        #: HTTP: how a body is read.
        self.decode: Any = lambda headers, body: body


@contextmanager
def http_core() -> Iterator[RecordingCore]:
    core = RecordingCore()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            core.headers.append(headers)
            core.bodies.append(body)
            plain = core.decode(headers, body)
            length = int(headers["inference-header-content-length"])
            asked, data = json.loads(plain[:length]), plain[length:]
            output = {"name": "y", "datatype": "FP32", "shape": asked["inputs"][0]["shape"]}
            output["parameters"] = {"binary_data_size": len(data)}
            head = json.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}).encode()
            more, sent = core.encode(head + data)
            self.send_response(200)
            for name, value in (("inference-header-content-length", str(len(head))), *more.items()):
                self.send_header(name, value)
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        core.address = f"127.0.0.1:{server.server_address[1]}"
        try:
            yield core
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def grpc_core() -> Iterator[RecordingCore]:
    core = RecordingCore()

    class Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
        def ModelInfer(self, request: Any, context: Any) -> Any:
            core.headers.append(dict(context.invocation_metadata()))
            answer = service_pb2.ModelInferResponse(model_name="m", model_version="1")
            answer.outputs.add(name="y", datatype="FP32", shape=request.inputs[0].shape)
            answer.raw_output_contents.append(request.raw_input_contents[0])
            return answer

    server = grpc.server(ThreadPoolExecutor(2))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Servicer(), server)
    core.address = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield core
    finally:
        server.stop(None).wait()
