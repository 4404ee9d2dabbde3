"""Addresses of workers as Envoy wants them: an IP address and a port. And which workers a subset names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.resolving.resolver import is_literal

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.fleet.member import Member


class Destinations:
    """The addresses of one fleet's workers."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: Hosts that are addresses: what they are does not change.
        self._literals: dict[str, bool] = {}

    def address(self, member: Member, is_grpc: bool) -> bytes:
        """Where a worker takes such requests; b"": its name leads to no address yet.

        Envoy looks no name up here. The picker's own connections to a worker say which of its addresses accepts them.
        """
        upstream = member.upstream
        host = upstream.host if self._is_literal(upstream.host) else member.connections.peer_host
        if not host:
            return b""
        port = upstream.grpc_port if is_grpc else upstream.port
        return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}").encode()

    def named(self, subset: frozenset[str], is_grpc: bool) -> frozenset[str]:
        """The workers that a subset of addresses names, by the names that the fleet has for them."""
        return frozenset(
            address
            for address, member in self._fleet.members.items()
            if address in subset or self.address(member, is_grpc).decode() in subset
        )

    def _is_literal(self, host: str) -> bool:
        known = self._literals.get(host)
        if known is None:
            if len(self._literals) >= 65_536:
                self._literals.clear()
            known = self._literals[host] = is_literal(host)
        return known
