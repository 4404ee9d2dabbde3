"""curl against our worker: HTTP/1.1, HTTP/2 with prior knowledge, TLS with ALPN, large and chunked uploads."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

from server_process import ServerProcess

pytestmark = pytest.mark.peers

VERSIONS = {"--http1.1": "1.1", "--http2-prior-knowledge": "2"}
BODY = json.dumps({"inputs": [{"name": "INPUT0", "shape": [2], "datatype": "FP32", "data": [1.5, -2]}]})
METER = "\n%{http_code} %{http_version} %{num_connects}"


def curl(*arguments: str) -> tuple[bytes, int, str]:
    """Body, status and protocol version of the last transfer."""
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "20", "-w", METER, *arguments], check=True, capture_output=True, timeout=30
    )
    body, _, meter = done.stdout.rpartition(b"\n")
    status, version, _ = meter.decode().split()
    return body, int(status), version


@pytest.mark.parametrize("flag", VERSIONS)
def test_get_and_json_infer(worker: ServerProcess, flag: str) -> None:
    url = f"http://{worker.http_url}/v2"
    assert curl(flag, f"{url}/health/ready") == (b"", 200, VERSIONS[flag])
    body, status, version = curl(
        flag, "-H", "Content-Type: application/json", "-d", BODY, f"{url}/models/identity/infer"
    )
    assert (status, version) == (200, VERSIONS[flag])
    assert json.loads(body)["outputs"][0]["data"] == [1.5, -2.0]
    body, status, _ = curl(flag, "-d", BODY, f"{url}/models/nope/infer")
    assert status == 404
    assert "nope" in json.loads(body)["error"]


@pytest.mark.parametrize("flag", VERSIONS)
def test_binary_infer(worker: ServerProcess, tmp_path: Path, flag: str) -> None:
    values = np.arange(6, dtype=np.float32)
    header = json.dumps(
        {
            "inputs": [{"name": "INPUT0", "shape": [6], "datatype": "FP32", "parameters": {"binary_data_size": 24}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    (tmp_path / "body").write_bytes(header + values.tobytes())
    length = f"Inference-Header-Content-Length: {len(header)}"
    url = f"http://{worker.http_url}/v2/models/identity/infer"
    body, status, _ = curl(flag, "-H", length, "--data-binary", f"@{tmp_path / 'body'}", url)
    assert status == 200
    assert body.endswith(values.tobytes())


@pytest.mark.parametrize("flag", VERSIONS)
@pytest.mark.parametrize(
    "extra",
    [
        ("-H", "Expect: 100-continue"),
        ("-H", "Transfer-Encoding: chunked"),
        ("-H", "Expect:"),
        ("-H", "Accept-Encoding: gzip", "--compressed"),
    ],
    ids=["expect", "chunked", "plain", "compressed"],
)
def test_a_large_upload(worker: ServerProcess, tmp_path: Path, flag: str, extra: tuple[str, ...]) -> None:
    if flag != "--http1.1" and "chunked" in extra[1]:
        extra = ()  # HTTP/2 has no transfer codings
    values = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    shape = {"name": "INPUT0", "shape": [1 << 20], "datatype": "FP32"}
    header = json.dumps(
        {
            "inputs": [{**shape, "parameters": {"binary_data_size": values.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    (tmp_path / "body").write_bytes(header + values.tobytes())
    length = f"Inference-Header-Content-Length: {len(header)}"
    url = f"http://{worker.http_url}/v2/models/identity/infer"
    body, status, _ = curl(flag, *extra, "-H", length, "--data-binary", f"@{tmp_path / 'body'}", url)
    assert status == 200
    assert body.endswith(values.tobytes())


@pytest.mark.parametrize("flag", ["--http1.1", "--http2"])
def test_many_transfers_on_one_connection(tls_worker: ServerProcess, certificate: tuple[Path, Path], flag: str) -> None:
    """Over TLS: curl before 8.0 cannot use a connection of --http2-prior-knowledge twice."""
    url = f"https://{tls_worker.http_url}/v2/health/live"
    command = ["curl", "-sS", flag, "--cacert", str(certificate[0]), "-w", "%{http_code}:%{num_connects} ", *[url] * 20]
    done = subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert done.stdout.decode().split() == ["200:1", *["200:0"] * 19]


@pytest.mark.parametrize(("flag", "expected"), [("--http2", "2"), ("--http1.1", "1.1")])
def test_tls_speaks_what_alpn_chose(
    tls_worker: ServerProcess, certificate: tuple[Path, Path], flag: str, expected: str
) -> None:
    url = f"https://{tls_worker.http_url}/v2/models/identity/infer"
    body, status, version = curl(flag, "--cacert", str(certificate[0]), "-d", BODY, url)
    assert (status, version) == (200, expected)
    assert json.loads(body)["outputs"][0]["data"] == [1.5, -2.0]
