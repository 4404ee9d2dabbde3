"""A real etcd of one or three members, each a process that can be killed, stopped, cut off and started again.

Data stays in each member's directory, so a member that was killed comes back with what it had. Must never leave a
member behind.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from bench.control.running_fleet import ETCD, Part
from bench.worker.peers.process import HOST, PEERS, PeerUnavailable, free_ports

#: Short, so that a run with hundreds of faults is not mostly waiting for elections; etcd's defaults are 100 and 1000.
_HEARTBEAT_MS, _ELECTION_MS = 50, 500


@dataclass(frozen=True)
class Member:
    """Where one member listens. ``prefix`` stands before its command: a way into its network."""

    name: str
    client: str
    peer: str
    prefix: tuple[str, ...] = ()


def binary() -> Path:
    """etcd, as Debian packages it or as ``make peers`` unpacked it."""
    found = shutil.which("etcd")
    unpacked = PEERS / "etcd" / "usr" / "bin" / "etcd"
    if found is None and not unpacked.exists():
        raise PeerUnavailable("etcd is not installed: apt install etcd-server, or make peers")
    return Path(found) if found else unpacked


def loopback_members(count: int) -> list[Member]:
    ports = free_ports(2 * count)
    return [Member(f"etcd-{n + 1}", f"{HOST}:{ports[2 * n]}", f"{HOST}:{ports[2 * n + 1]}") for n in range(count)]


class EtcdCluster:
    """``with EtcdCluster(directory, members) as cluster``: healthy when the block begins."""

    def __init__(self, directory: Path, members: Sequence[Member]) -> None:
        self._directory = directory
        self._binary = binary()
        self._members = {member.name: member for member in members}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        """As fleet.yaml's store has it."""
        return "etcd:" + ",".join(f"http://{member.client}" for member in self._members.values())

    @property
    def parts(self) -> list[Part]:
        return [Part(member.name, ETCD, member.client) for member in self._members.values()]

    def __enter__(self) -> EtcdCluster:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            for name in self._members:
                self.start(name)
            self._wait_healthy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def start(self, name: str) -> None:
        """Starts a member that does not run; it joins with the data it had."""
        member = self._members[name]
        cluster = ",".join(f"{each.name}=http://{each.peer}" for each in self._members.values())
        command: list[str | Path] = [
            *member.prefix,
            *(self._binary, "--name", name, "--data-dir", self._directory / name),
            *("--listen-client-urls", f"http://{member.client}", "--advertise-client-urls", f"http://{member.client}"),
            *("--listen-peer-urls", f"http://{member.peer}", "--initial-advertise-peer-urls", f"http://{member.peer}"),
            *("--initial-cluster", cluster, "--initial-cluster-token", "proof"),
            *("--heartbeat-interval", str(_HEARTBEAT_MS), "--election-timeout", str(_ELECTION_MS)),
        ]
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def pid(self, name: str) -> int | None:
        process = self._processes.get(name)
        return process.pid if process is not None and process.poll() is None else None

    def _wait_healthy(self, timeout_seconds: float = 30.0) -> None:
        ends = time.monotonic() + timeout_seconds
        for member in self._members.values():
            while not _is_healthy(member):
                if time.monotonic() > ends:
                    raise TimeoutError(f"{member.name} is not healthy; see {self._directory / member.name}.log")
                time.sleep(0.1)


def _is_healthy(member: Member) -> bool:
    try:
        return httpx.get(f"http://{member.client}/health", timeout=2.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
