"""``isochrone serve`` as a process, started with command lines that were written for tritonserver."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from sample_models import write_config, write_models, write_python
from server_process import StartServer

#: The container command of a widely copied deployment guide, as it stands there.
CONTAINER = (
    "--log-verbose=1",
    "--backend-directory=/opt/tritonserver/backends",
    "--grpc-infer-allocation-pool-size=64",
    "--http-thread-count=8",
    "--strict-model-config=true",
    "--allow-grpc=true",
    "--allow-http=true",
)

SHOW = """
    import json
    import numpy as np

    class Model:
        def infer(self, inputs, parameters):
            text = json.dumps({name: value for name, value in parameters.items() if "my_" in name})
            yield {"Y": np.array([text.encode()], dtype=object)}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = write_models(tmp_path_factory.mktemp("triton") / "models", "add_sub")
    write_config(
        repository / "show",
        """
        backend: "python"
        model_transaction_policy { decoupled: true }
        input { name: "X" data_type: TYPE_FP32 dims: [1] }
        output { name: "Y" data_type: TYPE_STRING dims: [1] }
        """,
    )
    write_python(repository / "show", SHOW)
    return repository


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository without models: ``start_server`` names one, and the command lines here name their own."""
    return tmp_path_factory.mktemp("empty")


def get(address: str, path: str, **headers: str) -> tuple[int, Any]:
    return call("GET", address, path, None, headers)


def post(address: str, path: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    return call("POST", address, path, json.dumps(body).encode(), headers or {})


def call(method: str, address: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{address}{path}", body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_a_containers_command_line_starts_the_worker(server_factory: StartServer, nothing: Path, models: Path) -> None:
    with server_factory(nothing, f"--model-repository={models}", *CONTAINER) as server:
        assert get(server.http_url, "/v2/models/add_sub/ready")[0] == 200
        events = [event["event"] for event in server.log_events()]
    for flag in ("backend-directory", "grpc-infer-allocation-pool-size", "http-thread-count", "strict-model-config"):
        assert sum(event.startswith(f"--{flag} has no effect: ") for event in events) == 1, flag


def test_flags_and_values_as_separate_words(server_factory: StartServer, nothing: Path, models: Path) -> None:
    words = ("--model-store", str(models), "--allow-metrics", "false", "--id", "joe", "--http-thread-count", "2")
    words += ("--model-control-mode", "explicit", "--load-model", "*", "--strict-readiness", "1")
    with server_factory(nothing, *words) as server:
        assert get(server.http_url, "/v2")[1]["name"] == "joe"
        assert get(server.http_url, "/v2/models/add_sub/ready")[0] == 200
        assert not server.metrics_port


def test_restricted_apis_and_trace_settings(server_factory: StartServer, models: Path) -> None:
    flags = (
        "--http-restricted-api=model-config:key=http",
        "--grpc-restricted-protocol=metadata:key=grpc",
        "--trace-config=rate=7",
        "--trace-config=triton,file=/tmp/none.json",
    )
    with server_factory(models, *flags) as server:
        status, answer = get(server.http_url, "/v2/models/add_sub/config")
        assert (status, answer) == (403, {"error": "This API is restricted, expecting header 'key'"})
        assert get(server.http_url, "/v2/models/add_sub/config", key="http")[0] == 200
        trace = get(server.http_url, "/v2/trace/setting")[1]
        assert trace["trace_rate"] in ("7", ["7"])
        with grpc.insecure_channel(server.grpc_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.ServerMetadata(service_pb2.ServerMetadataRequest())
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert refused.value.details() == (
                "This protocol is restricted, expecting header 'triton-grpc-protocol-key'"
            )
            assert stub.ServerLive(service_pb2.ServerLiveRequest()).live
            metadata = (("triton-grpc-protocol-key", "grpc"),)
            assert stub.ServerMetadata(service_pb2.ServerMetadataRequest(), metadata=metadata).name


def test_headers_become_parameters(server_factory: StartServer, models: Path) -> None:
    patterns = ("--http-header-forward-pattern=my_.*", "--grpc-header-forward-pattern=my_.*")
    with server_factory(models, *patterns) as server:
        for value in ("one", "two"):
            _, answer = post(server.http_url, "/v2/models/show/generate", {"X": 1.0}, {"My_A": value, "Other": "x"})
            assert json.loads(answer["Y"]) == {"my_a": value}
        assert json.loads(post(server.http_url, "/v2/models/show/generate", {"X": 1.0})[1]["Y"]) == {}
        assert streamed(server.grpc_url, {"my_b": "y", "other": "x"}) == {"my_b": "y"}


def streamed(address: str, headers: dict[str, str]) -> Any:
    answers: list[Any] = []
    with triton_grpc.InferenceServerClient(address) as client:
        client.start_stream(lambda result, error: answers.append(error or result), headers=headers)
        given = triton_grpc.InferInput("X", [1], "FP32")
        given.set_data_from_numpy(np.ones(1, np.float32))
        client.async_stream_infer("show", [given])
        client.stop_stream()
    return json.loads(answers[0].as_numpy("Y")[0])


def test_the_log_goes_where_and_as_the_flags_say(models: Path, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    broken = write_models(tmp_path / "broken", "add_sub")
    (broken / "add_sub" / "1" / "model.onnx").write_text("no model")
    ports = ("--http-port=0", "--grpc-port=0", "--metrics-port=0", "--http-thread-count=2")
    quiet = run(broken, *ports, f"--log-file={log}", "--log-info=false", "--log-warning=0", "--log-format=ISO8601")
    assert quiet.returncode == 1
    lines = log.read_text().splitlines()
    assert lines
    assert all("model failed to load" in line for line in lines)
    assert all(line.index("Z") == len("2026-01-01T00:00:00") for line in lines)
    assert "model failed to load" not in quiet.stderr
    for flag, message in (
        ("--log-format=novel", "log_format: expected one of default, ISO8601"),
        (f"--log-file={tmp_path / 'missing' / 'server.log'}", "--log-file: cannot write to"),
    ):
        refused = run(models, flag)
        assert refused.returncode == 1
        assert message in refused.stderr


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--allow-sagemaker=true", "--allow-sagemaker=true is refused: there is no SageMaker endpoint"),
        ("--http-thread-count=many", "--http-thread-count: expected an integer, given 'many'"),
        ("--http-restricted-api=everything:a=b", "--http-restricted-api: expected APIs out of health"),
        ("--trace-config=rate=often", "trace setting 'trace_rate': expected one integer"),
        ("--cache-config=redis,host=localhost", "--cache-config: expected local,size=BYTES"),
        ("--nonsense", "--nonsense"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(models: Path, flag: str, message: str) -> None:
    result = run(models, flag)
    assert result.returncode in (1, 2)
    # Terminals are narrow, and click breaks its lines.
    assert message in " ".join(result.stderr.replace("\u2502", " ").split())


def run(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isochrone", "serve", str(repository), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_tls_on_the_grpc_port_alone(server_factory: StartServer, models: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    files = (f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}", f"--grpc-root-cert={certificate}")
    with server_factory(models, "--grpc-use-ssl=true", *files) as server:
        assert get(server.http_url, "/v2/health/ready")[0] == 200
        assert is_live(server.grpc_url, grpc.ssl_channel_credentials(certificate.read_bytes()))
    with server_factory(models, "--grpc-use-ssl-mutual=1", *files) as server:
        own = grpc.ssl_channel_credentials(certificate.read_bytes(), key.read_bytes(), certificate.read_bytes())
        assert is_live(server.grpc_url, own)
        assert not is_live(server.grpc_url, grpc.ssl_channel_credentials(certificate.read_bytes()))


def is_live(address: str, credentials: grpc.ChannelCredentials) -> bool:
    with grpc.secure_channel(address, credentials) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            return bool(stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=60).live)
        except grpc.RpcError:
            return False
