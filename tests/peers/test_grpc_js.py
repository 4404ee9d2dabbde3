"""@grpc/grpc-js from npm against our worker: unary, stream, deadline, metadata, cancellation, health."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2
from tritonclient.grpc import service_pb2

from bench.worker.peers.process import PEERS
from server_process import ServerProcess

pytestmark = pytest.mark.peers

SCRIPT = Path(__file__).with_name("grpc_js_calls.js")


def write_descriptors(path: Path) -> Path:
    """What protoc would write for the two services, dependencies first."""
    found = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(file: Any) -> None:
        if file.name not in seen:
            seen.add(file.name)
            for dependency in file.dependencies:
                add(dependency)
            file.CopyToProto(found.file.add())

    add(service_pb2.DESCRIPTOR)
    add(health_pb2.DESCRIPTOR)
    path.write_bytes(found.SerializeToString())
    return path


@pytest.fixture(scope="module")
def report(worker: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    descriptors = write_descriptors(tmp_path_factory.mktemp("grpc_js") / "descriptors.bin")
    environment = {**os.environ, "NODE_PATH": str(PEERS / "node" / "node_modules")}
    done = subprocess.run(
        ["node", str(SCRIPT), worker.grpc_url, str(descriptors)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_health_and_infer(report: dict[str, Any]) -> None:
    assert report["live"] is True
    assert report["health"] in (1, "SERVING")
    assert report["infer"] == [1.5, -2.0]
    assert report["large"] == sum(index % 97 for index in range(500_000))


def test_calls_side_by_side_get_their_own_answers(report: dict[str, Any]) -> None:
    assert report["many"] == list(range(300))


def test_errors_have_codes_and_words(report: dict[str, Any]) -> None:
    assert report["unknown"]["code"] == 5
    assert "'nope' is not found" in report["unknown"]["details"]


def test_deadline_and_cancellation(report: dict[str, Any]) -> None:
    assert report["deadline"] == 4
    assert report["cancelled"] == 1
    assert report["after"] == [7.0]


def test_metadata_both_ways(report: dict[str, Any]) -> None:
    assert "dur=" in report["timing"]["server-timing"]


def test_a_stream_answers_in_order_and_keeps_its_errors_inside(report: dict[str, Any]) -> None:
    stream = report["stream"]
    assert stream["code"] == 0
    assert [answer["id"] for answer in stream["answers"]] == [f"r{index}" for index in range(50)] + ["bad"]
    assert [bool(answer["error"]) for answer in stream["answers"]] == [False] * 50 + [True]
