"""The interface of a fleet under test: its processes' names, roles, pids and addresses, and its API.

``supervised_fleet`` runs one through ``isochrone up``; ``machine_fleet`` gives each process a network of its own. Must
never signal a process that the fleet did not start.
"""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import httpx

from bench.control.control_api import ControlApi
from bench.control.models import MODELS, SOLO

GATEWAY, WORKER, CONTROLLER, ETCD = "gateway", "worker", "controller", "etcd"
#: The check that a process of a role works.
PROBES = {
    GATEWAY: f"/v2/models/{SOLO}/ready",
    WORKER: f"/v2/models/{SOLO}/ready",
    CONTROLLER: "/v1/health",
    ETCD: "/health",
}


@dataclass(frozen=True)
class Part:
    """One process of a fleet."""

    name: str
    role: str
    #: HOST:PORT, the same after every restart.
    address: str


class RunningFleet(ABC):
    """A fleet that serves the models of ``models.py``."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts: Mapping[str, Part] = {part.name: part for part in parts}
        self.api = ControlApi([part.address for part in self.of(CONTROLLER)])
        self._client = httpx.Client(timeout=2.0, trust_env=False)

    #: Whether ``cut`` and ``join`` work.
    can_cut = False

    def of(self, role: str) -> list[Part]:
        return [part for part in self.parts.values() if part.role == role]

    @property
    def gateways(self) -> list[str]:
        return [part.address for part in self.of(GATEWAY)]

    @abstractmethod
    def pid(self, name: str) -> int | None:
        """Of the process as it is now; None: it is not running."""

    def cut(self, name: str) -> None:
        """Cut the process off from the network, in both directions."""
        raise NotImplementedError(f"{type(self).__name__} has no network to cut off {name} from")

    def join(self, name: str) -> None:
        raise NotImplementedError(f"{type(self).__name__} has no network to join {name} to")

    @abstractmethod
    def revive(self, name: str) -> None:
        """Restart a process that was killed."""

    def signal(self, name: str, number: signal.Signals) -> int:
        """Send a signal; return the pid, 0 if there was none."""
        pid = self.pid(name)
        if pid is None:
            return 0
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return 0
        return pid

    def responds(self, name: str) -> bool:
        """Whether the process works; of a worker: whether its models are loaded."""
        part = self.parts[name]
        try:
            return self._client.get(f"http://{part.address}{PROBES[part.role]}").status_code == 200
        except httpx.TransportError:
            return False

    def wait_serving(self, timeout_seconds: float = 120.0) -> None:
        """Until every model is committed and every gateway serves it."""
        ends = time.monotonic() + timeout_seconds
        while not self._serves():
            if time.monotonic() > ends:
                raise TimeoutError(f"the fleet does not serve after {timeout_seconds:.0f} s: {self.api.status()}")
            time.sleep(0.05)

    def close(self) -> None:
        self.api.close()
        self._client.close()

    def _serves(self) -> bool:
        status = self.api.status()
        served = {model["name"] for model in status["models"] if model["version"]}
        there = {worker["name"] for worker in status["workers"]}
        return (
            served >= set(MODELS)
            and not status["rollouts"]
            and there >= {part.name for part in self.of(WORKER)}
            and all(self.responds(part.name) for part in (*self.of(GATEWAY), *self.of(WORKER)))
        )
