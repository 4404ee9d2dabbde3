"""Addresses of workers as Envoy wants them: an IP address and a port. And which workers a request may go to by them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isochrone.resolving.resolver import is_literal

if TYPE_CHECKING:
    from isochrone.gateway.fleet.fleet import Fleet
    from isochrone.gateway.fleet.member import Member
    from isochrone.gateway.upstream.addresses import Upstream


class Destinations:
    """The addresses of one fleet's workers."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        #: Hosts that are addresses: what they are does not change.
        self._literals: dict[str, bool] = {}
        #: Healthy workers without an address, and the change of endpoints up to which they are known.
        self._unknown: frozenset[str] = frozenset()
        self._seen = -1

    def address(self, member: Member, is_grpc: bool) -> bytes:
        """Where a worker takes such requests; b"": its name leads to no address yet.

        Envoy looks no name up here. The picker's own connections to a worker say which of its addresses accepts them.
        """
        upstream = member.upstream
        host = upstream.host if self._is_literal(upstream.host) else member.connections.peer_host
        return _joined(host, upstream, is_grpc).encode() if host else b""

    def allowed(self, subset: frozenset[str] | None, is_grpc: bool) -> frozenset[str] | None:
        """The workers that a request may go to, by the names that the fleet has for them; None: to any.

        ``subset``: addresses that Envoy restricts it to; None: it does not.
        """
        revision = self._fleet.endpoint_changes.state_revision
        if self._unknown or self._seen != revision:
            # An address stays known, so all are looked through only when an endpoint has changed.
            self._seen = revision
            self._unknown = frozenset(
                name
                for name, member in self._fleet.members.items()
                if member.endpoint.healthy and not self.address(member, is_grpc)
            )
        if subset is not None:
            return self.named(subset, is_grpc) - self._unknown
        return frozenset(self._fleet.members) - self._unknown if self._unknown else None

    def named(self, subset: frozenset[str], is_grpc: bool) -> frozenset[str]:
        """The workers that a subset of addresses names, by the names that the fleet has for them.

        A worker has a port for each protocol: one that the subset has for the other does not count.
        """
        return frozenset(
            name
            for name, member in self._fleet.members.items()
            if self.address(member, is_grpc).decode() in subset
            or _joined(member.upstream.host, member.upstream, is_grpc) in subset
        )

    def least_busy(self, subset: frozenset[str] | None, is_grpc: bool) -> list[bytes]:
        """The addresses of those healthy workers that have the fewest requests from here. ``subset``: of these workers
        alone; None: of all."""
        known = [
            (member.endpoint.in_flight, address)
            for member in self._fleet.healthy
            if subset is None or member.endpoint.address in subset
            if (address := self.address(member, is_grpc))
        ]
        least = min((in_flight for in_flight, _ in known), default=0)
        return [address for in_flight, address in known if in_flight == least]

    def _is_literal(self, host: str) -> bool:
        known = self._literals.get(host)
        if known is None:
            if len(self._literals) >= 65_536:
                self._literals.clear()
            known = self._literals[host] = is_literal(host)
        return known


def _joined(host: str, upstream: Upstream, is_grpc: bool) -> str:
    port = upstream.grpc_port if is_grpc else upstream.port
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
