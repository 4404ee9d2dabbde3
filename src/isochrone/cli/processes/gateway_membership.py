"""A gateway's membership in a fleet, from the flags of ``isochrone gateway``, and its link to the store.

Only this module imports the control plane, and only for a gateway that belongs to a fleet.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isochrone.gateway.server.server import GatewayServer

if TYPE_CHECKING:
    from isochrone.control.agents.gateway_link import GatewayLink
    from isochrone.secure.fleet_key import FleetKey


@dataclass(frozen=True, slots=True)
class GatewayMembership:
    """The flags of the membership. ``store`` "": the gateway belongs to no fleet."""

    store: str
    fleet: str
    name: str
    advertise: str
    lease_seconds: float
    #: None: whatever can write to the store belongs to the fleet.
    key: FleetKey | None = None
    accepts_unsealed: bool = False

    def link(self, server: GatewayServer) -> GatewayLink:
        """The link, once the ports are known."""
        from isochrone.control.agents.access_following import AccessFollowing
        from isochrone.control.agents.gateway_link import GatewayLink
        from isochrone.control.agents.link_rules import LinkRules
        from isochrone.control.agents.process_number import process_number
        from isochrone.control.agents.worker_link import advertised_host, new_incarnation
        from isochrone.control.desired.applied import read_rules
        from isochrone.control.state.keys import Keys
        from isochrone.control.state.process_records import GatewayRecord
        from isochrone.store.opening import open_store, seal_of

        port = server.ports[server.service]
        record = GatewayRecord(
            name=self.name or f"{socket.gethostname()}-{port}",
            host=self.advertise or advertised_host(server.settings.host, self.store),
            port=port,
            metrics_port=server.ports.get("metrics", 0),
            tls=server.settings.metrics_tls is not None,
            callers_tls=server.settings.tls is not None,
            incarnation=new_incarnation(),
            pid=process_number(),
            control_token=secrets.token_urlsafe(32),
        )
        rules = LinkRules(lease=self.lease_seconds)
        keys = Keys(self.fleet)
        keeper = server.keeper if server.settings.is_fleet_access else None
        access = None if keeper is None else AccessFollowing(keeper, keys.access)
        return GatewayLink(
            open_store(self.store, seal=seal_of(self.key, accepts_unsealed=self.accepts_unsealed)),
            keys,
            server.gateway,
            record,
            read_rules,
            rules,
            lambda taken: server.fail(taken.message),
            access,
        )
