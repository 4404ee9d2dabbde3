"""Flags of TLS for the ports of workers, gateways and controllers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from isochrone.errors import InvalidArgument
from isochrone.wire.tls.contexts import PROTOCOLS, ServerTls, server_context

TlsKeyOption = Annotated[Path | None, typer.Option(help="PEM key of the certificate.")]
TlsClientCaOption = Annotated[
    Path | None, typer.Option(help="Require client certificates signed by this CA.", show_default="none are asked for")
]
TlsPermissiveOption = Annotated[
    bool,
    typer.Option(
        "--tls-permissive/--no-tls-permissive",
        help="With TLS, also accept plain connections, and call workers of the fleet that have no TLS yet: while a"
        " fleet changes to TLS.",
    ),
]

ControlPermissiveOption = Annotated[
    bool,
    typer.Option(
        "--tls-permissive/--no-tls-permissive",
        help="With --upstream-ca, also call processes of the fleet that have no TLS yet.",
    ),
]


def read_tls(
    certificate: Path | None,
    key: Path | None,
    client_ca: Path | None,
    permissive: bool = False,
    *,
    protocols: Sequence[str] = PROTOCOLS,
    fleet_ca: Path | None = None,
) -> ServerTls | None:
    """The context of ``--tls-cert``, ``--tls-key`` and ``--tls-client-ca``; None: without TLS. ``fleet_ca``: the
    authorities of the fleet's processes, which are callers where certificates are asked for."""
    if bool(certificate) != bool(key):
        raise InvalidArgument("--tls-cert and --tls-key go together")
    if certificate is None or key is None:
        if client_ca is not None:
            raise InvalidArgument("--tls-client-ca needs --tls-cert and --tls-key")
        return None
    accepted = () if client_ca is None else tuple(each for each in (client_ca, fleet_ca) if each is not None)
    return ServerTls(certificate, key, accepted, permissive=permissive, protocols=protocols)


def read_metrics_tls(
    tls: ServerTls | None,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    store: str,
    permissive: bool = False,
) -> ServerTls | None:
    """Of a gateway's metrics port. In a fleet it is for the fleet's processes, by the certificate that they know the
    gateway by; otherwise it is as the port of its callers."""
    if store and ca is not None and certificate is not None and key is not None:
        return server_context(certificate, key, ca, permissive=permissive)
    return tls
