"""A fleet through ``isochrone up --engine ray`` on a cluster of several nodes.

Controllers and gateways stay on the first node, so that clients find them; workers are spread over all nodes. Must
never leave a process behind: the supervisor gets SIGTERM, and the cluster ends what is left.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from bench.control.etcd_cluster import EtcdCluster
from bench.control.fleet_run import Shape, fleet_yaml
from bench.control.running_fleet import CONTROLLER, GATEWAY, PROBES, WORKER, Part, RunningFleet
from bench.engines.ray_cluster import RayNodes
from bench.ports import ports_in_a_row

_STOP_SECONDS = 60.0
#: The label of the first node.
EDGE = "site=edge"


class RayFleet(RunningFleet):
    """``with RayFleet(...) as fleet``: serving when the block begins."""

    def __init__(self, directory: Path, repository: Path, shape: Shape, cluster: RayNodes, etcd: EtcdCluster) -> None:
        self.cluster = cluster
        self._directory = directory
        first = ports_in_a_row(shape.controllers + 2 * shape.gateways)
        ports = {CONTROLLER: first, GATEWAY: first + shape.controllers, WORKER: 0}
        ports["metrics"] = ports[GATEWAY] + shape.gateways
        document: dict[str, Any] = yaml.safe_load(fleet_yaml(shape, repository, ports))
        document["store"]["url"] = etcd.url
        label, _, value = EDGE.partition("=")
        pinned = {"cpus": 0.1, "node_labels": {label: value}, "placement": "any"}
        document["control"] |= {"listen": f"0.0.0.0:{ports[CONTROLLER]}", **pinned}
        document["gateways"]["gw"] |= {"listen": f"0.0.0.0:{ports[GATEWAY]}", **pinned}
        self.workers = shape.workers
        self.document = document
        self.file = directory / "fleet.yaml"
        self.log_path = directory / "up.log"
        self.supervisor: subprocess.Popen[bytes] | None = None
        head = cluster.head.address
        names = ["gw"] if shape.gateways == 1 else [f"gw-{number}" for number in range(1, shape.gateways + 1)]
        super().__init__(
            [
                *(Part(f"control-{n + 1}", CONTROLLER, f"{head}:{first + n}") for n in range(shape.controllers)),
                *(Part(name, GATEWAY, f"{head}:{ports[GATEWAY] + n}") for n, name in enumerate(names)),
            ]
        )

    def __enter__(self) -> RayFleet:
        self._directory.mkdir(parents=True, exist_ok=True)
        self.write()
        self.start_supervisor()
        try:
            self._wait_for_controllers()
            self.wait_serving(120.0)
            self.wait_capacity(60.0)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        process, self.supervisor = self.supervisor, None
        if process is not None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
            process.kill()
            process.wait()

    @property
    def command_environment(self) -> dict[str, str]:
        """Of ``isochrone`` commands without ``--api``: they find this fleet."""
        return {**self.cluster.environment, "XDG_STATE_HOME": str(self._directory / "xdg")}

    def write(self) -> None:
        self.file.write_text(yaml.safe_dump(self.document, sort_keys=False))

    def start_supervisor(self, state: str = "state") -> None:
        """``state``: its directory, which no two supervisors of one machine can share."""
        words = [*self.cluster.head.prefix, sys.executable, "-m", "isochrone", "up", str(self.file)]
        words += ["--engine", "ray", "--address", self.cluster.address, "--state", str(self._directory / state)]
        with self.log_path.open("ab") as log:
            self.supervisor = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.command_environment,
                start_new_session=True,
            )

    def kill_supervisor(self) -> None:
        assert self.supervisor is not None
        self.supervisor.kill()
        self.supervisor.wait()

    def pid(self, name: str) -> int | None:
        for node in self.cluster.places:
            for each in self.cluster.processes_on(node):
                with contextlib.suppress(psutil.NoSuchProcess):
                    words = each.cmdline()
                    if words[words.index("--name") + 1] == name:
                        return each.pid
        return None

    def revive(self, name: str) -> None:
        """The engine restarts its processes."""

    def scale(self, workers: int) -> None:
        command = [*self.cluster.head.prefix, sys.executable, "-m", "isochrone", "scale", "cpu", str(workers), "--yes"]
        command += ["--api", f"http://{self.of(CONTROLLER)[0].address}"]
        subprocess.run(command, env=self.command_environment, check=True, stdout=subprocess.DEVNULL)

    def nodes_of_workers(self) -> dict[str, str]:
        """Worker → address of its node, as registered."""
        return {each["name"]: each["address"].rpartition(":")[0] for each in self.api.status()["workers"]}

    def capacity(self) -> int:
        """Workers that serve now."""
        return sum(self._serves_at(each["address"]) for each in self.api.status()["workers"])

    def wait_capacity(self, timeout_seconds: float, workers: int | None = None) -> float:
        """Until every worker serves; seconds it took."""
        began = time.monotonic()
        while self.capacity() != (self.workers if workers is None else workers):
            if time.monotonic() > began + timeout_seconds:
                raise TimeoutError(f"{self.capacity()} workers serve:\n{self.log_tail()}")
            time.sleep(0.02)
        return time.monotonic() - began

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _serves_at(self, address: str) -> bool:
        try:
            return httpx.get(f"http://{address}{PROBES[WORKER]}", timeout=0.5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def _wait_for_controllers(self, timeout_seconds: float = 90.0) -> None:
        ends = time.monotonic() + timeout_seconds
        while not all(self.responds(part.name) for part in self.of(CONTROLLER)):
            ended = self.supervisor is None or self.supervisor.poll() is not None
            if ended or time.monotonic() > ends:
                raise TimeoutError(f"the controllers do not answer:\n{self.log_tail()}")
            time.sleep(0.05)
