"""Rendered pods as processes of this machine, on a real etcd: their command lines, probes and grace periods.

One machine has one set of ports, so that each process gets free ones; everything else is as rendered.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.control.etcd_cluster import EtcdCluster, loopback_members
from isochrone.control.fleet.reading.parsing import parse_fleet
from isochrone.engines.kubernetes.render.command_lines import DIRECTORY
from isochrone.engines.kubernetes.render.fleet_objects import parts
from logged_ports import logged_ports
from sample_models import write_models

ISOCHRONE = str(Path(sys.executable).with_name("isochrone"))
SECONDS = 60


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
        made = _plain if asked.get("scheme", "HTTP") == "HTTP" else _encrypted
        with contextlib.suppress(OSError), contextlib.closing(made(ports[asked["port"]])) as connection:
            connection.request("GET", asked["path"])
            return 200 <= connection.getresponse().status < 400
        return False

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(self.grace) == 0, self.log.read_text()[-5000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def _plain(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def _encrypted(port: int) -> http.client.HTTPConnection:
    """As the kubelet: it verifies no certificate, and shows none."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)


def _listening(word: str, own: set[str]) -> str:
    """``0.0.0.0:8003`` with any free port."""
    host, _, port = word.rpartition(":")
    return f"{host}:0" if host == "0.0.0.0" and port in own else word


def wait_for_pods(until: Callable[[], bool], what: str, pods: dict[str, Pod]) -> None:
    ends = time.monotonic() + SECONDS
    while not until():
        gone = {name: pod.log.read_text()[-2000:] for name, pod in pods.items() if pod.process.poll() is not None}
        assert not gone, gone
        assert time.monotonic() < ends, (what, {name: pod.log.read_text()[-1500:] for name, pod in pods.items()})
        time.sleep(0.05)


@contextlib.contextmanager
def rendered_pods(directory: Path, fleet: str) -> Iterator[dict[str, Pod]]:
    """By name. ``fleet``: its file, with {store} in place of the store's URL."""
    write_models(directory / "models", "add_sub")
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(directory / "etcd", loopback_members(1)))
        text = fleet.format(store=etcd.url)
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


def command(
    pods: dict[str, Pod], *words: str, api: str = "http://127.0.0.1", **variables: str
) -> subprocess.CompletedProcess[str]:
    """A command in the controller's pod, as kubectl exec runs it."""
    control = pods["control-0"]
    given = {each["name"]: each["value"] for each in control.container["env"] if "value" in each}
    own = {name: text for name, text in given.items() if name.startswith("ISOCHRONE_")}
    return subprocess.run(
        [ISOCHRONE, *words, "--api", f"{api}:{control.ports['http']}"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **own, **variables, "COLUMNS": "200"},
        check=False,
    )
