"""``isochrone gateway --processes``: one port, one metrics page, and a load that every process knows of at once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from process_groups import (
    MANY,
    ask,
    coordinator,
    infer_over_many_connections,
    is_ready,
    samples,
    serving,
    wait_for,
)
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gateway_process import GatewayProcess, StartGateway
from sample_models import write_models
from server_process import ServerProcess, StartServer

COUNT = 2


@dataclass(frozen=True)
class Both:
    gateway: GatewayProcess
    worker: ServerProcess


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[Both]:
    models = write_models(tmp_path_factory.mktemp("models"), "identity_int32", "identity_fp32", "add_sub")
    with (
        server_factory(models, "--model-control-mode", "explicit", "--load-model", "identity_int32") as worker,
        gateway_factory([worker], "--processes", str(COUNT), check_exit=False) as gateway,
    ):
        # A process is ready a moment before it says so.
        wait_for(lambda: len(serving(gateway)) == COUNT)
        gateway.wait_workers(COUNT)
        yield Both(gateway, worker)
        assert gateway.terminate() == 0


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_requests_add_up(both: Both, kind: str) -> None:
    gateway = both.gateway
    before = sum(samples(gateway, "isochrone_gateway_requests_total", model="identity_int32").values())
    infer_over_many_connections(gateway, "identity_int32", kind)
    after = samples(gateway, "isochrone_gateway_requests_total", model="identity_int32")
    assert after == {(("model", "identity_int32"),): before + MANY}
    assert list(samples(gateway, "isochrone_gateway_worker_healthy").values()) == [1]
    if sys.platform == "linux":
        assert len(samples(gateway, "isochrone_gateway_worker_round_trip_seconds")) == 1
    assert len(samples(gateway, "process_open_fds")) == COUNT
    assert min(samples(gateway, "isochrone_process_memory_shared_bytes").values()) > 10e6


def test_a_load_through_one_process_is_known_to_all(both: Both) -> None:
    for _ in range(3):
        assert ask(both.gateway, "POST", "/v2/repository/models/add_sub/load")[0] == 200
        for _ in range(12):
            assert ask(both.gateway, "GET", "/v2/models/add_sub/ready")[0] == 200
        assert ask(both.gateway, "POST", "/v2/repository/models/add_sub/unload")[0] == 200
        for _ in range(12):
            assert ask(both.gateway, "GET", "/v2/models/add_sub/ready")[0] == 400


def test_killed_processes_come_back(both: Both) -> None:
    gateway = both.gateway
    victim, first = serving(gateway)[1], coordinator(gateway)
    os.kill(victim, signal.SIGKILL)
    first.kill()
    wait_for(lambda: serving(gateway)[1] != victim)
    wait_for(lambda: is_ready(gateway))
    infer_over_many_connections(gateway, "identity_int32")
    wait_for(lambda: _restarts(gateway) == 1)


def _restarts(gateway: GatewayProcess) -> float:
    try:
        return sum(samples(gateway, "isochrone_process_restarts_total").values())
    except OSError:
        return -1


def test_it_is_not_ready_without_workers(gateway_factory: StartGateway, silent_port: int) -> None:
    arguments = ("--processes", "2")
    with gateway_factory([f"127.0.0.1:{silent_port}"], *arguments, check_exit=False) as gateway:
        assert not is_ready(gateway)
        assert gateway.terminate() == 0


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that nobody listens on: of a socket that is only bound, so that no other process gets it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def test_a_port_in_use(both: Both) -> None:
    command = [str(Path(sys.executable).with_name("isochrone")), "gateway", "--processes", "2"]
    command += ["--listen", both.gateway.http_url, "--metrics-port", "0", "--upstream", both.worker.http_url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"cannot listen on {both.gateway.http_url} for gateway" in ended.stderr
    assert "--listen" in ended.stderr


def test_durations_add_up(both: Both) -> None:
    name = "isochrone_gateway_request_duration_seconds_count"
    before = sum(samples(both.gateway, name, model="identity_int32").values())
    infer_over_many_connections(both.gateway, "identity_int32")
    assert sum(samples(both.gateway, name, model="identity_int32").values()) == before + MANY
    bucket = name.replace("count", "bucket")
    found = samples(both.gateway, bucket, model="identity_int32", outcome="answered", le="+Inf")
    assert sum(found.values()) == sum(samples(both.gateway, name, model="identity_int32", outcome="answered").values())


def test_agents_and_exemplars_of_all_processes(both: Both) -> None:
    gateway, trace = both.gateway, "4bf92f3577b34da6a3ce929d0e0e4736"
    body = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
    headers = {"x-agent-id": "robot", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    for _ in range(MANY):
        request = Request(f"http://{gateway.http_url}/v2/models/identity_int32/infer", body, headers)
        with urlopen(request, timeout=60) as answer:
            assert answer.status == 200
    counts = samples(gateway, "isochrone_gateway_agent_request_duration_seconds_count", agent="robot")
    assert sum(counts.values()) == MANY
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    with urlopen(Request(f"http://127.0.0.1:{gateway.metrics_port}/metrics", headers=accept), timeout=60) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    traces = {
        sample.exemplar.labels["trace_id"]
        for family in families
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert traces == {trace}
