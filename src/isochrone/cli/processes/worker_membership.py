"""A worker's membership in a fleet, from the flags of ``isochrone serve``, and its link to the store.

Only this module imports the control plane, and only for a worker that belongs to a fleet.
"""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isochrone.worker.server.failures import StartFailed

if TYPE_CHECKING:
    from isochrone.control.agents.worker_link import WorkerLink
    from isochrone.control.state.process_records import WorkerRecord
    from isochrone.secure.access.keeper import AccessKeeper
    from isochrone.secure.fleet_key import FleetKey

#: Names are parts of keys in the store, and of lines on a terminal.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class WorkerMembership:
    """The flags of the membership. ``store`` "": the worker belongs to no fleet."""

    store: str
    fleet: str
    name: str
    pool: str
    tier: str
    device: str
    region: str
    memory: int
    lease_seconds: float
    repositories: tuple[str, ...] = ()
    #: None: whatever can write to the store belongs to the fleet.
    key: FleetKey | None = None
    accepts_unsealed: bool = False
    tls: bool = False
    permissive: bool = False
    #: Random per process. Only processes that can read it in the store may change the worker.
    control_token: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "control_token", secrets.token_urlsafe(32) if self.store else "")

    def check(self, control_mode: str, *, allow_http: bool, shared_port: bool = False) -> None:
        if control_mode != "explicit":
            raise StartFailed(
                "--store needs --model-control-mode explicit: the fleet's controller decides which models are loaded, "
                f"given {control_mode!r}"
            )
        if not allow_http:
            raise StartFailed("--store needs HTTP: the fleet's controller drives workers over it")
        if shared_port:
            raise StartFailed(
                "--store and --reuse-port: the fleet's controller must reach each worker by a port of its own; "
                "start several workers on different ports, a gateway spreads requests over them"
            )
        for flag, given in (("--fleet", self.fleet), ("--name", self.name or "worker")):
            if not _NAME.fullmatch(given):
                raise StartFailed(f"{flag}: expected letters, digits, '.', '_' and '-', given {given!r}")

    def link(self, host: str, keeper: AccessKeeper | None = None) -> WorkerLink:
        """The link. ``keeper``: gets the fleet's access rules; None: they do not count here. Raises ``ConfigError`` for
        an invalid store; a store that does not answer is waited for."""
        from isochrone.control.agents.access_following import AccessFollowing
        from isochrone.control.agents.process_number import process_number
        from isochrone.control.agents.worker_link import WorkerLink, advertised_host, new_incarnation
        from isochrone.control.state.keys import Keys
        from isochrone.control.state.process_records import WorkerRecord
        from isochrone.store.opening import open_store, seal_of

        incarnation = new_incarnation()

        def record_of(ports: Mapping[str, int]) -> WorkerRecord:
            return WorkerRecord(
                name=self.name or f"{socket.gethostname()}-{ports['http']}",
                host=advertised_host(host, self.store),
                port=ports["http"],
                # Each port of a worker speaks both protocols.
                grpc_port=ports.get("grpc", ports["http"]),
                metrics_port=ports.get("metrics", 0),
                tls=self.tls,
                permissive=self.permissive,
                pool=self.pool,
                tier=self.tier,
                device=self.device,
                region=self.region,
                memory=self.memory,
                repositories=self.repositories,
                incarnation=incarnation,
                pid=process_number(),
                control_token=self.control_token,
            )

        seal = seal_of(self.key, accepts_unsealed=self.accepts_unsealed)
        keys = Keys(self.fleet)
        access = None if keeper is None else AccessFollowing(keeper, keys.access)
        return WorkerLink(open_store(self.store, seal=seal), keys, record_of, self.lease_seconds, access)
