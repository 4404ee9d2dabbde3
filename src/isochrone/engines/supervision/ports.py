"""Reads the ports of a process from its command line, and decides whether two processes can run at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.control.fleet.derived.processes import ProcessSpec
from isochrone.control.fleet.settings.process_ports import EVERYWHERE


@dataclass(frozen=True, slots=True, order=True)
class Listening:
    """One port of one process."""

    port: int
    host: str
    #: The option of ``isochrone`` that names it.
    option: str

    def clashes(self, other: Listening) -> bool:
        if self.port != other.port:
            return False
        return self.host == other.host or self.host in EVERYWHERE or other.host in EVERYWHERE


def listening(spec: ProcessSpec) -> list[Listening]:
    """The ports that only this process can have: not those that it picks itself, nor those that it shares."""
    options = dict(zip(spec.arguments, spec.arguments[1:], strict=False))
    address = options.get("--listen", "")
    listen_host, _, listen_port = address.rpartition(":")
    host = options.get("--host", "0.0.0.0").removeprefix("[").removesuffix("]")
    found = [("--listen", listen_host.removeprefix("[").removesuffix("]"), listen_port)]
    found += [
        ("--http-port", host, options.get("--http-port", "")),
        ("--grpc-port", host, options.get("--grpc-port", "")),
    ]
    # The metrics page listens on the same address as the rest.
    found.append(("--metrics-port", found[0][1] if address else host, options.get("--metrics-port", "")))
    shared = "--reuse-port" in spec.arguments
    return [
        Listening(int(port), host, option)
        for option, host, port in found
        if port.isdigit() and int(port) and not (shared and option != "--metrics-port")
    ]


def reached_at(spec: ProcessSpec, machine: str) -> tuple[str, int] | None:
    """Host and port at which a process is reached; None: it picks its port. ``machine``: the address of its machine;
    "": this one."""
    places = listening(spec)
    if not places:
        return None
    host = places[0].host
    return machine if machine and host in EVERYWHERE else host, places[0].port


def conflicts(one: ProcessSpec, other: ProcessSpec) -> bool:
    """Whether they cannot both run."""
    if any(spec.needs is not None and spec.needs.own_address for spec in (one, other)):
        return False
    return any(mine.clashes(theirs) for mine in listening(one) for theirs in listening(other))
