"""Three etcd members in network namespaces of their own, so that one can be cut off from the others while it lives.

Each member has two cables: one to this machine, on which clients come, and one to a bridge where the members meet.
``cut`` pulls the second one. Needs root, as everything about networks does; leaves no namespace and no link behind.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.control.etcd_cluster import EtcdCluster, Member

CLIENT_PORT, PEER_PORT = 2379, 2380


class CutOffCluster:
    def __init__(self, cluster: EtcdCluster, peer_cables: dict[str, str]) -> None:
        self.cluster = cluster
        self._peer_cables = peer_cables

    def cut(self, member: Member) -> None:
        """It answers clients and hears of no other member."""
        _ip("link", "set", self._peer_cables[member.name], "down")

    def mend(self, member: Member) -> None:
        _ip("link", "set", self._peer_cables[member.name], "up")


@contextlib.contextmanager
def cut_off_cluster(directory: Path, size: int = 3) -> Iterator[CutOffCluster]:
    # Names of links have at most 15 characters, and several runs may be on one machine.
    mark = f"{os.getpid() % 0xFFFF:04x}"
    network = f"10.{64 + os.getpid() % 128}"
    bridge = f"iso{mark}br"
    members, cables = [], {}
    with contextlib.ExitStack() as undo:
        _ip("link", "add", bridge, "type", "bridge")
        undo.callback(_ip, "link", "del", bridge)
        _ip("link", "set", bridge, "up")
        for number in range(1, size + 1):
            namespace, name = f"iso{mark}n{number}", f"m{number}"
            client_cable, cables[name] = f"iso{mark}c{number}", f"iso{mark}p{number}"
            _ip("netns", "add", namespace)
            undo.callback(_ip, "netns", "del", namespace)
            for cable, inner in ((client_cable, "client"), (cables[name], "peers")):
                _ip("link", "add", cable, "type", "veth", "peer", "name", inner, "netns", namespace)
                # With its namespace it would go too, but some time later.
                undo.callback(_ip, "link", "del", cable)
            _ip("link", "set", cables[name], "master", bridge)
            _ip("addr", "add", f"{network}.{number}.1/24", "dev", client_cable)
            _ip("-n", namespace, "addr", "add", f"{network}.{number}.2/24", "dev", "client")
            _ip("-n", namespace, "addr", "add", f"{network}.200.{number}/24", "dev", "peers")
            for cable in (client_cable, cables[name]):
                _ip("link", "set", cable, "up")
            for cable in ("lo", "client", "peers"):
                _ip("-n", namespace, "link", "set", cable, "up")
            members.append(
                Member(
                    name,
                    f"{network}.{number}.2:{CLIENT_PORT}",
                    f"{network}.200.{number}:{PEER_PORT}",
                    ("ip", "netns", "exec", namespace),
                )
            )
        with EtcdCluster(directory, members) as cluster:
            yield CutOffCluster(cluster, cables)


def _ip(*arguments: str) -> None:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()} (network namespaces need root)"
