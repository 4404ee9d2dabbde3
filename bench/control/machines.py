"""Machines for one run: network namespaces on a bridge, each with an address of its own. Needs root and ``ip``.

A machine is cut off by taking its cable down: packets vanish both ways without an error, as when a switch fails. The
clocks stay one clock, which is what histories need. Must never touch an interface or a namespace it did not make.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from bench.worker.peers.process import PeerUnavailable

_NETWORK = "10.77.{third}"


@dataclass(frozen=True)
class Machine:
    """One namespace."""

    name: str
    namespace: str
    #: Our end of its cable.
    cable: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command: runs it there. The command takes the place of ``ip``, so its pid is the one started."""
        return ("ip", "netns", "exec", self.namespace)


class Network:
    """``with Network(names) as network``: all machines joined."""

    def __init__(self, names: list[str]) -> None:
        tag = os.getpid() % 0xFFFF
        # Interface names have 15 characters at most.
        self._bridge = f"isobr{tag:x}"
        self._subnet = _NETWORK.format(third=tag % 250)
        self.machines = {
            name: Machine(name, f"iso-{tag:x}-{name}", f"iso{tag:x}v{number}", f"{self._subnet}.{number + 10}")
            for number, name in enumerate(names)
        }

    def __enter__(self) -> Network:
        if not is_possible():
            raise PeerUnavailable("network namespaces need root and the ip command of iproute2")
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("address", "add", f"{self._subnet}.1/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for machine in self.machines.values():
                self._make(machine)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self.machines.values():
            _ip("link", "delete", machine.cable, check=False)
            _ip("netns", "delete", machine.namespace, check=False)
        _ip("link", "delete", self._bridge, check=False)

    def cut(self, name: str) -> None:
        _ip("link", "set", self.machines[name].cable, "down")

    def join(self, name: str) -> None:
        _ip("link", "set", self.machines[name].cable, "up")

    def _make(self, machine: Machine) -> None:
        _ip("netns", "add", machine.namespace)
        _ip("link", "add", machine.cable, "type", "veth", "peer", "name", "eth0", "netns", machine.namespace)
        _ip("link", "set", machine.cable, "master", self._bridge)
        _ip("link", "set", machine.cable, "up")
        for words in (
            ("address", "add", f"{machine.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", machine.namespace, *words)


def is_possible() -> bool:
    """Whether namespaces can be created here."""
    if os.geteuid() != 0:
        return False
    name = f"iso-try-{os.getpid()}"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except (OSError, RuntimeError):
        return False
    return True


def _ip(*words: str, check: bool = True) -> None:
    done = subprocess.run(("ip", *words), capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"ip {' '.join(words)}: {done.stderr.strip()}")
