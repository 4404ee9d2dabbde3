"""A receiver of OTLP traces on real sockets, over gRPC and HTTP: keeps the spans, or never answers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services

_WAIT_SECONDS = 60.0


class Receiver:
    """The spans that came, in the order in which they came. ``url``: what an exporter sends to."""

    def __init__(self, url: str, protocol: str, hangs: bool) -> None:
        self.url = url
        self.protocol = protocol
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        #: Exports that arrived, also those that are not answered.
        self.calls = 0
        self._hangs = hangs
        self._closing = threading.Event()

    @property
    def flags(self) -> tuple[str, ...]:
        """For a worker that exports to it at once."""
        settings = ("mode=opentelemetry", f"opentelemetry,url={self.url}", f"opentelemetry,protocol={self.protocol}")
        return tuple(f"--trace-config={each}" for each in (*settings, "opentelemetry,bsp_schedule_delay=50"))

    def take(self, message: Any) -> None:
        self.calls += 1
        if self._hangs:
            self._closing.wait()
            return
        for resource in message.resource_spans:
            self.resources.append({each.key: each.value.string_value for each in resource.resource.attributes})
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def close(self) -> None:
        self._closing.set()

    def wait_for(self, what: Callable[[list[Any]], Any]) -> Any:
        """What ``what`` finds in the spans, once that is something."""
        ends = time.monotonic() + _WAIT_SECONDS
        while True:
            found = what(list(self.spans))
            if found:
                return found
            assert time.monotonic() < ends, [(each.name, attributes(each)) for each in self.spans]
            time.sleep(0.02)

    def wait_for_call(self) -> None:
        ends = time.monotonic() + _WAIT_SECONDS
        while not self.calls:
            assert time.monotonic() < ends
            time.sleep(0.02)

    def request(self, model: str, **wanted: Any) -> Any:
        """The span of a request to a model with these attributes; dots are written as two underscores."""
        names = {name.replace("__", "."): value for name, value in wanted.items()}

        def find(spans: list[Any]) -> Any:
            for span in spans:
                if span.name == f"infer {model}" and names.items() <= attributes(span).items():
                    return span
            return None

        return self.wait_for(find)

    def children(self, parent: Any) -> dict[str, Any]:
        """Children of a span that came with it, by name."""
        return {span.name: span for span in self.spans if span.parent_span_id == parent.span_id}


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


@contextlib.contextmanager
def receiving(protocol: str, *, hangs: bool = False) -> Iterator[Receiver]:
    with (_grpc if protocol == "grpc" else _http)(hangs) as receiver:
        try:
            yield receiver
        finally:
            receiver.close()


@contextlib.contextmanager
def _grpc(hangs: bool) -> Iterator[Receiver]:
    class Service(services.TraceServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:
            receiver.take(request)
            return messages.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4))
    services.add_TraceServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    receiver = Receiver(f"http://127.0.0.1:{port}", "grpc", hangs)
    server.start()
    try:
        yield receiver
    finally:
        server.stop(0).wait()


@contextlib.contextmanager
def _http(hangs: bool) -> Iterator[Receiver]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.take(messages.ExportTraceServiceRequest.FromString(body))
            with contextlib.suppress(OSError):
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}/v1/traces", "http", hangs)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
