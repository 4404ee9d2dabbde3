"""The records of a fleet's processes: how workers, gateways and controllers register, and how processes died.

The rules of ``records`` hold for their fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

#: In place of an incarnation: the leader registered the worker, by its address.
BY_ADDRESS = "address"
#: Headers of a controller that proves nothing.
NO_FIELDS: Final[Mapping[str, str]] = {}


def _scheme(is_tls: bool) -> str:
    return "https" if is_tls else "http"


def _url(is_tls: bool, host: str, port: int) -> str:
    return f"{_scheme(is_tls)}://{f'[{host}]' if ':' in host else host}:{port}"


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A worker that registered itself, or that the leader registered (a real Triton)."""

    name: str
    host: str
    port: int
    grpc_port: int
    metrics_port: int = 0
    pool: str = ""
    tier: str = ""
    device: str = ""
    region: str = ""
    #: Bytes that it may use for models; 0: unknown.
    memory: int = 0
    #: "isochrone", or "triton" for any other server of the protocol.
    kind: str = "isochrone"
    #: Differs from one start to the next.
    incarnation: str = ""
    pid: int = 0
    #: The token that control calls must carry; "": none is needed. Never shown.
    control_token: str = ""
    #: Its model repositories; (): not stated.
    repositories: tuple[str, ...] = ()
    #: All its ports speak TLS, and also accept plain connections.
    tls: bool = False
    permissive: bool = False

    @property
    def is_of_fleet(self) -> bool:
        """Whether it registered itself: servers at addresses get no credential of the fleet, which they could use."""
        return self.kind == "isochrone" and self.incarnation != BY_ADDRESS

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{_scheme(self.tls)}://{self.address}"

    @property
    def metrics_url(self) -> str:
        return _url(self.tls, self.host, self.metrics_port)


class GatewayRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A gateway that registered."""

    name: str
    host: str
    port: int
    metrics_port: int = 0
    incarnation: str = ""
    pid: int = 0
    #: The epoch that it serves; 0: none yet.
    epoch: int = 0
    #: The token that a controller sends to read its samples of requests.
    control_token: str = ""
    #: What it would not answer now, and why: by model, by worker's address, by key of a record that it cannot read.
    unserved: dict[str, str] = {}
    workers: dict[str, str] = {}
    faults: dict[str, str] = {}
    #: By name that does not resolve: why. Its last addresses are used.
    names: dict[str, str] = {}
    #: Its metrics port speaks TLS, and the port of its callers.
    tls: bool = False
    callers_tls: bool = False

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{_scheme(self.callers_tls)}://{self.address}"

    @property
    def metrics_url(self) -> str:
        return _url(self.tls, self.host, self.metrics_port)


class XdsServerRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A controller that serves xDS."""

    name: str
    host: str
    port: int
    #: The epoch that rollouts wait for no longer: all its clients have acknowledged it, or their time for it is over.
    #: And how many clients there are, late ones included.
    epoch: int = 0
    clients: int = 0


class ProcessRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that died, until it serves again; its supervisor writes the record. A status also uses it for a process
    that is not registered yet."""

    name: str
    role: str
    pool: str = ""
    #: Deaths since it last served, how the last process ended, and the last error in its log. 0: it is starting.
    deaths: int = 1
    how: str = ""
    error: str = ""
    #: After a death: why the next process has no machine yet; "": it has one, or the engine knows no reason.
    waits: str = ""
    #: Seconds since 1970. For display only.
    at: float = 0.0


class RestartsRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the applied file makes restart. Only the supervisor writes it."""

    #: Of the fleet record that it has read.
    generation: int
    #: Processes that do not serve with the settings of that file yet, sorted.
    processes: tuple[str, ...] = ()
    #: Since when, in seconds since 1970. For display only.
    at: float = 0.0
