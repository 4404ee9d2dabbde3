"""Flags of access control, for workers, gateways and controllers."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer

from isochrone.errors import ConfigError, FlagError
from isochrone.secure.exposure import exposure
from isochrone.secure.fleet_key import FleetKey

log = structlog.get_logger(__name__)

#: In place of a file: the rules in the fleet's store. A file of that name is ./@fleet.
FLEET: Final = Path("@fleet")

AccessOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Who may do what: a file with tokens and roles, followed as it changes; @fleet, with --store: the rules"
        " of the fleet, which its controllers read. See docs/access.md.",
        show_default="off: every caller may do everything",
    ),
]
FleetKeyOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="With --store: the fleet's key, which proves that this process belongs to the fleet.",
        show_default="none: whatever can write to the store belongs to the fleet",
    ),
]
AcceptUnsealedOption = Annotated[
    bool,
    typer.Option(
        "--accept-unsealed/--refuse-unsealed",
        help="With --fleet-key: also accept records without a seal, while a fleet gets its key.",
    ),
]
UpstreamTokenOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the token that the gateway's own calls to workers carry."),
]
RequireSecureOption = Annotated[
    bool,
    typer.Option(
        "--require-secure/--no-require-secure",
        help="Refuse to start where others reach it without TLS or an access file.",
    ),
]

HealthPortOption = Annotated[
    int,
    typer.Option(
        help="Port for /v2/health/* alone, without TLS and tokens, as probes of Kubernetes need it; 0 picks a free one,"
        " -1: none.",
    ),
]


def read_access(access: Path | None, store: str, key: FleetKey | None) -> tuple[Path | None, bool]:
    """The access file, and whether the rules of the fleet count in its place. Raises ``FlagError``."""
    if access != FLEET:
        return access, False
    if not store:
        raise FlagError("--access", "--store beside @fleet, since the rules of a fleet are in its store", "no --store")
    if key is None:
        expected = "--fleet-key beside @fleet, by which the processes of a fleet prove to each other who they are"
        raise FlagError("--access", expected, "no --fleet-key")
    return None, True


def check_exposure(service: str, hosts: Collection[str], *, tls: bool, access: bool, required: bool) -> None:
    """Log what a server lacks that others can reach, or raise ``NotSecure``."""
    line = exposure(service, hosts, tls=tls, access=access)
    if line and required:
        raise NotSecure(f"--require-secure: {line}")
    if line:
        log.warning(line)


class NotSecure(ConfigError):
    """The message says what to change."""

    def __init__(self, text: str) -> None:
        super().__init__("--require-secure", "", "TLS and an access file", "a port that others reach")
        self.args = (text,)
