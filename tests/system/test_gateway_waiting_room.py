"""A gateway whose only worker is not there yet: requests wait in its waiting room, and are answered when it comes."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from gateway_load import streamed
from stock_clients import KINDS, StockClient
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

from bench.ports import ports_in_a_row
from gateway_process import GatewayProcess, StartGateway
from sample_models import write_models
from server_process import StartServer
from watching import gauge, total, wait_for

MODEL = "identity_int32"
SENT = np.arange(16, dtype=np.int32)
RULES = f"models: {{{MODEL}: {{waiting_room: {{max_requests: 6, max_wait_ms: 60000}}}}}}\n"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("waiting_room") / "models", MODEL)


def waiting(gateway: GatewayProcess) -> float:
    return gauge(gateway, "isochrone_gateway_waiting", MODEL)


def ask(gateway: GatewayProcess, kind: str, **keywords: Any) -> Any:
    with closing(StockClient(kind, gateway)) as client:
        return client.infer(MODEL, {"IN": SENT}, **keywords).as_numpy("OUT").tolist()


def stream(gateway: GatewayProcess) -> list[int]:
    with grpc.insecure_channel(gateway.grpc_url) as channel:
        return streamed(service_pb2_grpc.GRPCInferenceServiceStub(channel), SENT)


def test_requests_wait_for_the_first_worker(
    repository: Path, server_factory: StartServer, gateway_factory: StartGateway, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    port = ports_in_a_row(1)
    with (
        gateway_factory([f"127.0.0.1:{port}"], "--rules", str(rules)) as gateway,
        ThreadPoolExecutor(8) as pool,
    ):
        with pytest.raises(InferenceServerException, match="no worker was ready for model"):
            ask(gateway, "http", headers={"x-request-timeout-ms": "50"})
        for _ in range(3):  # callers that leave
            with pytest.raises(TimeoutError):
                urllib.request.urlopen(f"http://{gateway.http_url}/v2/models/{MODEL}/infer", b"{}", timeout=0.2)
        wait_for(lambda: waiting(gateway) == 0)

        asked = [pool.submit(ask, gateway, kind) for kind in KINDS]
        asked += [pool.submit(stream, gateway) for _ in range(2)]
        wait_for(lambda: waiting(gateway) == 6)
        with pytest.raises(InferenceServerException, match="6 requests wait for one already"):
            ask(gateway, "http")
        with server_factory(repository, "--http-port", str(port)):
            assert [each.result(60) for each in asked] == [SENT.tolist()] * 6
            assert waiting(gateway) == 0
            assert total(gateway, "isochrone_gateway_requests_total") == 11


def test_a_gateway_that_stops_answers_those_that_wait(
    repository: Path, gateway_factory: StartGateway, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    with (
        gateway_factory([f"127.0.0.1:{ports_in_a_row(1)}"], "--rules", str(rules)) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        asked = pool.submit(ask, gateway, "http")
        wait_for(lambda: waiting(gateway) == 1)
        assert gateway.terminate() == 0
        with pytest.raises(InferenceServerException, match="the gateway is stopping"):
            asked.result(60)
