"""The command lines of rendered pods, run as processes on a real etcd, are a fleet: it takes the mounted fleet.yaml,
answers, and each process passes its probes and ends within its grace period.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
from collections.abc import Iterator

import pytest
from pod_processes import Pod, command, rendered_pods, wait_for_pods

pytestmark = pytest.mark.peers

FLEET = """\
name: pods
repository: ./models
store: {{url: "{store}"}}
gateways:
  gw: {{count: 1}}
pools:
  cpu: {{workers: 2}}
kubernetes: {{require_secure: false}}
"""


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pod]]:
    with rendered_pods(tmp_path_factory.mktemp("pods"), FLEET) as started:
        yield started


def test_the_rendered_processes_are_a_fleet(pods: dict[str, Pod]) -> None:
    assert sorted(pods) == ["control-0", "cpu-1", "cpu-2", "gw-1"]
    for probe in ("startupProbe", "livenessProbe"):
        wait_for_pods(lambda probe=probe: all(pod.passes(probe) for pod in pods.values()), probe, pods)
    assert not pods["gw-1"].passes("readinessProbe")
    applied = command(pods, "apply", str(pods["control-0"].log.parent / "fleet.yaml"), "--yes")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    wait_for_pods(lambda: all(pod.passes("readinessProbe") for pod in pods.values()), "readinessProbe", pods)

    status = json.loads(command(pods, "status", "--json").stdout)
    assert sorted(worker["name"] for worker in status["workers"]) == ["cpu-1", "cpu-2"]
    assert [gateway["name"] for gateway in status["gateways"]] == ["gw-1"]
    ones = [1.0] * 16
    inputs = [{"name": f"INPUT{n}", "datatype": "FP32", "shape": [1, 16], "data": ones} for n in range(2)]
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", pods["gw-1"].ports["http"], timeout=10)) as calls:
        # A worker that ends as in a rolling update fails no request.
        for number in range(200):
            if number == 50:
                pods["cpu-2"].process.send_signal(signal.SIGTERM)
            calls.request("POST", "/v2/models/add_sub/infer", json.dumps({"inputs": inputs}))
            answer = calls.getresponse()
            body = json.loads(answer.read())
            assert answer.status == 200, body
            assert body["outputs"][0]["data"][0] == 2.0
    assert pods["cpu-2"].process.wait(pods["cpu-2"].grace) == 0
    for name in ("gw-1", "cpu-1", "control-0"):
        pods[name].end()
