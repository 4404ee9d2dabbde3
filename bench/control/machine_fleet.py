"""A fleet of many machines: every process, etcd's members too, in a network namespace of its own.

No supervisor: on real machines each has its own. Here this class starts each process, and again when ``revive`` is
called. The store is etcd, whose members it gets; a file cannot be shared over a network that is cut.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from bench.control.etcd_cluster import EtcdCluster, Member
from bench.control.fleet_run import Shape, fleet_yaml
from bench.control.machines import Machine, Network
from bench.control.running_fleet import CONTROLLER, ETCD, GATEWAY, WORKER, Part, RunningFleet

_PORTS = {CONTROLLER: 8003, GATEWAY: 8000, WORKER: 8000}
_STOP_SECONDS = 10.0


def machine_names(shape: Shape, members: int) -> dict[str, str]:
    """Machine → role."""
    return {
        **{f"etcd-{n + 1}": ETCD for n in range(members)},
        **{f"control-{n + 1}": CONTROLLER for n in range(shape.controllers)},
        **{f"gw-{n + 1}": GATEWAY for n in range(shape.gateways)},
        **{f"cpu-{n + 1}": WORKER for n in range(shape.workers)},
    }


def etcd_members(network: Network) -> list[Member]:
    return [
        Member(machine.name, f"{machine.address}:2379", f"{machine.address}:2380", machine.prefix)
        for machine in network.machines.values()
        if machine.name.startswith("etcd-")
    ]


class MachineFleet(RunningFleet):
    """``with MachineFleet(...) as fleet``: serving when the block begins."""

    can_cut = True

    def __init__(self, directory: Path, repository: Path, shape: Shape, network: Network, etcd: EtcdCluster) -> None:
        self.shape = replace(shape, store=etcd.url)
        self._directory = directory
        self._repository = repository
        self._network = network
        self._etcd = etcd
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        roles = machine_names(shape, 0)
        parts = [Part(name, role, f"{self._machine(name).address}:{_PORTS[role]}") for name, role in roles.items()]
        super().__init__([*parts, *etcd.parts])

    def __enter__(self) -> MachineFleet:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            for role in (CONTROLLER, WORKER, GATEWAY):
                for part in self.of(role):
                    self.revive(part.name)
            # No supervisor starts processes by this file, so its ports only have to differ from each other.
            text = fleet_yaml(self.shape, self._repository, {**_PORTS, WORKER: 0, "metrics": 9000})
            self._wait_for_controllers()
            self.api.apply(text, str(self._directory))
            self.wait_serving(90)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        for process in self._processes.values():
            process.terminate()
        ends = time.monotonic() + _STOP_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.1, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def pid(self, name: str) -> int | None:
        if self.parts[name].role == ETCD:
            return self._etcd.pid(name)
        process = self._processes.get(name)
        return process.pid if process is not None and process.poll() is None else None

    def revive(self, name: str) -> None:
        if self.pid(name) is not None:
            return
        if self.parts[name].role == ETCD:
            self._etcd.start(name)
            return
        command = [*self._machine(name).prefix, sys.executable, "-m", "isochrone", *self._words(self.parts[name])]
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def cut(self, name: str) -> None:
        self._network.cut(name)

    def join(self, name: str) -> None:
        self._network.join(name)

    def _machine(self, name: str) -> Machine:
        return self._network.machines[name]

    def _words(self, part: Part) -> list[str]:
        identity = ["--store", self.shape.store, "--fleet", "proof", "--name", part.name]
        host = self._machine(part.name).address
        if part.role == CONTROLLER:
            return ["control", *identity, "--listen", part.address]
        if part.role == GATEWAY:
            return ["gateway", "--listen", part.address, "--metrics-port", "9000", *identity]
        ports = ["--http-port", "8000", "--grpc-port", "8001", "--metrics-port", "8002"]
        serve = ["serve", str(self._repository), "--host", host, *ports, "--model-control-mode", "explicit"]
        return [*serve, *identity, "--pool", "cpu", "--device", "cpu"]

    def _wait_for_controllers(self, timeout_seconds: float = 30.0) -> None:
        ends = time.monotonic() + timeout_seconds
        while not all(self.responds(part.name) for part in self.of(CONTROLLER)):
            if time.monotonic() > ends:
                raise TimeoutError(f"the controllers do not answer; their logs are in {self._directory}")
            time.sleep(0.05)
