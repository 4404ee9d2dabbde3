"""Flags of TLS for the processes of a fleet: each has the fleet's certificate, as a server and as a client. Pure."""

from __future__ import annotations

from pathlib import Path

from isochrone.control.fleet.derived.locations import absolute
from isochrone.control.fleet.settings.sections import FleetSections, Gateway


def tls_of_controllers(fleet: FleetSections, directory: Path) -> tuple[str, ...]:
    return (*_certificate(fleet, directory), *_calls(fleet, directory), *_permissive(fleet))


def tls_of_gateways(fleet: FleetSections, gateway: Gateway, directory: Path) -> tuple[str, ...]:
    own = _certificate(fleet, directory) if gateway.tls else ()
    callers = fleet.security.tls.client_ca
    asked = ("--tls-client-ca", str(absolute(callers, directory))) if own and callers is not None else ()
    return (*own, *asked, *_calls(fleet, directory), *_permissive(fleet))


def tls_of_workers(fleet: FleetSections, directory: Path) -> tuple[str, ...]:
    """Only processes of the fleet call them."""
    authorities = fleet.security.tls.ca
    asked = ("--tls-client-ca", str(absolute(authorities, directory))) if authorities is not None else ()
    return (*_certificate(fleet, directory), *asked, *_permissive(fleet))


def _certificate(fleet: FleetSections, directory: Path) -> tuple[str, ...]:
    tls = fleet.security.tls
    if tls.cert is None or tls.key is None:
        return ()
    return ("--tls-cert", str(absolute(tls.cert, directory)), "--tls-key", str(absolute(tls.key, directory)))


def _calls(fleet: FleetSections, directory: Path) -> tuple[str, ...]:
    tls = fleet.security.tls
    if tls.cert is None or tls.key is None or tls.ca is None:
        return ()
    files = (("--upstream-ca", tls.ca), ("--upstream-cert", tls.cert), ("--upstream-key", tls.key))
    words = [word for flag, file in files for word in (flag, str(absolute(file, directory)))]
    return (*words, *(("--upstream-server-name", tls.server_name) if tls.server_name else ()))


def _permissive(fleet: FleetSections) -> tuple[str, ...]:
    tls = fleet.security.tls
    return ("--tls-permissive",) if tls.cert is not None and tls.mode == "permissive" else ()
