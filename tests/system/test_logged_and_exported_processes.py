"""A real worker and a real gateway with an access log and metrics over OTLP, and a real receiver."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as services
from tritonclient.http import InferenceServerClient, InferenceServerException, InferInput

from gateway_process import start_gateway
from sample_models import write_models
from server_process import start_server

pytestmark = pytest.mark.long
SECONDS = 60.0
HOSTILE = 'evil\n\x1b[31m{"status":200}'
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


class Received:
    """The newest figures of each process."""

    def __init__(self) -> None:
        self.metrics: dict[str, dict[str, Any]] = {}

    def take(self, message: Any) -> None:
        for resource in message.resource_metrics:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            found = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
            self.metrics[names["service.instance.id"]] = found


@contextlib.contextmanager
def receiving() -> Iterator[tuple[Received, str, str]]:
    """Over HTTP and gRPC: their URLs."""
    received = Received()

    class Service(services.MetricsServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:
            received.take(request)
            return messages.ExportMetricsServiceResponse()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.take(messages.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Says nothing."""

    server = grpc.server(ThreadPoolExecutor(2))
    services.add_MetricsServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        yield received, f"http://127.0.0.1:{web.server_port}", f"grpc://127.0.0.1:{port}"
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
        server.stop(0).wait()


def until(what: Callable[[], Any]) -> Any:
    ends = time.monotonic() + SECONDS
    while not (found := what()):
        assert time.monotonic() < ends
        time.sleep(0.05)
    return found


def lines(path: Path, identity: str) -> list[dict[str, Any]]:
    """Those of one request."""
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [line for line in found if line.get("request_id") == identity]


def call(url: str, model: str, identity: str, **headers: str) -> None:
    with contextlib.closing(InferenceServerClient(url)) as client:
        inputs = []
        for each in client.get_model_metadata("add_sub")["inputs"]:
            tensor = InferInput(each["name"], [1, *each["shape"][1:]], each["datatype"])
            tensor.set_data_from_numpy(_zeros(tensor))
            inputs.append(tensor)
        client.infer(model, inputs, request_id=identity, headers=headers)


def _zeros(tensor: InferInput) -> Any:
    import numpy as np
    from tritonclient.utils import triton_to_np_dtype

    return np.zeros([abs(size) for size in tensor.shape()], triton_to_np_dtype(tensor.datatype()))


def test_lines_and_figures_of_both_processes(tmp_path: Path) -> None:
    models = write_models(tmp_path / "models", "add_sub")
    worker_log, gateway_log = tmp_path / "worker.access", tmp_path / "gateway.access"
    with (
        receiving() as (received, over_http, over_grpc),
        start_server(
            models,
            *("--access-log", "1", "--access-log-file", str(worker_log), "--name", "w"),
            *("--metrics-otlp", over_http, "--metrics-otlp-seconds", "0.2"),
        ) as worker,
        start_gateway(
            [worker],
            *("--access-log", "1", "--access-log-file", str(gateway_log), "--name", "g"),
            *("--metrics-otlp", over_grpc, "--metrics-otlp-seconds", "0.2"),
            log_path=tmp_path / "gateway.log",
        ) as gateway,
    ):
        parent = f"00-{TRACE}-00f067aa0ba902b7-00"
        call(gateway.http_url, "add_sub", HOSTILE, traceparent=parent)
        (there,) = until(lambda: lines(gateway_log, HOSTILE))
        (here,) = until(lambda: lines(worker_log, HOSTILE))
        for line in (there, here):
            assert (line["request_id"], line["model"], line["version"]) == (HOSTILE, "add_sub", "1")
            assert (line["trace_id"], line["outcome"]) == (TRACE, "answered")
            assert line["latency_ms"] > 0
        assert (there["status"], there["attempts"], there["gateway"]) == (200, 1, "g")
        assert there["worker"] == f"127.0.0.1:{worker.http_port}"
        assert (here["batch_size"], here["worker"]) == (1, "w")
        assert {"compute_ms", "queue_ms"} <= set(here)
        # Rotated away: by itself, and at once with SIGHUP.
        os.rename(gateway_log, tmp_path / "gateway.access.1")
        gateway.process.send_signal(signal.SIGHUP)
        with pytest.raises(InferenceServerException):
            call(gateway.http_url, "nowhere", "lost")
        (failed,) = until(lambda: lines(gateway_log, "lost"))
        assert (failed["outcome"], failed["status"], failed["request_id"]) == ("failed", 404, "lost")
        seconds = until(lambda: received.metrics.get("w", {}).get("isochrone_request_duration_seconds"))
        whole = [
            point
            for point in seconds.histogram.data_points
            if {each.key: each.value.string_value for each in point.attributes}["stage"] == "request"
        ]
        assert sum(point.count for point in whole) == 1
        assert len(whole[0].bucket_counts) == len(whole[0].explicit_bounds) + 1

        def taken() -> float:
            found = received.metrics.get("g", {}).get("isochrone_gateway_requests_total")
            return sum(point.as_double for point in found.sum.data_points) if found is not None else 0

        until(lambda: taken() >= 1)
    assert "\x1b" not in gateway_log.with_name("gateway.access.1").read_text()
