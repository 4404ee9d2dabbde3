"""Restricted APIs, asked of real Triton and of our worker with the same flags: the same statuses, the same words."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from worker_models import TRITON_MODELS, write_for_triton

from bench.worker.peers import triton
from bench.worker.peers.process import environment_python, scratch
from server_process import StartServer

pytestmark = pytest.mark.peers

#: Neither health nor metadata over HTTP: the launcher of peers asks for them without a header.
FLAGS = (
    "--http-restricted-api=model-config,statistics:k1=v1",
    "--http-restricted-api=logging,model-repository:k2=v2",
    "--grpc-restricted-protocol=model-config,metadata:k1=v1",
    "--grpc-restricted-protocol=health,inference:k3=v3",
)
PATHS = (
    ("GET", "/v2"),
    ("GET", "/v2/health/ready"),
    ("GET", "/v2/models/identity"),
    ("GET", "/v2/models/identity/versions/1"),
    ("GET", "/v2/models/identity/ready"),
    ("GET", "/v2/models/identity/config"),
    ("GET", "/v2/models/identity/stats"),
    ("GET", "/v2/models/stats"),
    ("POST", "/v2/models/identity/infer"),
    ("POST", "/v2/repository/index"),
    ("GET", "/v2/logging"),
    ("GET", "/v2/trace/setting"),
)
HEADERS: tuple[dict[str, str], ...] = ({}, {"k1": "v1"}, {"K1": "v1"}, {"k1": "v2"}, {"k2": "v2"})
METADATA: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("k1", "v1"),),
    (("triton-grpc-protocol-k1", "v1"),),
    (("triton-grpc-protocol-k1", "x"),),
    (("triton-grpc-protocol-k3", "v3"),),
)


@pytest.fixture(scope="module")
def servers(server_factory: StartServer, repository: Path) -> Iterator[list[tuple[str, str]]]:
    """(HTTP, gRPC) addresses, ours first."""
    with (
        scratch("rules") as directory,
        triton.serve_repository(
            write_for_triton(directory / "models"), environment_python(""), directory, TRITON_MODELS, FLAGS
        ) as peer,
        server_factory(repository, *FLAGS) as ours,
    ):
        theirs = (str(peer.http_url).removeprefix("http://"), str(peer.grpc_address))
        yield [(ours.http_url, ours.grpc_url), theirs]


def http(address: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, Any]:
    body = None
    if method == "POST":
        given = {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.0]}]}
        body = json.dumps(given if "infer" in path else {}).encode()
    request = urllib.request.Request(f"http://{address}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, None
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def calls(address: str, metadata: Any) -> Iterator[tuple[str, Any, Any]]:
    inference = service_pb2.ModelInferRequest(model_name="identity")
    given = inference.inputs.add(name="INPUT0", datatype="FP32", shape=[1])
    given.contents.fp32_contents.append(1.0)
    requests = (
        ("ServerLive", service_pb2.ServerLiveRequest()),
        ("ModelReady", service_pb2.ModelReadyRequest(name="identity")),
        ("ServerMetadata", service_pb2.ServerMetadataRequest()),
        ("ModelMetadata", service_pb2.ModelMetadataRequest(name="identity")),
        ("ModelConfig", service_pb2.ModelConfigRequest(name="identity")),
        ("ModelStatistics", service_pb2.ModelStatisticsRequest(name="identity")),
        ("RepositoryIndex", service_pb2.RepositoryIndexRequest()),
        ("ModelInfer", inference),
    )
    with grpc.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        health = health_pb2_grpc.HealthStub(channel)
        for name, call, request in (
            *((name, getattr(stub, name), request) for name, request in requests),
            ("Check", health.Check, health_pb2.HealthCheckRequest()),
        ):
            try:
                call(request, metadata=metadata, timeout=60)
                yield name, None, ""
            except grpc.RpcError as error:
                yield name, error.code(), error.details()
        try:
            list(stub.ModelStreamInfer(iter([inference]), metadata=metadata, timeout=60))
            yield "ModelStreamInfer", None, ""
        except grpc.RpcError as error:
            yield "ModelStreamInfer", error.code(), error.details()


@pytest.mark.parametrize("headers", HEADERS, ids=str)
def test_rest_apis_are_restricted_alike(servers: list[tuple[str, str]], headers: dict[str, str]) -> None:
    ours, theirs = ({path: http(address, method, path, headers) for method, path in PATHS} for address, _ in servers)
    assert ours == theirs
    assert any(status == 403 for status, _ in ours.values())


@pytest.mark.parametrize("metadata", METADATA, ids=str)
def test_grpc_apis_are_restricted_alike(servers: list[tuple[str, str]], metadata: Any) -> None:
    ours, theirs = (list(calls(address, metadata)) for _, address in servers)
    assert ours == theirs
    assert any(code is grpc.StatusCode.UNAVAILABLE for _, code, _ in ours)
