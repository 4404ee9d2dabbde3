"""A fleet through ``isochrone up``, as users run it: one supervisor, its processes found below it.

Kill one, and the supervisor starts it again. The ports are chosen here, so that a process is found again at its
address. Must never leave a process behind: the supervisor gets SIGTERM, then what is left of its tree is killed.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import yaml

from bench.control.etcd_cluster import EtcdCluster
from bench.control.models import MODELS, PIPELINES
from bench.control.running_fleet import CONTROLLER, ETCD, GATEWAY, WORKER, Part, RunningFleet
from bench.ports import ports_in_a_row
from bench.worker.peers.process import HOST

_STOP_SECONDS = 40.0


@dataclass(frozen=True)
class Shape:
    """The size of a fleet and further keys of its file."""

    workers: int = 4
    gateways: int = 2
    controllers: int = 2
    store: str = ""
    lease_seconds: float = 2.0
    #: Keys laid over each model's; further models of the repository by their names.
    models: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Keys laid over each pool's.
    pool: Mapping[str, Any] = field(default_factory=dict)
    #: Further pools, by name, each as fleet.yaml has it.
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    version: str = "1"


def fleet_yaml(shape: Shape, repository: Path | str, ports: Mapping[str, int]) -> str:
    """The file. ``ports``: the first of the controllers, gateways, metrics pages and workers."""
    pool = {"workers": shape.workers, "device": "cpu", "first_port": ports[WORKER], **shape.pool}
    document: dict[str, Any] = {
        "name": "proof",
        "repository": str(repository),
        "store": {"url": shape.store or "sqlite:fleet.db", "lease_seconds": shape.lease_seconds},
        "control": {"listen": f"{HOST}:{ports[CONTROLLER]}", "count": shape.controllers},
        "gateways": {
            "gw": {
                "listen": f"{HOST}:{ports[GATEWAY]}",
                "count": shape.gateways,
                "metrics_port": ports["metrics"],
            }
        },
        "pools": {"cpu": pool, **{name: dict(keys) for name, keys in shape.pools.items()}},
        "models": {model: _model(model, shape) for model in dict.fromkeys((*MODELS, *shape.models))},
    }
    return yaml.safe_dump(document, sort_keys=False)


def _model(name: str, shape: Shape) -> dict[str, Any]:
    keys: dict[str, Any] = {"version": shape.version}
    if name in PIPELINES:
        keys["with"] = list(PIPELINES[name])
    return {**keys, **shape.models.get(name, {})}


class SupervisedFleet(RunningFleet):
    """``with SupervisedFleet(directory, repository, shape) as fleet``: serving when the block begins."""

    def __init__(
        self, directory: Path, repository: Path | str, shape: Shape | None = None, etcd: EtcdCluster | None = None
    ) -> None:
        shape = shape or Shape()
        self.shape = replace(shape, store=etcd.url) if etcd is not None else shape
        self._etcd = etcd
        self._directory = directory
        counts = {CONTROLLER: self.shape.controllers, GATEWAY: self.shape.gateways, "metrics": self.shape.gateways}
        counts[WORKER] = 3 * self.shape.workers
        first = ports_in_a_row(sum(counts.values()))
        self.ports: dict[str, int] = {}
        for role, count in counts.items():
            self.ports[role] = first
            first += count
        self.file = directory / "fleet.yaml"
        self.text = fleet_yaml(self.shape, repository, self.ports)
        self.log_path = directory / "up.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: dict[str, psutil.Process] = {}
        super().__init__([*_parts(self.shape, self.ports), *(etcd.parts if etcd is not None else ())])

    def __enter__(self) -> SupervisedFleet:
        self._directory.mkdir(parents=True, exist_ok=True)
        self.file.write_text(self.text)
        command = [sys.executable, "-m", "isochrone", "up", str(self.file), "--state", str(self._directory / "state")]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self.wait_serving()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *_: object) -> None:
        if kind is not None:
            # What the supervisor saw is often the cause: which process ended, and when.
            print(self.log_tail(), file=sys.stderr)
        self.close()
        process, self._process = self._process, None
        if process is None:
            return
        tree = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        for one in psutil.wait_procs(tree, timeout=2)[1]:
            one.kill()
        process.kill()
        process.wait()

    def wait_serving(self, timeout_seconds: float = 120.0) -> None:
        process = self._process
        ends = time.monotonic() + timeout_seconds
        while process is not None and not self.responds(self.of(CONTROLLER)[0].name):
            if process.poll() is not None:
                raise RuntimeError(f"isochrone up ended with {process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > ends:
                raise TimeoutError(f"no controller answers after {timeout_seconds:.0f} s:\n{self.log_tail()}")
            time.sleep(0.05)
        super().wait_serving(timeout_seconds)

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def pid(self, name: str) -> int | None:
        if self._etcd is not None and self.parts[name].role == ETCD:
            return self._etcd.pid(name)
        known = self._pids.get(name)
        if known is None or not _is_running(known):
            found = self._find(name)
            if found is None:
                return None
            self._pids[name] = known = found
        return known.pid

    def command_line(self, name: str) -> list[str]:
        """Of the present process; None: it does not run."""
        found = self._find(name)
        try:
            return [] if found is None else found.cmdline()
        except psutil.Error:
            return []

    def revive(self, name: str) -> None:
        """The supervisor restarts its processes; etcd members are not among them."""
        if self._etcd is not None and self.parts[name].role == ETCD and self._etcd.pid(name) is None:
            self._etcd.start(name)

    def _find(self, name: str) -> psutil.Process | None:
        """The first process below the supervisor with this name; its own children come after it."""
        if self._process is None:
            return None
        try:
            children = psutil.Process(self._process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        return next((child for child in children if _is_running(child) and _is_named(child, name)), None)


def _parts(shape: Shape, ports: Mapping[str, int]) -> list[Part]:
    gateways = ["gw"] if shape.gateways == 1 else [f"gw-{number}" for number in range(1, shape.gateways + 1)]
    return [
        *(
            Part(f"control-{index + 1}", CONTROLLER, f"{HOST}:{ports[CONTROLLER] + index}")
            for index in range(shape.controllers)
        ),
        *(Part(name, GATEWAY, f"{HOST}:{ports[GATEWAY] + index}") for index, name in enumerate(gateways)),
        *(Part(f"cpu-{index + 1}", WORKER, f"{HOST}:{ports[WORKER] + 3 * index}") for index in range(shape.workers)),
    ]


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_named(process: psutil.Process, name: str) -> bool:
    try:
        words = process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    # parent_death.py becomes the process: a signal before that would hit only its start.
    return ("--name", name) in itertools.pairwise(words) and not any("parent_death.py" in word for word in words)
