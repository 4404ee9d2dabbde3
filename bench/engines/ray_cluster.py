"""A Ray cluster of several nodes on this machine, each started as users start one: ``ray start --block``.

Each node has an address of its own: on the loopback interface, or in a network namespace, whose cable can be cut. A
node is lost in three ways: its raylet is killed, all its processes are stopped, or its cable is cut. Must never leave a
process behind, nor signal one that it did not start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.control.machines import Network
from bench.ports import free_ports
from bench.worker.peers.process import REPOSITORY_ROOT

_START_SECONDS = 60.0
_STOP_SECONDS = 15.0
#: Ray's smallest.
_OBJECT_STORE_BYTES = 80_000_000


@dataclass(frozen=True)
class Place:
    """Where a node runs. ``prefix`` stands before its command: a way into its network."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


def loopback_places(count: int) -> list[Place]:
    """Every address of 127.0.0.0/8 is this machine. Ray takes 127.0.0.1 for the machine's first address."""
    return [Place(f"node-{number}", f"127.0.0.{number + 10}") for number in range(1, count + 1)]


def places_of(network: Network) -> list[Place]:
    return [Place(each.name, each.address, each.prefix) for each in network.machines.values()]


class RayNodes:
    """``with RayNodes(places) as cluster``: the first place is the head."""

    def __init__(
        self,
        places: Sequence[Place],
        *,
        cpus: float = 12,
        labels: Mapping[str, str] | None = None,
        memory: Mapping[str, int] | None = None,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """``labels``: by place, as ``ray start --labels`` takes them. ``memory``: bytes it says it has."""
        self.places = {place.name: place for place in places}
        self._cpus = cpus
        self._labels = labels or {}
        self._memory = memory or {}
        self._ray = str(Path(python).parent / "ray")
        source = os.pathsep.join((str(REPOSITORY_ROOT / "src"), str(REPOSITORY_ROOT)))
        self.environment = {
            **os.environ,
            "PYTHONPATH": source,
            "RAY_USAGE_STATS_ENABLED": "0",
            **(environment or {}),
        }
        self.head = places[0]
        self.address = f"{self.head.address}:{free_ports(1)[0]}"
        # Ray's sockets are files, whose paths have at most 107 characters.
        self.directory = Path(tempfile.mkdtemp(prefix="isoray", dir="/tmp"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> RayNodes:
        try:
            for name in self.places:
                self.start(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        trees = [self._tree(name) for name in self._processes]
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        _, left = psutil.wait_procs([each for tree in trees for each in tree], timeout=_STOP_SECONDS)
        for each in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        for process in self._processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self, name: str) -> None:
        """Start a node that does not run; return when the cluster counts it."""
        place = self.places[name]
        is_head = place == self.head
        words = [*place.prefix, self._ray, "start", "--block", "--node-ip-address", place.address]
        words += ["--num-cpus", f"{self._cpus:g}", "--num-gpus", "0", "--disable-usage-stats"]
        # Ray's own choice, 10002 to 19999, is among the ports that the head and the fleets' processes are given.
        words += ["--min-worker-port", "0", "--max-worker-port", "0"]
        words += ["--object-store-memory", str(_OBJECT_STORE_BYTES), "--temp-dir", str(self.directory)]
        if is_head:
            words += ["--head", "--port", self.address.rpartition(":")[2], "--include-dashboard", "false"]
        else:
            words += ["--address", self.address]
        words += ["--labels", self._labels[name]] if name in self._labels else []
        words += ["--memory", str(self._memory[name])] if name in self._memory else []
        log_path = self.directory / f"{name}.log"
        with log_path.open("wb") as log:
            self._processes[name] = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.environment
            )
        ends = time.monotonic() + _START_SECONDS
        while b"Ray runtime started" not in log_path.read_bytes():
            if self._processes[name].poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"{name} does not start:\n{log_path.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def raylet(self, name: str) -> psutil.Process:
        return next(each for each in self._tree(name) if each.name() == "raylet")

    def kill_raylet(self, name: str) -> None:
        self.raylet(name).kill()

    def stop_node(self, name: str) -> None:
        """Every process of the node keeps its connections and does not answer."""
        self._signal(name, signal.SIGSTOP)

    def resume_node(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def remove(self, name: str) -> None:
        """What is left of a lost node ends."""
        for each in self._tree(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def processes_on(self, name: str) -> list[psutil.Process]:
        """The fleet's processes there: children of actors, which are children of the raylet."""
        return [each for each in self._tree(name) if "isochrone" in _words(each) and "--name" in _words(each)]

    def _signal(self, name: str, number: signal.Signals) -> None:
        for each in self._tree(name):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.send_signal(number)

    def _tree(self, name: str) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self._processes[name].pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


@contextlib.contextmanager
def watched_nodes(cluster: RayNodes, path: Path) -> Iterator[None]:
    """Writes to ``path`` when Ray begins and ends to count a node as alive."""
    words = [*cluster.head.prefix, sys.executable, "-m", "bench.engines.node_watch", cluster.address, str(path)]
    # Ray prints pages of its logs when a node is lost.
    process = subprocess.Popen(words, env=cluster.environment, stdout=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + _START_SECONDS
        while not path.exists():
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError("Ray does not list its nodes")
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()
