"""``--health-port`` of servers that ask for certificates and tokens: it answers health checks, and nothing else."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from development_ca import DevelopmentCa
from gateway_process import GatewayProcess, StartGateway
from hostile_client import parse_answers, talk
from isochrone.secure.access.tokens import digest_of, new_token
from sample_models import write_models
from server_process import ServerProcess, StartServer

MODEL = "identity_int32"
INFER = b'{"inputs":[{"name":"IN","datatype":"INT32","shape":[2],"data":[1,2]}]}'
#: A body that this port does not read.
TOO_LARGE = 4096


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, server_factory: StartServer, gateway_factory: StartGateway
) -> Iterator[tuple[ServerProcess, GatewayProcess]]:
    """Both want certificates and tokens, and listen as in pods with ``--require-secure``."""
    folder = tmp_path_factory.mktemp("pods")
    token = new_token()
    (folder / "token").write_text(token)
    (folder / "token").chmod(0o600)
    access = folder / "access.yaml"
    access.write_text(
        f"tokens: {{gw: {{sha256: {digest_of(token)}}}}}\nassign: [{{to: ['token:gw'], roles: [gateway]}}]\n"
    )
    ca = DevelopmentCa(folder / "ca").issue("worker", "localhost", "127.0.0.1")
    ca.issue("gateway", "localhost", "127.0.0.1", client=True)
    guards = ["--access", str(access), "--require-secure", "--health-port", "0"]
    repository = write_models(folder / "models", MODEL)
    with (
        server_factory(repository, *ca.server_flags("worker"), *guards, "--no-sandbox") as worker,
        gateway_factory(
            [worker],
            *ca.server_flags("gateway"),
            *ca.upstream_flags("gateway"),
            *("--upstream-token-file", str(folder / "token")),
            *guards,
        ) as gateway,
    ):
        yield worker, gateway


def health_port(server: ServerProcess) -> int:
    (ready,) = (event for event in server.log_events() if event.get("event") == "ready")
    return int(ready["health"])


def status(port: int, target: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, target, body)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_it_answers_without_certificate_and_token(servers: tuple[ServerProcess, GatewayProcess]) -> None:
    worker, gateway = servers
    for path in ("live", "ready", "committed"):
        assert status(health_port(worker), f"/v2/health/{path}") == (200, b"")
    for path in ("live", "ready", "ready?verbose=1"):
        assert status(health_port(gateway), f"/v2/health/{path}") == (200, b"")
    assert status(health_port(worker), "/v2/health/live", "HEAD") == (200, b"")


def test_the_other_ports_refuse_the_same_caller(servers: tuple[ServerProcess, GatewayProcess]) -> None:
    worker, gateway = servers
    for port in (worker.http_port, worker.grpc_port, worker.metrics_port, gateway.http_port):
        with pytest.raises((http.client.HTTPException, OSError)):
            status(port, "/v2/health/live")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/"),
        ("GET", "/v2"),
        ("GET", "/v2/health"),
        ("GET", "/v2/health/"),
        ("GET", "/v2/health/../models/stats"),
        ("GET", "/v2/health%2Flive"),
        ("GET", f"/v2/models/{MODEL}"),
        ("GET", f"/v2/models/{MODEL}/ready"),
        ("POST", f"/v2/models/{MODEL}/infer"),
        ("POST", f"/v2/repository/models/{MODEL}/unload"),
        ("POST", "/v2/repository/index"),
        ("GET", "/metrics"),
        ("GET", "/flights"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
    ],
)
def test_nothing_else_is_there(servers: tuple[ServerProcess, GatewayProcess], method: str, target: str) -> None:
    for server in servers:
        assert status(health_port(server), target, method, INFER if method == "POST" else None)[0] == 404


def test_a_check_changes_nothing_and_takes_no_body(servers: tuple[ServerProcess, GatewayProcess]) -> None:
    for server in servers:
        port = health_port(server)
        for method in ("POST", "PUT", "DELETE"):
            assert status(port, "/v2/health/live", method, INFER)[0] == 405
        large = f"GET /v2/health/live HTTP/1.1\r\nhost: h\r\ncontent-length: {TOO_LARGE}\r\n\r\n".encode()
        (answer, *_) = parse_answers(talk(port, large + b"x" * TOO_LARGE))
        assert answer.status == 413


def test_credentials_do_not_matter_there(servers: tuple[ServerProcess, GatewayProcess]) -> None:
    """No caller can try tokens at this port."""
    for server in servers:
        for path, expected in (("/v2/health/ready", 200), ("/metrics", 404)):
            url = f"http://127.0.0.1:{health_port(server)}{path}"
            headers = {"authorization": f"Bearer {new_token()}", "x-isochrone-on-behalf-of": "forged"}
            assert httpx.get(url, headers=headers, timeout=60, trust_env=False).status_code == expected


def test_grpc_finds_nothing_there(servers: tuple[ServerProcess, GatewayProcess]) -> None:
    for server in servers:
        with httpx.Client(http2=True, http1=False, trust_env=False) as client:
            headers = {"content-type": "application/grpc", "te": "trailers"}
            url = f"http://127.0.0.1:{health_port(server)}/inference.GRPCInferenceService/ServerLive"
            assert client.post(url, headers=headers, content=bytes(5), timeout=60).status_code == 404


def test_it_says_when_a_gateway_is_not_ready(gateway_factory: StartGateway) -> None:
    with gateway_factory(["127.0.0.1:1"], "--health-port", "0") as gateway:
        assert status(health_port(gateway), "/v2/health/live")[0] == 200
        assert status(health_port(gateway), "/v2/health/ready")[0] == 400


def test_processes_that_share_ports_have_none(tmp_path: Path) -> None:
    repository = write_models(tmp_path / "models", MODEL)
    words = ["serve", str(repository), "--processes", "2", "--health-port", "0"]
    found = subprocess.run(
        [sys.executable, "-m", "isochrone", *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert found.returncode == 1
    assert "--health-port does not go with --processes" in found.stderr
