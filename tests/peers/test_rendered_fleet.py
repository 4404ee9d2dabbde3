"""The command lines of rendered pods, run as processes on a real etcd, are a fleet: it takes the mounted fleet.yaml,
answers, and each process passes its probes and ends within its grace period.

One machine has one set of ports, so that each process gets free ones; everything else is as rendered.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.engines.kubernetes.render.command_lines import DIRECTORY
from isochrone.engines.kubernetes.render.fleet_objects import parts
from logged_ports import logged_ports
from sample_models import write_models

pytestmark = pytest.mark.peers

ISOCHRONE = str(Path(sys.executable).with_name("isochrone"))
SECONDS = 60
FLEET = """\
name: pods
repository: ./models
store: {{url: "{store}"}}
gateways:
  gw: {{count: 1}}
pools:
  cpu: {{workers: 2}}
"""


class Pod:
    """The container of a pod, as a process of this machine."""

    def __init__(self, name: str, template: dict[str, Any], directory: Path) -> None:
        self.container = template["spec"]["containers"][0]
        self.grace = template["spec"]["terminationGracePeriodSeconds"]
        self.log = directory / f"{name}.log"
        # All pods are on one machine here: any free ports, which the log names.
        own = {str(each["containerPort"]) for each in self.container["ports"]}
        words = [word.replace("$(POD_NAME)", name) for word in self.container["args"]]
        words = [word.replace(str(DIRECTORY), str(directory)) for word in words]
        words = ["0" if word in own else _listening(word, own) for word in words]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [ISOCHRONE, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    @property
    def ports(self) -> dict[str, int]:
        """By the name in the pod: the log calls the first port of a gateway and of a controller by their role."""
        found = logged_ports(self.log)
        return {"http" if name in ("gateway", "control") else name: port for name, port in found.items()}

    def passes(self, probe: str) -> bool:
        """Whether a probe of the pod succeeds now."""
        asked, ports = self.container[probe]["httpGet"], self.ports
        if asked["port"] not in ports:
            return False
        with (
            contextlib.suppress(OSError),
            contextlib.closing(http.client.HTTPConnection("127.0.0.1", ports[asked["port"]], timeout=30)) as connection,
        ):
            connection.request("GET", asked["path"])
            return 200 <= connection.getresponse().status < 400
        return False

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(self.grace) == 0, self.log.read_text()[-5000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _listening(word: str, own: set[str]) -> str:
    """``0.0.0.0:8003`` with any free port."""
    host, _, port = word.rpartition(":")
    return f"{host}:0" if host == "0.0.0.0" and port in own else word


def _wait(until: Callable[[], bool], what: str, pods: dict[str, Pod]) -> None:
    ends = time.monotonic() + SECONDS
    while not until():
        gone = {name: pod.log.read_text()[-2000:] for name, pod in pods.items() if pod.process.poll() is not None}
        assert not gone, gone
        assert time.monotonic() < ends, (what, {name: pod.log.read_text()[-1500:] for name, pod in pods.items()})
        time.sleep(0.05)


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Pod]]:
    directory = tmp_path_factory.mktemp("pods")
    write_models(directory / "models", "add_sub")
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(directory / "etcd", loopback_members(1)))
        text = FLEET.format(store=etcd.url)
        made = parts(parse_fleet(text, "fleet.yaml", directory), text)
        documents = [document for documents in made.values() for document in documents]
        mounted = next(each for each in documents if each["kind"] == "ConfigMap")["data"]
        for name, content in mounted.items():
            (directory / name).write_text(content)
        started = {}
        for document in documents:
            if document["kind"] not in ("StatefulSet", "Deployment"):
                continue
            for number in range(document["spec"]["replicas"]):
                # A Deployment's pods have names of their own; here any will do.
                first = document["spec"].get("ordinals", {}).get("start", 0)
                name = f"{document['metadata']['name']}-{first + number}"
                started[name] = Pod(name, document["spec"]["template"], directory)
                stack.callback(started[name].kill)
        yield started


def _run(pods: dict[str, Pod], *words: str) -> subprocess.CompletedProcess[str]:
    """A command in the controller's pod, as kubectl exec runs it."""
    api = f"http://127.0.0.1:{pods['control-0'].ports['http']}"
    return subprocess.run(
        [ISOCHRONE, *words, "--api", api],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "COLUMNS": "200"},
        check=False,
    )


def test_the_rendered_processes_are_a_fleet(pods: dict[str, Pod]) -> None:
    assert sorted(pods) == ["control-0", "cpu-1", "cpu-2", "gw-1"]
    for probe in ("startupProbe", "livenessProbe"):
        _wait(lambda probe=probe: all(pod.passes(probe) for pod in pods.values()), probe, pods)
    assert not pods["gw-1"].passes("readinessProbe")
    applied = _run(pods, "apply", str(pods["control-0"].log.parent / "fleet.yaml"), "--yes")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    _wait(lambda: all(pod.passes("readinessProbe") for pod in pods.values()), "readinessProbe", pods)

    status = json.loads(_run(pods, "status", "--json").stdout)
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
