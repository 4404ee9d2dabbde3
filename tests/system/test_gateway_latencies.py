"""The times of requests on a real gateway's metrics page: by outcome, of the gateway's own share, and by agent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway_process import Fleet, GatewayProcess, StartGateway
from hostile_client import ECHO_BYTES, ask, connected, message
from hostile_upstreams import Connection, http_upstream
from watching import metrics, metrics_page, wait_for

OK = b'{"model_name":"echo","outputs":[]}'
INFER = "/v2/models/echo/infer"
BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'
DURATION = "isochrone_gateway_request_duration_seconds"
RULES = "agents: {most_tracked: 2}\ndefaults: {retries: false, breaker: false}\noutliers: false\n"


class Worker:
    """Answers by what the header ``x-do`` says: a status, or nothing."""

    def __init__(self) -> None:
        self.taken = threading.Semaphore(0)

    def take(self, connection: Connection) -> None:
        do = connection.header(b"x-do") or b"200"
        self.taken.release()
        if do == b"silence":
            assert not connection.sock.recv(1)
        else:
            connection.answer(int(do), OK if do == b"200" else b'{"error":"no"}')


@pytest.fixture(scope="module")
def scene(gateway_factory: StartGateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Worker]]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    worker = Worker()
    with (
        http_upstream(worker.take) as port,
        gateway_factory([f"127.0.0.1:{port}"], "--rules", str(rules)) as gateway,
    ):
        gateway.wait_workers(1)
        yield gateway, worker


def samples(gateway: GatewayProcess, name: str, **labels: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in metrics(gateway)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def count(gateway: GatewayProcess, outcome: str) -> float:
    return sum(samples(gateway, f"{DURATION}_count", outcome=outcome).values())


def infer(gateway: GatewayProcess, **headers: str) -> int:
    return ask(
        gateway.http_port, "POST", INFER, ECHO_BYTES, {k.replace("_", "-"): v for k, v in headers.items()}
    ).status


@pytest.mark.parametrize(
    ("do", "status", "outcome"),
    [
        ("200", 200, "answered"),
        ("400", 400, "answered"),
        ("500", 500, "failed"),
        ("429", 429, "rejected"),
        ("504", 504, "deadline_exceeded"),
    ],
)
def test_outcomes_of_workers(scene: tuple[GatewayProcess, Worker], do: str, status: int, outcome: str) -> None:
    gateway, _ = scene
    before = count(gateway, outcome)
    for _ in range(3):
        assert infer(gateway, x_do=do) == status
    assert count(gateway, outcome) == before + 3


def test_a_deadline_that_passes(scene: tuple[GatewayProcess, Worker]) -> None:
    gateway, _ = scene
    before = count(gateway, "deadline_exceeded")
    assert infer(gateway, x_do="silence", x_request_timeout_ms="30") == 504
    assert count(gateway, "deadline_exceeded") == before + 1
    sums = samples(gateway, f"{DURATION}_sum", outcome="deadline_exceeded")
    assert sum(sums.values()) >= 0.030, "the caller waited for so long"


def test_a_caller_that_leaves(scene: tuple[GatewayProcess, Worker]) -> None:
    gateway, worker = scene
    before = count(gateway, "cancelled")
    while worker.taken.acquire(blocking=False):
        pass
    with connected(gateway.http_port) as connection:
        connection.sendall(message("POST", INFER, ECHO_BYTES, {"x-do": "silence"}))
        assert worker.taken.acquire(timeout=60)
    wait_for(lambda: count(gateway, "cancelled") == before + 1)


def test_requests_are_counted_once(scene: tuple[GatewayProcess, Worker]) -> None:
    gateway, _ = scene
    infer(gateway)
    (requests,) = samples(gateway, "isochrone_gateway_requests_total", model="echo").values()
    assert sum(samples(gateway, f"{DURATION}_count", model="echo").values()) == requests


def test_the_own_share_is_a_part_of_the_whole(scene: tuple[GatewayProcess, Worker]) -> None:
    gateway, _ = scene
    infer(gateway)
    own = "isochrone_gateway_own_duration_seconds"
    assert sum(samples(gateway, f"{own}_count", model="echo").values()) == count(gateway, "answered")
    seconds = sum(samples(gateway, f"{own}_sum", model="echo").values())
    assert 0 < seconds < sum(samples(gateway, f"{DURATION}_sum", outcome="answered").values())


def test_versions_that_callers_make_up_have_no_series(scene: tuple[GatewayProcess, Worker]) -> None:
    gateway, _ = scene
    for number in range(5):
        path = f"/v2/models/echo/versions/{1000 + number}/infer"
        ask(gateway.http_port, "POST", path, ECHO_BYTES)
    labels = {
        sample.labels["version"]
        for family in metrics(gateway)
        for sample in family.samples
        if sample.name == f"{DURATION}_count"
    }
    assert labels <= {"", "1"}


def test_agents(scene: tuple[GatewayProcess, Worker]) -> None:
    gateway, _ = scene
    names = ["robot-1"] * 40 + ["robot-2"] * 40 + [f"invented-{number}" for number in range(10)]
    for name in names:
        assert infer(gateway, x_agent_id=name) == 200
    assert infer(gateway, x_agent_id="robot-1", x_do="silence", x_request_timeout_ms="20") == 504
    figures = "isochrone_gateway_agent_request_duration_seconds"
    counts = {labels[0]: value for labels, value in samples(gateway, f"{figures}_count").items()}
    assert counts["robot-1"] == 41
    assert counts["robot-2"] == 40
    assert sum(counts.values()) == len(names) + 1
    assert len(counts) <= 1 + 2 * 2
    misses = samples(gateway, "isochrone_gateway_agent_deadline_misses_total")
    assert misses == {("",): 0, **{(name,): float(name == "robot-1") for name in counts if name}}
    answer = ask(gateway.metrics_port, "GET", "/agents")
    report = json.loads(answer.body)
    assert report["requests"] == len(names) + 1
    first = report["agents"][0]
    assert (first["agent"], first["requests"], first["deadline_misses"]) == ("robot-1", 41, 1)
    assert 0 < first["p50_ms"] <= first["p99_ms"]
    assert report["rest"]["requests"] + report["replaced"]["requests"] == 10
    assert ask(gateway.metrics_port, "POST", "/agents").status == 405


@pytest.mark.parametrize("name", ['a"b\\', "x" * 300, "\x7f", "förderer"])
def test_any_name_is_a_label(fleet: Fleet, name: str) -> None:
    """The page stays well-formed: the parser of ``metrics`` reads it."""
    headers = {"x-agent-id": name.encode().decode("latin-1")}
    path = "/v2/models/identity_int32/infer"
    status = ask(fleet.gateway.http_port, "POST", path, BODY, headers).status
    shown = {labels[0] for labels in samples(fleet.gateway, "isochrone_gateway_agent_deadline_misses_total")}
    assert all(len(each) <= 64 and each.isprintable() for each in shown)
    if status == 200 and len(name) <= 64 and name.isprintable():
        assert name in shown


def test_grpc(fleet: Fleet) -> None:
    gateway = fleet.gateway
    request = service_pb2.ModelInferRequest(model_name="identity_int32")
    given = request.inputs.add(name="IN", datatype="INT32", shape=[1])
    given.contents.int_contents.append(1)
    before = sum(samples(gateway, f"{DURATION}_count", model="identity_int32", outcome="answered").values())
    with grpc.insecure_channel(gateway.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(4):
            stub.ModelInfer(request, metadata=(("x-agent-id", "grpc-robot"),))
        for _ in stub.ModelStreamInfer(iter([request]), metadata=(("x-agent-id", "grpc-robot"),)):
            pass
    after = sum(samples(gateway, f"{DURATION}_count", model="identity_int32", outcome="answered").values())
    assert after == before + 5
    counts = samples(gateway, "isochrone_gateway_agent_request_duration_seconds_count", agent="grpc-robot")
    assert sum(counts.values()) == 5


def test_exemplars_lead_from_buckets_to_traces(fleet: Fleet) -> None:
    """Of the gateway and of the worker behind it; a trace that is not sampled leaves none."""
    trace, other = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
    path = "/v2/models/identity_int64/infer"
    body = BODY.replace(b"INT32", b"INT64")
    for trace_id, flags in ((trace, "01"), (other, "00")):
        header = {"traceparent": f"00-{trace_id}-00f067aa0ba902b7-{flags}"}
        assert ask(fleet.gateway.http_port, "POST", path, body, header).status == 200

    accept = "application/openmetrics-text; version=1.0.0"
    at_gateway = metrics_page(fleet.gateway, accept)
    at_workers = [metrics_page(worker, accept) for worker in fleet.workers]
    assert any(
        sample.name == f"{DURATION}_bucket"
        and sample.exemplar is not None
        and sample.exemplar.labels == {"trace_id": trace}
        and sample.exemplar.value > 0
        for family in parse_open_metrics(at_gateway)
        for sample in family.samples
    )
    assert sum(f'trace_id="{trace}"' in text for text in at_workers) == 1
    assert other not in "".join((at_gateway, *at_workers))
    assert trace not in metrics_page(fleet.gateway, "text/plain")
