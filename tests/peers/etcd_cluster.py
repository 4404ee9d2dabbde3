"""Real etcd on free loopback ports: one member or three, that a test can kill, stop, resume and start again.

Members write under the directory they are given and are gone when the block ends. Must never touch an etcd it has not
started.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from bench.worker.peers.process import HOST, PEERS, free_ports

#: Milliseconds. Quick elections, and slack enough for two loaded cores.
HEARTBEAT, ELECTION = 50, 500
LIMIT_SECONDS = 30


def etcd_binary() -> str:
    unpacked = PEERS / "etcd" / "usr" / "bin" / "etcd"
    found = str(unpacked) if unpacked.exists() else shutil.which("etcd")
    assert found, "etcd is missing: make peers unpacks it"
    return found


class EtcdMember:
    def __init__(
        self, name: str, client_url: str, peer_url: str, directory: Path, *arguments: str, command: Sequence[str] = ()
    ) -> None:
        """``command`` runs etcd, as in ``ip netns exec NAME``; nothing: it runs as it is."""
        self.name, self.client_url, self.peer_url = name, client_url, peer_url
        self._directory, self._arguments, self._command = directory, arguments, command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, cluster: str) -> None:
        """Also again: what it wrote is still there."""
        assert self._process is None
        environment = dict(os.environ)
        if platform.machine() == "aarch64":
            # etcd 3.4 wants to be asked twice there.
            environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._command,
                    etcd_binary(),
                    *("--name", self.name, "--data-dir", str(self._directory / self.name)),
                    *("--listen-client-urls", self.client_url, "--advertise-client-urls", self.client_url),
                    *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
                    *("--initial-cluster", cluster, "--initial-cluster-token", str(self._directory)),
                    *("--heartbeat-interval", str(HEARTBEAT), "--election-timeout", str(ELECTION)),
                    *self._arguments,
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Keeps its connections and says nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log_tail(self) -> str:
        return (self._directory / f"{self.name}.log").read_text(errors="replace")[-2000:]


class EtcdCluster:
    def __init__(self, members: Sequence[EtcdMember]) -> None:
        self.members = list(members)
        self._cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)

    @property
    def url(self) -> str:
        """For ``open_store``."""
        return "etcd:" + ",".join(member.client_url for member in self.members)

    def start(self, *members: EtcdMember) -> None:
        """These, or all; returns when each answers with a majority behind it."""
        for member in members or self.members:
            member.start(self._cluster)
        for member in members or self.members:
            self.wait_ready(member)

    def wait_ready(self, member: EtcdMember) -> None:
        give_up = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < give_up:
            if _asked(f"{member.client_url}/v3/kv/range", {"key": "AA=="}) is not None:
                return
            time.sleep(0.02)
        raise AssertionError(f"etcd {member.name} is not ready: {member.log_tail()}")

    def leader(self) -> EtcdMember:
        """The member that a majority follows now."""
        give_up = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < give_up:
            for member in self.members:
                status = _asked(f"{member.client_url}/v3/maintenance/status", {})
                header = status.get("header") if status else None
                if status and isinstance(header, dict) and status.get("leader") == header.get("member_id"):
                    return member
            time.sleep(0.02)
        raise AssertionError("the cluster has no leader")

    def close(self) -> None:
        for member in self.members:
            member.kill()


@contextlib.contextmanager
def running(members: Sequence[EtcdMember]) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(members)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def etcd_cluster(directory: Path, size: int, *arguments: str, scheme: str = "http") -> Iterator[EtcdCluster]:
    """On this machine's loopback. ``arguments`` and ``scheme`` are of every member's client side."""
    ports = iter(free_ports(2 * size))
    with running(
        [
            EtcdMember(
                f"m{number + 1}",
                f"{scheme}://{HOST}:{next(ports)}",
                f"http://{HOST}:{next(ports)}",
                directory,
                *arguments,
            )
            for number in range(size)
        ]
    ) as cluster:
        yield cluster


def _asked(url: str, body: dict[str, object]) -> dict[str, object] | None:
    try:
        response = httpx.post(url, json=body, timeout=2, trust_env=False, verify=False)
    except httpx.HTTPError:
        return None
    answer: dict[str, object] = response.json()
    return answer if response.status_code == 200 else None
