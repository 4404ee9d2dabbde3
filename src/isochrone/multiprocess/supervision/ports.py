"""Public ports that several processes bind: chosen and reserved by the supervisor before it forks."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping


class PortInUse(Exception):
    """Another program has the port."""

    def __init__(self, service: str, host: str, port: int, error: OSError) -> None:
        super().__init__(f"cannot listen on {host}:{port} for {service}: {error.strerror or error}")
        self.service = service


def reserve(
    wanted: Mapping[str, tuple[str, int]], *, shared: bool = False
) -> tuple[dict[str, int], list[socket.socket]]:
    """Service → its port (for port 0, a free one), and the sockets that hold the ports while they are open.

    They are bound with SO_REUSEPORT and do not listen, so that they get no connections. ``shared``: other programs may
    share the ports; otherwise a port that somebody else listens on is an error, even if both set SO_REUSEPORT.
    """
    ports: dict[str, int] = {}
    held: list[socket.socket] = []
    for service, (host, port) in wanted.items():
        try:
            for family, _, _, _, address in socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            ):
                chosen = ports.get(service, port)
                place = (address[0], chosen, *address[2:])
                if chosen and not shared:
                    _bind(family, place, reuse_port=False).close()
                bound = _bind(family, place, reuse_port=True)
                held.append(bound)
                ports[service] = bound.getsockname()[1]
        except OSError as error:
            for each in held:
                each.close()
            raise PortInUse(service, host, port, error) from None
    return ports, held


def check(ports: Mapping[str, int], held: Iterable[socket.socket]) -> None:
    """Whether nobody has begun to listen on reserved ports: until somebody does, others may bind them, too."""
    for bound in held:
        address = bound.getsockname()
        try:
            _bind(bound.family, address, reuse_port=False).close()
        except OSError as error:
            service = next(name for name, port in ports.items() if port == address[1])
            raise PortInUse(service, address[0], address[1], error) from None


def _bind(family: int, address: tuple[object, ...], *, reuse_port: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
