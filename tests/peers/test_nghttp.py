"""nghttp, h2load and wrk against our worker: streams side by side, trailers, thousands of requests, no failure."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2

from server_process import ServerProcess

pytestmark = pytest.mark.peers

BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [64], "datatype": "FP32", "data": [0.5] * 64}]})
COUNT = 2000


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.fixture
def json_body(tmp_path: Path) -> Path:
    path = tmp_path / "body.json"
    path.write_text(BODY)
    return path


@pytest.fixture
def grpc_body(tmp_path: Path) -> Path:
    request = service_pb2.ModelInferRequest(model_name="identity")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[64])
    request.raw_input_contents.append(b"\0" * 256)
    payload = request.SerializeToString()
    path = tmp_path / "body.grpc"
    path.write_bytes(b"\0" + len(payload).to_bytes(4, "big") + payload)
    return path


def test_nghttp_gets_and_posts(worker: ServerProcess, json_body: Path) -> None:
    seen = run("nghttp", "-v", f"http://{worker.http_url}/v2/health/ready")
    assert ":status: 200" in seen
    assert "error_code=NO_ERROR" in seen
    url = f"http://{worker.http_url}/v2/models/identity/infer"
    answer = json.loads(run("nghttp", "-H:method: POST", "-d", str(json_body), url))
    assert answer["outputs"][0]["data"] == [0.5] * 64


def test_nghttp_many_streams_and_padding(worker: ServerProcess, json_body: Path) -> None:
    url = f"http://{worker.http_url}/v2/models/identity/infer"
    seen = run("nghttp", "-v", "-n", "-m", "50", "-b", "64", "-H:method: POST", "-d", str(json_body), url)
    assert seen.count(":status: 200") == 50
    assert "RST_STREAM" not in seen


def test_nghttp_small_windows_and_tables(worker: ServerProcess, json_body: Path) -> None:
    url = f"http://{worker.http_url}/v2/models/identity/infer"
    small = ("-w", "10", "-W", "12", "-c", "0", "--max-concurrent-streams", "1")
    answer = json.loads(run("nghttp", *small, "-H:method: POST", "-d", str(json_body), url))
    assert answer["outputs"][0]["shape"] == [64]


def test_nghttp_sends_and_sees_trailers(worker: ServerProcess, grpc_body: Path) -> None:
    url = f"http://{worker.grpc_url}/inference.GRPCInferenceService/ModelInfer"
    fields = ("-H:method: POST", "-Hcontent-type: application/grpc", "-Hte: trailers", "--trailer", "x-checksum: 1")
    seen = run("nghttp", "-v", "-n", *fields, "-d", str(grpc_body), url)
    assert "grpc-status: 0" in seen


def assert_all_succeeded(report: str) -> None:
    counts = re.search(
        r"requests: (\d+) total, (\d+) started, (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, "
        r"(\d+) timeout",
        report,
    )
    assert counts is not None, report
    assert [int(number) for number in counts.groups()] == [COUNT, COUNT, COUNT, COUNT, 0, 0, 0]
    assert f"status codes: {COUNT} 2xx, 0 3xx, 0 4xx, 0 5xx" in report


def test_h2load_rest(worker: ServerProcess, json_body: Path) -> None:
    url = f"http://{worker.http_url}/v2/models/identity/infer"
    assert_all_succeeded(run("h2load", "-n", str(COUNT), "-c", "4", "-m", "32", "-d", str(json_body), url))


def test_h2load_over_http1(worker: ServerProcess, json_body: Path) -> None:
    url = f"http://{worker.http_url}/v2/models/identity/infer"
    assert_all_succeeded(run("h2load", "--h1", "-n", str(COUNT), "-c", "4", "-m", "8", "-d", str(json_body), url))


def test_h2load_grpc(worker: ServerProcess, grpc_body: Path) -> None:
    url = f"http://{worker.grpc_url}/inference.GRPCInferenceService/ModelInfer"
    fields = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    assert_all_succeeded(run("h2load", "-n", str(COUNT), "-c", "4", "-m", "32", *fields, "-d", str(grpc_body), url))


def test_h2load_over_tls(tls_worker: ServerProcess, json_body: Path) -> None:
    url = f"https://{tls_worker.http_url}/v2/models/identity/infer"
    report = run("h2load", "-n", str(COUNT), "-c", "4", "-m", "32", "-d", str(json_body), url)
    assert "Application protocol: h2" in report
    assert_all_succeeded(report)


def test_wrk_sees_no_failure(worker: ServerProcess, tmp_path: Path) -> None:
    assert shutil.which("wrk"), "wrk is missing: make peers installs it"
    script = tmp_path / "infer.lua"
    script.write_text(f"wrk.method = 'POST'\nwrk.body = [[{BODY}]]\n")
    url = f"http://{worker.http_url}/v2/models/identity/infer"
    report = run("wrk", "-t1", "-c16", "-d2s", "-s", str(script), url)
    assert "Non-2xx" not in report
    assert "Socket errors" not in report
    assert int(re.search(r"(\d+) requests in", report)[1]) > 1000  # type: ignore[index]
