"""One server of the fleet: its address and connections, its endpoint, and what it serves by its own index."""

from __future__ import annotations

from collections.abc import Mapping

from isochrone.gateway.replicas import Endpoint
from isochrone.gateway.upstream.addresses import Upstream
from isochrone.gateway.upstream.connections import Connections


class Member:
    """One server. ``connections``: its own; a simulated server has none."""

    def __init__(self, upstream: Upstream, connections: Connections, now: int) -> None:
        self.upstream = upstream
        self.endpoint = Endpoint(
            upstream.address, tier=upstream.tier, device=upstream.device, region=upstream.region, now=now
        )
        self.endpoint.handle = self
        #: Nothing is known of it yet.
        self.endpoint.healthy = False
        self.connections = connections
        #: To its metrics page, where that is another port.
        self.metrics_connections: Connections | None = None
        #: Model → version → digest ("" where it tells none) of what is ready there; None: not known, so that it gets
        #: nothing.
        self.serves: Mapping[str, Mapping[str, str]] | None = None
        #: Why it is not healthy; "": it is, or has not answered yet.
        self.fault = ""
        #: Answers that were not the protocol's, and when the last of them was logged.
        self.foreign_answers = 0
        self.foreign_at = 0
        #: Join time of the process that reported its extensions, and the extensions.
        self.extensions: tuple[int, frozenset[str]] | None = None
        #: The probe under way, and when it was last asked or answered one.
        self.probe: object | None = None
        self.probed_at = 0

    @property
    def known_extensions(self) -> frozenset[str] | None:
        """Its protocol extensions; None: not known of the process that serves there now."""
        if self.extensions is None or self.extensions[0] != self.endpoint.joined_at:
            return None
        return self.extensions[1]

    def close(self) -> None:
        """Gives up every connection to it."""
        self.connections.close()
        if self.metrics_connections is not None:
            self.metrics_connections.close()
