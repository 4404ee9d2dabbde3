"""Alerts about servers without a fleet fire in a real Prometheus, by conditions that are really there: different files
under one version, a certificate that expires, a worker that hangs, wrong outputs, a request that ends processes."""

from __future__ import annotations

import http.client
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from monitored_fleet import SECONDS, until
from prometheus_server import Prometheus, start_rendered

from gateway_process import GatewayProcess, StartGateway
from sample_models import write_config, write_python
from server_process import ServerProcess, StartServer

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

MODEL = "fragile"
#: Echoes IN; ends its process when IN begins with a negative number.
_SOURCE = """
import os
import signal


class Model:
    def infer(self, inputs):
        if inputs["IN"][0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"OUT": inputs["IN"]}
"""
_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_INT32 dims: [-1] }
output { name: "OUT" data_type: TYPE_INT32 dims: [-1] }
"""

SEEING = "seeing"
#: Another answer to the same picture each time, and outputs that are reused.
_SEEING_SOURCE = """
import numpy as np


class Model:
    def load(self, context):
        self.count = 0

    def infer(self, inputs):
        self.count += 1
        return {"OUT": np.full((1,), self.count % 2, np.float32)}
"""
_SEEING_CONFIG = """
backend: "python"
input { name: "IN" data_type: TYPE_UINT8 dims: [16, 16, 3] }
output { name: "OUT" data_type: TYPE_FP32 dims: [1] }
parameters { key: "activation_cache" value { string_value: "temporal" } }
parameters { key: "activation_cache_sample_share" value { string_value: "1" } }
parameters { key: "activation_cache_age_ms" value { string_value: "60000" } }
"""
_PICTURE = {"name": "IN", "shape": [16, 16, 3], "datatype": "UINT8", "data": [each % 251 for each in range(768)]}


def _write(directory: Path, source: str) -> Path:
    write_config(directory / MODEL, _CONFIG)
    write_python(directory / MODEL, source)
    return directory


def _post(server: ServerProcess, model: str, request: dict[str, Any]) -> int:
    host, _, port = server.http_url.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=SECONDS)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", json.dumps(request), {"x-request-timeout-ms": "20000"})
        return connection.getresponse().status
    finally:
        connection.close()


def _ask(gateway: GatewayProcess, first: int) -> int:
    return _post(gateway, MODEL, {"inputs": [{"name": "IN", "shape": [2], "datatype": "INT32", "data": [first, 5]}]})


def _page(server: ServerProcess) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics", timeout=SECONDS) as answer:
        return str(answer.read().decode())


@dataclass(frozen=True)
class Servers:
    gateway: GatewayProcess
    #: Those that requests may end; one that hangs; one with another file; one with TLS.
    behind: list[ServerProcess]
    hung: ServerProcess
    other: ServerProcess
    secured: ServerProcess


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory,
    server_factory: StartServer,
    gateway_factory: StartGateway,
    certificate: tuple[Path, Path],
) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("plain")
    models = _write(directory / "models", _SOURCE)
    others = _write(directory / "others", _SOURCE + "\n# Another file.\n")
    write_config(others / SEEING, _SEEING_CONFIG)
    write_python(others / SEEING, _SEEING_SOURCE)
    secrets = ("--tls-cert", str(certificate[0]), "--tls-key", str(certificate[1]))
    with ExitStack() as stack:
        behind = [stack.enter_context(server_factory(models, check_exit=False)) for _ in range(2)]
        hung = stack.enter_context(server_factory(models, check_exit=False))
        other = stack.enter_context(server_factory(others))
        secured = stack.enter_context(server_factory(models, *secrets))
        gateway = stack.enter_context(gateway_factory([*behind, hung], "--probe-timeout", "2", check_exit=False))
        gateway.wait_workers(3)
        os.kill(hung.pid, signal.SIGSTOP)
        try:
            until(lambda: f'worker_healthy{{worker="{hung.http_url}"}} 0' in _page(gateway), "the health checks")
            yield Servers(gateway, behind, hung, other, secured)
        finally:
            os.kill(hung.pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def prometheus(
    servers: Servers, certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    words = ["--name", "plain", "--ca", str(certificate[0])]
    for server in (servers.behind[0], servers.other):
        words += ["--worker", f"127.0.0.1:{server.metrics_port}"]
    words += ["--worker", f"https://127.0.0.1:{servers.secured.metrics_port}"]
    words += ["--gateway", f"127.0.0.1:{servers.gateway.metrics_port}"]
    with start_rendered(tmp_path_factory.mktemp("prometheus"), *words) as server:
        yield server


def test_different_files_under_one_version(prometheus: Prometheus) -> None:
    (found,) = until(lambda: prometheus.firing("MixedDigests", model=MODEL), "MixedDigests")
    assert found["value"] == "2e+00"


def test_a_certificate_that_expires(prometheus: Prometheus, servers: Servers) -> None:
    """The test's certificate is valid for two days."""
    (found,) = until(lambda: prometheus.firing("CertificateExpires"), "CertificateExpires")
    assert found["labels"]["name"] == f"127.0.0.1:{servers.secured.metrics_port}"
    assert "expires in 1d 23h" in found["annotations"]["description"]


def test_a_worker_that_hangs_is_not_used(prometheus: Prometheus, servers: Servers) -> None:
    (found,) = until(lambda: prometheus.firing("WorkerUnhealthy"), "WorkerUnhealthy")
    assert found["labels"]["worker"] == servers.hung.http_url
    assert _ask(servers.gateway, 7) == 200


def test_reused_outputs_that_are_wrong(prometheus: Prometheus, servers: Servers) -> None:
    for _ in range(20):
        assert _post(servers.other, SEEING, {"inputs": [_PICTURE], "parameters": {"camera": "one"}}) == 200
    until(lambda: prometheus.firing("ActivationCacheAlarm", model=SEEING), "ActivationCacheAlarm")


def test_a_request_that_ends_processes(prometheus: Prometheus, servers: Servers) -> None:
    assert not prometheus.firing("RequestsQuarantined")
    assert _ask(servers.gateway, -1) != 200
    until(lambda: prometheus.firing("RequestsQuarantined", model=MODEL), "RequestsQuarantined")
    until(lambda: prometheus.firing("WorkerDown", worker=f"127.0.0.1:{servers.behind[0].metrics_port}"), "WorkerDown")
    assert all(server.process.poll() is not None for server in servers.behind)
    assert [rule for rule in prometheus.rules() if rule["health"] != "ok"] == []
