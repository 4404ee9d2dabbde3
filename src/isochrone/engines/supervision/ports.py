"""Which ports a process will listen on, read from its command line. Decides whether two can be up at once."""

from __future__ import annotations

from dataclasses import dataclass

from isochrone.control.fleet.processes import ProcessSpec

_EVERY_ADDRESS = frozenset(("", "0.0.0.0", "::"))


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
        return self.host == other.host or self.host in _EVERY_ADDRESS or other.host in _EVERY_ADDRESS


def listening(spec: ProcessSpec) -> list[Listening]:
    """The ports that only this process can have: not one that it picks itself, nor one that it shares."""
    options = dict(zip(spec.arguments, spec.arguments[1:], strict=False))
    address = options.get("--listen", "")
    listen_host, _, listen_port = address.rpartition(":")
    host = options.get("--host", "0.0.0.0").removeprefix("[").removesuffix("]")
    found = [("--listen", listen_host.removeprefix("[").removesuffix("]"), listen_port)]
    found += [
        ("--http-port", host, options.get("--http-port", "")),
        ("--grpc-port", host, options.get("--grpc-port", "")),
    ]
    # Where the metrics page has no address of its own, it has the one of all the rest.
    found.append(("--metrics-port", found[0][1] if address else host, options.get("--metrics-port", "")))
    shared = "--reuse-port" in spec.arguments
    return [
        Listening(int(port), host, option)
        for option, host, port in found
        if port.isdigit() and int(port) and not (shared and option != "--metrics-port")
    ]


def in_the_way(one: ProcessSpec, other: ProcessSpec) -> bool:
    """They cannot both be up."""
    return any(mine.clashes(theirs) for mine in listening(one) for theirs in listening(other))
