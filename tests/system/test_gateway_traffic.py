"""Rules end to end: explained decisions, quotas, canaries, affinity, shadows; and the metrics page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from stock_clients import StockClient
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway_process import Fleet, GatewayProcess, StartGateway
from hostile_client import Answer, ask
from watching import metrics, metrics_page, wait_for

FOUR = np.zeros((1, 4), np.float32)
BODY = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[1],"data":[1]}]}'

RULES = """
defaults:
  policy: prequal
models:
  identity_int32:
    quota: {rate: 0.001, burst: 3, header: x-tenant}
  identity_int64:
    quota: {concurrency: 1}
  versions:
    canary: {version: 2, stable: 1, weight: 0.5}
  identity_fp32:
    policy: consistent_hash
    policy_options: {load_factor: 100}
    affinity: {header: x-agent-id}
  raises:
    shadow: {model: no_config, share: 1.0}
  identity_uint16:
    deadline_ms: 60000
  identity_int16:
    canary: {version: 7, stable: 1, weight: 0}
    quota: {rate: 0.001, burst: 2, header: x-tenant}
"""


@pytest.fixture(scope="module")
def ruled(
    fleet: Fleet, gateway_factory: StartGateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    with gateway_factory(fleet.workers, "--rules", str(rules)) as gateway:
        gateway.wait_workers(2)
        yield gateway


def infer(gateway: GatewayProcess, model: str, headers: dict[str, str] | None = None, kind: str = "INT32") -> Answer:
    body = BODY.replace(b"INT32", kind.encode())
    return ask(gateway.http_port, "POST", f"/v2/models/{model}/infer", body, headers)


def worker_of(answer: Answer) -> str:
    return str(json.loads(answer.headers["x-isochrone-placement"])["worker"])


EXPLAIN = {"x-isochrone-explain": "1"}


class TestExplained:
    def check(self, placement: Any, fleet: Fleet) -> None:
        workers = {worker.http_url for worker in fleet.workers}
        assert placement["model"] == "add_sub"
        assert placement["version"] == "1"
        assert placement["policy"] == "prequal"
        assert placement["worker"] in workers
        assert placement["attempts"] == [placement["worker"]]
        assert {row["endpoint"] for row in placement["candidates"]} == workers
        assert [row["chosen"] for row in placement["candidates"]].count(True) == 1
        assert all(row["excluded"] == "" for row in placement["candidates"])

    def test_over_http(self, fleet: Fleet) -> None:
        tensors = [{"name": f"INPUT{n}", "datatype": "FP32", "shape": [1, 16], "data": [1.0] * 16} for n in (0, 1)]
        body = json.dumps({"inputs": tensors}).encode()
        answer = ask(fleet.gateway.http_port, "POST", "/v2/models/add_sub/infer", body, EXPLAIN)
        assert answer.status == 200
        self.check(json.loads(answer.headers["x-isochrone-placement"]), fleet)

    def test_of_a_large_answer(self, fleet: Fleet) -> None:
        with closing(StockClient("http", fleet.gateway)) as client:
            sent = client.input("IN", np.zeros(200_000, np.float32))
            result = client.call("infer", "identity_fp32", [sent], headers=dict(EXPLAIN))
            assert result.as_numpy("OUT").shape == (200_000,)

    def test_over_grpc(self, fleet: Fleet) -> None:
        request = service_pb2.ModelInferRequest(model_name="add_sub")
        for number in (0, 1):
            request.inputs.add(name=f"INPUT{number}", datatype="FP32", shape=[1, 16])
            request.raw_input_contents.append(b"\0" * 64)
        with grpc.insecure_channel(fleet.gateway.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            answer, call = stub.ModelInfer.with_call(request, timeout=60, metadata=tuple(EXPLAIN.items()))
            assert answer.model_version == "1"
            self.check(json.loads(dict(call.trailing_metadata())["x-isochrone-placement"]), fleet)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(service_pb2.ModelInferRequest(model_name="add_sub"), metadata=tuple(EXPLAIN.items()))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "x-isochrone-placement" in dict(caught.value.trailing_metadata())

    def test_only_on_request(self, fleet: Fleet) -> None:
        answer = infer(fleet.gateway, "identity_int32")
        assert "x-isochrone-placement" not in answer.headers
        assert "endpoint-load-metrics" not in answer.headers


class TestQuotas:
    def test_rate_per_tenant(self, ruled: GatewayProcess) -> None:
        statuses = [infer(ruled, "identity_int32", {"x-tenant": "a"}).status for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        refused = infer(ruled, "identity_int32", {"x-tenant": "a"})
        assert "quota rate of 'a' is used up" in refused.error
        assert int(refused.headers["retry-after"]) > 0
        assert infer(ruled, "identity_int32", {"x-tenant": "b"}).status == 200
        assert infer(ruled, "identity_uint32", {"x-tenant": "a"}, "UINT32").status == 200

    def test_over_grpc(self, ruled: GatewayProcess) -> None:
        with closing(StockClient("grpc", ruled)) as client:
            for _ in range(3):
                client.infer("identity_int32", {"IN": np.ones(1, np.int32)}, headers={"x-tenant": "c"})
            with pytest.raises(InferenceServerException, match="quota rate of 'c'") as caught:
                client.infer("identity_int32", {"IN": np.ones(1, np.int32)}, headers={"x-tenant": "c"})
            assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"

    def test_concurrency_is_given_back(self, ruled: GatewayProcess) -> None:
        for _ in range(5):
            assert infer(ruled, "identity_int64", kind="INT64").status == 200
            # A refusal by the worker and a mistake give it back too.
            assert infer(ruled, "identity_int64", kind="FP64").status == 400


class TestCanary:
    def version(self, client: StockClient, **headers: str) -> float:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return float(client.infer("versions", {"X": FOUR}, headers=named).as_numpy("Y")[0, 0])

    @pytest.mark.parametrize("kind", ["http", "grpc"])
    def test_split(self, ruled: GatewayProcess, kind: str) -> None:
        with closing(StockClient(kind, ruled)) as client:
            seen = {agent: self.version(client, x_agent_id=agent) for agent in map(str, range(40))}
            assert set(seen.values()) == {1.0, 2.0}
            again = {agent: self.version(client, x_agent_id=agent) for agent in seen}
            assert again == seen, "an agent keeps its version"
            assert {self.version(client, x_agent_id=agent, x_canary="always") for agent in seen} == {2.0}
            assert {self.version(client, x_agent_id=agent, x_canary="never") for agent in seen} == {1.0}

    def test_a_version_asked_for_is_given(self, ruled: GatewayProcess) -> None:
        with closing(StockClient("http", ruled)) as client:
            for version in ("1", "2"):
                result = client.infer("versions", {"X": FOUR}, model_version=version, headers={"x-canary": "always"})
                assert result.as_numpy("Y")[0, 0] == float(version)

    def counted(self, gateway: GatewayProcess, model: str) -> dict[str, tuple[int, int]]:
        """By version: requests and failures, as they are told to a controller."""
        evaluations = json.loads(ask(gateway.metrics_port, "GET", "/evaluations").body)
        # Nothing is told of a model before its first request.
        evaluation = evaluations.get(model, {"versions": {}})
        return {version: (each["requests"], each["failures"]) for version, each in evaluation["versions"].items()}

    def test_a_deadline_that_cannot_be_met_counts_against_the_version(self, ruled: GatewayProcess) -> None:
        body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 4], "data": [0] * 4}]}).encode()
        headers = {"x-canary": "always", "x-request-timeout-ms": "0.01"}
        before = self.counted(ruled, "versions")
        for _ in range(5):
            assert ask(ruled.http_port, "POST", "/v2/models/versions/infer", body, headers).status == 504
        after = self.counted(ruled, "versions")
        requests, failures = before.get("2", (0, 0))
        assert after["2"] == (requests + 5, failures + 5), "wherever it was refused"
        assert after.get("1", (0, 0)) == before.get("1", (0, 0))

    def test_a_quota_counts_against_no_version(self, ruled: GatewayProcess) -> None:
        asked = [infer(ruled, "identity_int16", {"x-tenant": "t"}, "INT16").status for _ in range(4)]
        assert asked == [200, 200, 429, 429]
        assert self.counted(ruled, "identity_int16") == {"1": (2, 0), "7": (0, 0)}


def test_affinity_by_agent(ruled: GatewayProcess) -> None:
    homes: dict[str, str] = {}
    for _ in range(4):
        for agent in map(str, range(12)):
            answer = infer(ruled, "identity_fp32", {**EXPLAIN, "x-agent-id": agent}, "FP32")
            assert homes.setdefault(agent, worker_of(answer)) == worker_of(answer)
    assert len(set(homes.values())) == 2


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_shadow_is_copied_and_unseen(ruled: GatewayProcess, kind: str) -> None:
    with closing(StockClient(kind, ruled)) as client:
        before = client.count("no_config")["success"]
        for _ in range(5):
            assert np.array_equal(client.infer("raises", {"X": FOUR}).as_numpy("Y"), FOUR)
        wait_for(lambda: client.count("no_config")["success"] == before + 5)


def test_a_deadline_by_rule(ruled: GatewayProcess) -> None:
    answer = infer(ruled, "identity_uint16", EXPLAIN, "UINT16")
    left = json.loads(answer.headers["x-isochrone-placement"])["time_left_ms"]
    assert 0 < left <= 60000


class TestMetrics:
    @pytest.mark.parametrize(
        ("accept", "parse"),
        [("text/plain", parse_text), ("application/openmetrics-text; version=1.0.0", parse_openmetrics)],
    )
    def test_is_well_formed(self, ruled: GatewayProcess, accept: str, parse: Callable[[str], Any]) -> None:
        infer(ruled, "identity_uint32", kind="UINT32")
        text = metrics_page(ruled, accept)
        families = {family.name: family for family in parse(text)}
        for name in ("requests", "rejected", "retries", "hedges", "failures", "in_flight", "worker_healthy"):
            family = families[f"isochrone_gateway_{name}"]
            assert family.documentation
            assert family.type in ("counter", "gauge")
        names = [line.split(" ", 1)[0] for line in text.splitlines() if line and not line.startswith("#")]
        assert len(names) == len(set(names)), "a sample must not come twice"

    def test_counts(self, ruled: GatewayProcess, fleet: Fleet) -> None:
        def value(name: str, **labels: str) -> float:
            return float(
                sum(
                    sample.value
                    for family in metrics(ruled)
                    for sample in family.samples
                    if sample.name == f"isochrone_gateway_{name}" and labels.items() <= sample.labels.items()
                )
            )

        before = value("requests_total", model="identity_fp64")
        for _ in range(7):
            assert infer(ruled, "identity_fp64", kind="FP64").status == 200
        assert value("requests_total", model="identity_fp64") == before + 7
        wait_for(lambda: value("in_flight") == 0)
        assert value("worker_healthy") == len(fleet.workers)
        wait_for(lambda: value("worker_in_flight") == 0)

    @pytest.mark.skipif(sys.platform != "linux", reason="the kernel's figures are read on Linux alone")
    def test_round_trips_of_all_workers(self, fleet: Fleet) -> None:
        found = {
            sample.labels["worker"]: sample.value
            for family in metrics(fleet.gateway)
            for sample in family.samples
            if sample.name == "isochrone_gateway_worker_round_trip_seconds"
        }
        assert len(found) == len(fleet.workers)
        assert all(0 < seconds < 60 for seconds in found.values())

    def test_names_nobody_serves_are_not_kept(self, fleet: Fleet) -> None:
        for number in range(50):
            assert infer(fleet.gateway, f"invented{number}").status == 404
        assert "invented" not in metrics_page(fleet.gateway, "text/plain")


def test_rules_that_make_no_sense(gateway_factory: StartGateway, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("models: {a: {polcy: prequal}}\n")
    starting = gateway_factory(["127.0.0.1:9"], "--rules", str(rules))
    with pytest.raises(AssertionError, match=r"rules.yaml.*models\.a\.polcy"), starting:
        raise RuntimeError("it must not start")
