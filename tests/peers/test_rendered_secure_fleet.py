"""Rendered pods of a fleet with TLS and access rules, run as processes on a real etcd: each starts with
``--require-secure``, passes its probes without a certificate or a token, and answers only callers that it knows.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pod_processes import Pod, command, rendered_pods, wait_for_pods

from development_ca import DevelopmentCa
from isochrone.secure.access.tokens import digest_of, new_token

pytestmark = pytest.mark.peers

KEY = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
ONES = [1.0] * 16
INFER = json.dumps(
    {"inputs": [{"name": f"INPUT{n}", "datatype": "FP32", "shape": [1, 16], "data": ONES} for n in range(2)]}
)


@dataclass(frozen=True)
class Fleet:
    pods: dict[str, Pod]
    ca: DevelopmentCa
    tokens: dict[str, str]

    def infer(self, token: str = "", context: ssl.SSLContext | None = None) -> int:
        """The status of a request to the gateway."""
        port = self.pods["gw-1"].ports["http"]
        headers = {"authorization": f"Bearer {token}"} if token else {}
        connection = http.client.HTTPSConnection("localhost", port, timeout=30, context=context or self.ca.context())
        with contextlib.closing(connection):
            connection.request("POST", "/v2/models/add_sub/infer", INFER, headers)
            return connection.getresponse().status


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    directory = tmp_path_factory.mktemp("secure")
    # What cert-manager would issue: one name that all pods have, and those of callers.
    ca = DevelopmentCa(directory / "ca").issue("pods", "pods.internal", "localhost", client=True)
    certificate, key = ca.pair("pods")
    tokens = {role: new_token() for role in ("admin", "caller")}
    digests = ", ".join(f"{role}: {{sha256: {digest_of(token)}}}" for role, token in tokens.items())
    roles = ", ".join(f"{{to: ['token:{role}'], roles: [{role}]}}" for role in tokens)
    (directory / "access.yaml").write_text(f"tokens: {{{digests}}}\nassign: [{roles}]\n")
    (directory / "fleet.key").write_text(KEY)
    (directory / "fleet.key").chmod(0o600)
    # In a cluster, these files are in the mounted Secrets.
    text = f"""\
name: pods
repository: ./models
store: {{{{url: "{{store}}"}}}}
pools: {{{{cpu: {{{{workers: 2}}}}}}}}
security:
  tls: {{{{cert: {certificate}, key: {key}, ca: {ca.ca}, server_name: pods.internal}}}}
  access: {directory}/access.yaml
  key: {directory}/fleet.key
  sandbox: false
"""
    with rendered_pods(directory, text) as pods:
        yield Fleet(pods, ca, tokens)


def test_a_secure_fleet_starts_and_answers_callers_that_it_knows(fleet: Fleet) -> None:
    pods = fleet.pods
    assert all("--require-secure" in pod.container["args"] for pod in pods.values())
    for probe in ("startupProbe", "livenessProbe"):
        wait_for_pods(lambda probe=probe: all(pod.passes(probe) for pod in pods.values()), probe, pods)
    assert not pods["gw-1"].passes("readinessProbe")

    def run(*words: str, token: str) -> tuple[int, str]:
        found = command(pods, *words, api="https://localhost", ISOCHRONE_API_TOKEN=token)
        return found.returncode, found.stdout + found.stderr

    file = str(Path(pods["control-0"].log.parent / "fleet.yaml"))
    assert run("apply", file, "--yes", token=fleet.tokens["caller"])[0] != 0
    code, said = run("apply", file, "--yes", token=fleet.tokens["admin"])
    assert code == 0, said
    wait_for_pods(lambda: all(pod.passes("readinessProbe") for pod in pods.values()), "readinessProbe", pods)
    code, said = run("status", "--json", token=fleet.tokens["admin"])
    assert code == 0, said
    assert [worker["name"] for worker in json.loads(said)["workers"]] == ["cpu-1", "cpu-2"]

    assert {fleet.infer(fleet.tokens["caller"]) for _ in range(20)} == {200}
    assert fleet.infer() == 401
    assert fleet.infer(new_token()) == 401
    for pod in ("cpu-1", "cpu-2"):
        # Without TLS, and without a certificate of the fleet.
        for port in ("http", "grpc", "metrics"):
            with pytest.raises((http.client.HTTPException, OSError)):
                _status(http.client.HTTPConnection("127.0.0.1", pods[pod].ports[port], timeout=30))
            stranger = http.client.HTTPSConnection(
                "localhost", pods[pod].ports[port], timeout=30, context=fleet.ca.context()
            )
            with pytest.raises((http.client.HTTPException, OSError)):
                _status(stranger)
    for name in ("gw-1", "cpu-1", "cpu-2", "control-0"):
        pods[name].end()


def _status(connection: http.client.HTTPConnection) -> int:
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/live")
        return connection.getresponse().status
