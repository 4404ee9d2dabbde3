"""Deadlines through a gateway: passed on, shrunk by the time spent, and kept when a worker does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import pytest
from stock_clients import StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway_process import Fleet, GatewayProcess, StartGateway
from hostile_client import ECHO_BYTES, ask, connected, message
from hostile_upstreams import Call, Connection, grpc_upstream, http_upstream
from watching import wait_for

OK = b'{"model_name":"echo","outputs":[]}'
_UNITS = {b"n": 1e-9, b"u": 1e-6, b"m": 1e-3, b"S": 1.0}


class Listening:
    """A worker that notes what it is told, and answers at once or never."""

    def __init__(self) -> None:
        #: Seconds it was given, by request; None: no deadline.
        self.http: list[float | None] = []
        self.grpc: list[float | None] = []
        self.answers = True
        #: Requests whose caller has gone.
        self.given_up = threading.Semaphore(0)

    def take_http(self, connection: Connection) -> None:
        given = connection.header(b"x-request-timeout-ms")
        self.http.append(float(given) / 1000 if given else None)
        if self.answers:
            connection.answer(200, OK)
        else:
            assert not connection.sock.recv(1)
            self.given_up.release()

    def take_grpc(self, call: Call) -> None:
        given = call.headers.get(b"grpc-timeout")
        self.grpc.append(int(given[:-1]) * _UNITS[given[-1:]] if given else None)
        if self.answers:
            call.headers_back((":status", "200"), ("content-type", "application/grpc"))
            payload = service_pb2.ModelInferResponse(model_name="echo").SerializeToString()
            call.data(b"\0" + len(payload).to_bytes(4, "big") + payload)
            call.headers_back(("grpc-status", "0"), end=True)


@pytest.fixture(scope="module")
def listening(gateway_factory: StartGateway) -> Iterator[tuple[GatewayProcess, Listening]]:
    worker = Listening()
    with (
        http_upstream(worker.take_http) as port,
        grpc_upstream(worker.take_grpc) as grpc_port,
        gateway_factory([f"127.0.0.1:{port},grpc={grpc_port}"]) as gateway,
    ):
        gateway.wait_workers(1)
        yield gateway, worker


def infer(gateway: GatewayProcess, timeout: float | None, parameter: int = 0) -> Any:
    request = service_pb2.ModelInferRequest(model_name="echo")
    if parameter:
        request.parameters["timeout"].int64_param = parameter
    with grpc.insecure_channel(gateway.grpc_url) as channel:
        return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=timeout)


class TestPassedOn:
    def test_http(self, listening: tuple[GatewayProcess, Listening]) -> None:
        gateway, worker = listening
        path = "/v2/models/echo/infer"
        assert ask(gateway.http_port, "POST", path, ECHO_BYTES).status == 200
        assert worker.http[-1] is None
        assert ask(gateway.http_port, "POST", path, ECHO_BYTES, {"x-request-timeout-ms": "60000"}).status == 200
        assert 30 < (worker.http[-1] or 0) <= 60
        parameter = ECHO_BYTES[:-1] + b', "parameters": {"timeout": 50000000}}'
        assert ask(gateway.http_port, "POST", path, parameter).status == 200
        assert 25 < (worker.http[-1] or 0) <= 50
        # The earlier of the two.
        assert ask(gateway.http_port, "POST", path, parameter, {"x-request-timeout-ms": "90000"}).status == 200
        assert 25 < (worker.http[-1] or 0) <= 50

    def test_grpc(self, listening: tuple[GatewayProcess, Listening]) -> None:
        gateway, worker = listening
        infer(gateway, None)
        assert worker.grpc[-1] is None
        infer(gateway, 60)
        # The stock client itself rounds up what it sends, by up to a hundredth here.
        assert 30 < (worker.grpc[-1] or 0) <= 60.6
        infer(gateway, 60, parameter=50_000_000)
        assert 25 < (worker.grpc[-1] or 0) <= 50

    def test_shrunk_by_the_time_spent(self, gateway_factory: StartGateway) -> None:
        """One worker refuses after a while; the next is given what is left."""
        given: list[float] = []

        def refuses_once(connection: Connection) -> None:
            given.append(float(connection.header(b"x-request-timeout-ms") or b"0"))
            if len(given) == 1:
                time.sleep(0.3)
                connection.answer(503)
            else:
                connection.answer(200, OK)

        with (
            http_upstream(refuses_once) as one,
            http_upstream(refuses_once) as other,
            gateway_factory([f"127.0.0.1:{one}", f"127.0.0.1:{other}"]) as gateway,
        ):
            gateway.wait_workers(2)
            headers = {"x-request-timeout-ms": "60000"}
            assert ask(gateway.http_port, "POST", "/v2/models/echo/infer", ECHO_BYTES, headers).status == 200
        assert given[1] <= given[0] - 300

    @pytest.mark.parametrize("parameter", [10**16, 2**62])
    def test_one_beyond_all_measure_is_none(self, listening: tuple[GatewayProcess, Listening], parameter: int) -> None:
        gateway, worker = listening
        body = ECHO_BYTES[:-1] + b', "parameters": {"timeout": %d}}' % parameter
        assert ask(gateway.http_port, "POST", "/v2/models/echo/infer", body).status == 200
        assert worker.http[-1] is None
        infer(gateway, 60, parameter=parameter)
        assert (worker.grpc[-1] or 0) <= 60.6

    @pytest.mark.parametrize("value", ["soon", "-5", "1e99", ""])
    def test_a_header_that_is_no_time(self, fleet: Fleet, value: str) -> None:
        with closing(StockClient("http", fleet.gateway)) as client:
            with pytest.raises(InferenceServerException, match="x-request-timeout-ms") as caught:
                client.infer("identity_int32", {"IN": np.ones(1, np.int32)}, headers={"x-request-timeout-ms": value})
            assert caught.value.status() == "400"


class TestKept:
    """By a gateway whose worker takes requests and never answers."""

    @pytest.fixture
    def silent(self, listening: tuple[GatewayProcess, Listening]) -> Iterator[tuple[GatewayProcess, Listening]]:
        listening[1].answers = False
        yield listening
        listening[1].answers = True

    def test_http_and_the_worker_is_told(self, silent: tuple[GatewayProcess, Listening]) -> None:
        gateway, worker = silent
        answer = ask(gateway.http_port, "POST", "/v2/models/echo/infer", ECHO_BYTES, {"x-request-timeout-ms": "4000"})
        assert answer.status == 504
        assert "Request timeout expired" in answer.error
        assert worker.given_up.acquire(timeout=60)

    def test_grpc(self, silent: tuple[GatewayProcess, Listening]) -> None:
        gateway, _ = silent
        with pytest.raises(grpc.RpcError) as caught:
            infer(gateway, 60, parameter=60_000)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        assert "Request timeout expired" in caught.value.details(), "the gateway's own word, not the client's"

    def test_a_caller_that_goes_away_is_passed_on(self, silent: tuple[GatewayProcess, Listening]) -> None:
        gateway, worker = silent
        arrived = len(worker.http)
        with connected(gateway.http_port) as connection:
            connection.sendall(message("POST", "/v2/models/echo/infer", ECHO_BYTES))
            wait_for(lambda: len(worker.http) > arrived)
        assert worker.given_up.acquire(timeout=60)


class TestRefused:
    """Time that cannot suffice, by the workers' own word."""

    @pytest.mark.parametrize("kind", ["http", "grpc"])
    def test_at_once_and_without_a_run(self, fleet: Fleet, kind: str) -> None:
        with closing(StockClient(kind, fleet.gateway)) as client:
            sent = {"MILLISECONDS": np.array([[1]], np.int32)}
            client.infer("slow", sent)
            before = client.count("slow")["executions"]
            with pytest.raises(InferenceServerException, match="Request timeout expired") as caught:
                client.infer("slow", sent, timeout=100)
            assert caught.value.status() == ("504" if client.is_http else "StatusCode.DEADLINE_EXCEEDED")
            assert client.count("slow")["executions"] == before
            assert client.infer("slow", sent, timeout=60_000_000).as_numpy("SLEPT").tolist() == [[1]]
