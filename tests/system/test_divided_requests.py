"""Divisions end to end: a real gateway in front of servers that report figures, over HTTP, gRPC and gRPC streams."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway_process import GatewayProcess, StartGateway
from hostile_client import ECHO_BYTES, ask
from hostile_upstreams import Call, Connection, grpc_upstream, http_upstream
from isochrone.protocol.headers.divisions import DIVISION_HEADER, DIVISION_KINDS, division_metric
from isochrone.protocol.headers.orca import orca_binary, orca_text
from watching import metrics

OK = b'{"model_name":"echo","outputs":[{"name":"y","datatype":"FP32","shape":[2],"data":[1.5,-2.0]}]}'
#: No probes: what is left stays left during a test.
RULES = "models: {echo: {division: {order: [edge, split, core], margin_ms: 1, probe_every_ms: 3600000}}}"
NAME = DIVISION_HEADER.decode()
#: Times are so long that the speed of the machine does not matter.
HOUR_MS = "3600000"


@dataclass
class DividedServer:
    """One server of a divided model: answers at once, and says how long each division would take."""

    #: Of edge, split and core, in seconds.
    figures: tuple[float, ...] = ()
    #: The divisions that requests came with.
    seen: list[str | None] = field(default_factory=list)

    @property
    def report(self) -> dict[str, float]:
        figures = zip(DIVISION_KINDS, self.figures, strict=False)
        return {"named_metrics.in_flight": 1.0, **{division_metric(kind): each * 1e6 for kind, each in figures}}

    def answer_http(self, connection: Connection) -> None:
        named = connection.header(DIVISION_HEADER)
        self.seen.append(named.decode() if named is not None else None)
        connection.answer(
            200, OK, b"content-type: application/json", b"endpoint-load-metrics: " + orca_text(self.report)
        )

    def answer_grpc(self, call: Call) -> None:
        named = call.headers.get(DIVISION_HEADER)
        self.seen.append(named.decode() if named is not None else None)
        report = b64encode(orca_binary(self.report)).rstrip(b"=").decode()
        call.headers_back((":status", "200"), ("content-type", "application/grpc"))
        if call.headers[b":path"].endswith(b"ModelStreamInfer"):
            answer = service_pb2.ModelStreamInferResponse(
                infer_response=service_pb2.ModelInferResponse(model_name="echo")
            ).SerializeToString()
        else:
            answer = service_pb2.ModelInferResponse(model_name="echo").SerializeToString()
        call.data(b"\0" + len(answer).to_bytes(4, "big") + answer)
        call.headers_back(("grpc-status", "0"), ("endpoint-load-metrics-bin", report), end=True)


@dataclass
class Divided:
    """A gateway with one server of a divided model."""

    gateway: GatewayProcess
    server: DividedServer

    def ask(self, **headers: str) -> Any:
        """How a request ran, over HTTP. One that comes when the figures are too old brings new ones."""
        named = {"x-isochrone-explain": "1", **{name.replace("_", "-"): value for name, value in headers.items()}}
        for _ in range(100):
            answer = ask(self.gateway.http_port, "POST", "/v2/models/echo/infer", ECHO_BYTES, named)
            assert answer.status == 200, answer
            found = json.loads(answer.headers["x-isochrone-placement"])["division"]
            if found["chosen"] is not None:
                break
        return found

    def counted(self) -> dict[str, float]:
        return {
            sample.labels["division"]: sample.value
            for family in metrics(self.gateway)
            for sample in family.samples
            if sample.name == "isochrone_gateway_division_requests_total"
        }


@pytest.fixture
def divided(gateway_factory: StartGateway, tmp_path: Path) -> Iterator[Divided]:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    server = DividedServer()
    with (
        http_upstream(server.answer_http) as http,
        grpc_upstream(server.answer_grpc) as grpc_port,
        gateway_factory([f"127.0.0.1:{http},grpc={grpc_port}"], "--rules", str(rules)) as gateway,
    ):
        gateway.wait_workers(1)
        yield Divided(gateway, server)


def test_a_division_for_each_request(divided: Divided) -> None:
    server = divided.server
    server.figures = (60.0, 5.0, 7200.0)
    found = divided.ask(x_request_timeout_ms=HOUR_MS)
    assert server.seen[0] is None, "nothing was known of the first"
    assert (found["chosen"], found["expected_ms"]) == ("edge", {"edge": 60e3, "split": 5e3, "core": 7200e3})
    assert found["time_left_ms"] <= float(HOUR_MS)
    assert divided.ask(x_request_timeout_ms="30000")["chosen"] == "split"
    assert divided.ask(x_isochrone_division="cut-3")["chosen"] == "cut-3"
    assert [each for each in server.seen if each] == ["prefer edge", "prefer split", "cut-3"]
    assert divided.counted() == {"edge": 1, "split": 1, "core": 0}

    message = service_pb2.ModelInferRequest(model_name="echo")
    explain = ("x-isochrone-explain", "1")
    with grpc.insecure_channel(divided.gateway.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(100):
            server.seen.clear()
            _, call = stub.ModelInfer.with_call(message, timeout=30, metadata=(explain,))
            placed = json.loads(dict(call.trailing_metadata())["x-isochrone-placement"])["division"]
            if placed["chosen"]:
                break
        assert (placed["chosen"], server.seen) == ("split", ["prefer split"])
        stub.ModelInfer(message, timeout=30, metadata=((NAME, "core"),))
        assert server.seen[-1] == "core"

        message.parameters["timeout"].int64_param = 30_000_000
        for _ in range(100):
            server.seen.clear()
            divided.ask(x_request_timeout_ms="30000")
            (answer,) = stub.ModelStreamInfer(iter([message]), timeout=3600)
            assert answer.infer_response.model_name == "echo"
            if server.seen[-1] is not None:
                break
        assert server.seen[-1] == "prefer split", "by the time of its first message"
