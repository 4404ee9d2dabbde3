"""A real etcd of one or three members, each a process that can be killed, stopped, cut off and started again.

Data stays in each member's directory, so a member that was killed comes back with what it had. Must never leave a
member behind, nor touch an etcd it has not started.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.control.running_fleet import ETCD, Part
from bench.ports import free_ports
from bench.worker.peers.process import HOST, PEERS, PeerUnavailable

#: Short, so that a run with hundreds of faults is not mostly waiting for elections; etcd's defaults are 100 and 1000.
_HEARTBEAT_MS, _ELECTION_MS = 50, 500
_READY_SECONDS = 30.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Member:
    """Where one member listens. ``prefix`` stands before its command: a way into its network."""

    name: str
    client: str
    peer: str
    prefix: tuple[str, ...] = ()
    #: Of its side for clients: "https" needs a certificate among the arguments.
    scheme: str = "http"
    arguments: tuple[str, ...] = ()

    @property
    def client_url(self) -> str:
        return f"{self.scheme}://{self.client}"


def binary() -> Path:
    """etcd, as Debian packages it or as ``make peers`` unpacked it."""
    found = shutil.which("etcd")
    unpacked = PEERS / "etcd" / "usr" / "bin" / "etcd"
    if found is None and not unpacked.exists():
        raise PeerUnavailable("etcd is not installed: apt install etcd-server, or make peers")
    return Path(found) if found else unpacked


def loopback_members(count: int, *arguments: str, scheme: str = "http") -> list[Member]:
    ports = iter(free_ports(2 * count))
    return [
        Member(f"etcd-{n + 1}", f"{HOST}:{next(ports)}", f"{HOST}:{next(ports)}", (), scheme, arguments)
        for n in range(count)
    ]


class EtcdCluster:
    """``with EtcdCluster(directory, members) as cluster``: healthy when the block begins."""

    def __init__(self, directory: Path, members: Sequence[Member]) -> None:
        self._directory = directory
        self._binary = binary()
        self._members = {member.name: member for member in members}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def members(self) -> list[Member]:
        return list(self._members.values())

    @property
    def url(self) -> str:
        """As fleet.yaml's store has it."""
        return "etcd:" + ",".join(member.client_url for member in self._members.values())

    @property
    def parts(self) -> list[Part]:
        return [Part(member.name, ETCD, member.client) for member in self._members.values()]

    def __enter__(self) -> EtcdCluster:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            for name in self._members:
                self.start(name)
            for name in self._members:
                self.wait_ready(name)
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
            *("--listen-client-urls", member.client_url, "--advertise-client-urls", member.client_url),
            *("--listen-peer-urls", f"http://{member.peer}", "--initial-advertise-peer-urls", f"http://{member.peer}"),
            *("--initial-cluster", cluster, "--initial-cluster-token", str(self._directory)),
            *("--heartbeat-interval", str(_HEARTBEAT_MS), "--election-timeout", str(_ELECTION_MS)),
            *member.arguments,
        ]
        # etcd 3.4 needs the call twice.
        arm = {"ETCD_UNSUPPORTED_ARCH": "arm64"} if platform.machine() == "aarch64" else {}
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **arm},
            )

    def pid(self, name: str) -> int | None:
        process = self._processes.get(name)
        return process.pid if process is not None and process.poll() is None else None

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def stop(self, name: str) -> None:
        """It keeps its connections and does not answer."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._processes[name].send_signal(signal.SIGCONT)

    def wait_ready(self, name: str) -> None:
        """Until it answers with a majority behind it."""
        ends = time.monotonic() + _READY_SECONDS
        while _asked(self._members[name], "kv/range", {"key": "AA=="}) is None:
            if time.monotonic() > ends:
                raise TimeoutError(f"{name} is not healthy; see {self._directory / name}.log")
            time.sleep(_POLL_SECONDS)

    def leader(self) -> Member:
        """The member that a majority follows now."""
        ends = time.monotonic() + _READY_SECONDS
        while time.monotonic() < ends:
            for member in self._members.values():
                status = _asked(member, "maintenance/status", {})
                if status and status.get("leader") == status.get("header", {}).get("member_id"):
                    return member
            time.sleep(_POLL_SECONDS)
        raise TimeoutError(f"etcd has no leader; see the logs in {self._directory}")


def _asked(member: Member, path: str, body: dict[str, str]) -> dict[str, Any] | None:
    """The answer of a member's JSON API; None: it does not answer now."""
    try:
        response = httpx.post(f"{member.client_url}/v3/{path}", json=body, timeout=2.0, trust_env=False, verify=False)
    except httpx.TransportError:
        return None
    answer: dict[str, Any] = response.json()
    return answer if response.status_code == 200 else None
