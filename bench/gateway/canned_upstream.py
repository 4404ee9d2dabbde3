"""An Open Inference Protocol server that answers every infer with the same bytes: the upstream of a measured hop.

`python -m bench.gateway.canned_upstream PORT` serves HTTP/1.1 and gRPC on one port through our own wire layer, without
decoding anything. It serves one model, `identity`, and returns the tensor that the bench sends, so that a stock client
can check the answer. It sends load reports on request, as our worker does, so a gateway that reads them pays for that.
It must do no work per request beyond the answer.
"""

import asyncio
import base64
import json
import sys
from itertools import cycle

import uvloop
from tritonclient.grpc import service_pb2

from bench.worker.models import INPUT, OUTPUT
from bench.worker.scenarios import IDENTITY_64
from isochrone.errors import NotFound, Unsupported
from isochrone.protocol.grpc.calls import OK_TRAILERS, RESPONSE_HEADERS, GrpcErrorRoute, frame_message
from isochrone.protocol.headers import orca
from isochrone.protocol.rest.answers import ErrorRoute
from isochrone.wire.exchange import Exchange, Head, Headers, Route
from isochrone.wire.http2.hpack import Encoder
from isochrone.wire.http2.server_stream import ServerStream
from isochrone.wire.listening.listener import Listener

MODEL = IDENTITY_64.model
_SERVICE = "/inference.GRPCInferenceService/"
_JSON: Headers = ((b"content-type", b"application/json"),)
#: More than the number of heads that our wire layer memoises.
_REPORTS = 4099
_encode = Encoder().encode


class LoadReports:
    """Load reports in the form of our worker's, generated once and used in rotation.

    Real reports differ from answer to answer. There are so many that memoising them gains nothing.
    """

    def __init__(self) -> None:
        reports = [_report(number) for number in range(_REPORTS)]
        self.text = cycle([(orca.ORCA_HEADER, orca.orca_text(report)) for report in reports])
        self.json = cycle([(orca.ORCA_HEADER, orca.orca_json(report)) for report in reports])
        self.trailers = cycle([_trailers(report) for report in reports])


def _report(number: int) -> dict[str, float]:
    return {
        "mem_utilization": 0.25,
        "named_metrics.free_memory_bytes": 8e9,
        "named_metrics.queue_depth": float(number % 3),
        "named_metrics.in_flight": float(number % 7),
        "named_metrics.estimated_wait_us": number / 8,
        "named_metrics.draining": 0.0,
        "named_metrics.estimated_run_us": 20.0,
    }


def _trailers(report: dict[str, float]) -> bytes:
    value = base64.b64encode(orca.orca_binary(report)).rstrip(b"=")
    return _encode([(b"grpc-status", b"0"), (orca.ORCA_BINARY_HEADER, value)])


class HttpInfer(Route):
    """The constant answer over HTTP, with a load report if the head asks for one."""

    def __init__(self, load: LoadReports, load_format: bytes | None) -> None:
        tensor = IDENTITY_64.tensor().tobytes()
        output = {
            "name": OUTPUT,
            "datatype": "FP32",
            "shape": list(IDENTITY_64.shape),
            "parameters": {"binary_data_size": len(tensor)},
        }
        document = {"model_name": MODEL, "model_version": "1", "outputs": [output]}
        header = json.dumps(document, separators=(",", ":")).encode()
        self._body = header + tensor
        self._headers: Headers = (
            (b"content-type", b"application/octet-stream"),
            (b"inference-header-content-length", str(len(header)).encode()),
        )
        self._words = None
        if load_format is not None:
            self._words = load.text if load_format == b"text" else load.json

    def handle(self, exchange: Exchange) -> None:
        headers = self._headers
        if self._words is not None:
            headers = (*headers, next(self._words))
        exchange.respond(200, headers, [self._body])


class HttpConstant(Route):
    """A control answer."""

    def __init__(self, document: object) -> None:
        self._body = json.dumps(document).encode() if document is not None else b""

    def handle(self, exchange: Exchange) -> None:
        exchange.respond(200, _JSON if self._body else (), [self._body])


class GrpcConstant(Route):
    """A constant message, with a load report in the trailers if the call asks for one."""

    def __init__(self, message: bytes, load: LoadReports, wants_load: bool) -> None:
        self._framed = frame_message(message)
        self._words = load.trailers if wants_load else None

    def handle(self, exchange: Exchange) -> None:
        trailers = OK_TRAILERS if self._words is None else next(self._words)
        if isinstance(exchange, ServerStream):
            exchange.respond_unary(RESPONSE_HEADERS, self._framed, len(self._framed), trailers)


def _http_documents() -> dict[tuple[bytes, bytes], object]:
    tensor = {"datatype": "FP32", "shape": [-1]}
    model = f"/v2/models/{MODEL}".encode()
    metadata = {
        "name": MODEL,
        "versions": ["1"],
        "platform": "canned",
        "inputs": [{"name": INPUT, **tensor}],
        "outputs": [{"name": OUTPUT, **tensor}],
    }
    documents: dict[tuple[bytes, bytes], object] = {
        (b"GET", b"/v2"): {"name": "canned", "version": "1", "extensions": ["model_repository", "binary_tensor_data"]},
        (b"GET", b"/v2/health/live"): None,
        (b"GET", b"/v2/health/ready"): None,
        (b"POST", b"/v2/repository/index"): [{"name": MODEL, "version": "1", "state": "READY", "reason": ""}],
    }
    for path in (model, model + b"/versions/1"):
        documents[b"GET", path] = metadata
        documents[b"GET", path + b"/ready"] = None
    return documents


def _grpc_messages() -> dict[bytes, bytes]:
    infer = service_pb2.ModelInferResponse(model_name=MODEL, model_version="1")
    infer.outputs.add(name=OUTPUT, datatype="FP32", shape=IDENTITY_64.shape)
    infer.raw_output_contents.append(IDENTITY_64.tensor().tobytes())
    index = service_pb2.RepositoryIndexResponse()
    index.models.add(name=MODEL, version="1", state="READY")
    metadata = service_pb2.ModelMetadataResponse(name=MODEL, versions=["1"], platform="canned")
    metadata.inputs.add(name=INPUT, datatype="FP32", shape=[-1])
    metadata.outputs.add(name=OUTPUT, datatype="FP32", shape=[-1])
    messages = {
        "ModelInfer": infer,
        "ServerLive": service_pb2.ServerLiveResponse(live=True),
        "ServerReady": service_pb2.ServerReadyResponse(ready=True),
        "ModelReady": service_pb2.ModelReadyResponse(ready=True),
        "ServerMetadata": service_pb2.ServerMetadataResponse(name="canned", version="1"),
        "ModelMetadata": metadata,
        "RepositoryIndex": index,
    }
    return {f"{_SERVICE}{method}".encode(): message.SerializeToString() for method, message in messages.items()}


class CannedApplication:
    """Chooses the constant answer by the head."""

    def __init__(self) -> None:
        self._load = LoadReports()
        self._documents = _http_documents()
        self._messages = _grpc_messages()
        self._infer = {f"/v2/models/{MODEL}{version}/infer".encode() for version in ("", "/versions/1")}

    def route(self, head: Head) -> Route:
        load_format = head.get(orca.ORCA_FORMAT_HEADER)
        if (head.get(b"content-type") or b"").startswith(b"application/grpc"):
            message = self._messages.get(head.target)
            if message is None:
                return GrpcErrorRoute(Unsupported(f"the canned upstream knows no {head.target.decode()}"))
            return GrpcConstant(message, self._load, load_format is not None)
        path = head.target.partition(b"?")[0]
        if head.method == b"POST" and path in self._infer:
            return HttpInfer(self._load, load_format)
        if (head.method, path) in self._documents:
            return HttpConstant(self._documents[head.method, path])
        return ErrorRoute(NotFound(f"the canned upstream knows no {head.method.decode()} {path.decode()}"))


async def serve(port: int) -> None:
    """Listen until the process ends."""
    listener = Listener(CannedApplication())
    await listener.start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
