"""Flags of TLS for the calls that gateways, pickers and controllers make to workers and to each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isochrone.errors import InvalidArgument
from isochrone.wire.tls.client_tls import ClientTls

UpstreamCaOption = Annotated[
    Path | None,
    typer.Option(
        help="PEM authorities that sign the workers' certificates: TLS to all workers.", show_default="no TLS"
    ),
]
UpstreamCertOption = Annotated[
    Path | None, typer.Option(help="PEM certificate shown to workers that ask for one.", show_default="none")
]
UpstreamKeyOption = Annotated[Path | None, typer.Option(help="PEM key of --upstream-cert.", show_default="none")]
UpstreamServerNameOption = Annotated[
    str,
    typer.Option(help="Name in the workers' certificates.", show_default="the name or address of each worker"),
]


def read_upstream_tls(
    ca: Path | None, certificate: Path | None, key: Path | None, server_name: str
) -> ClientTls | None:
    """What connections to workers need; None: they are plain."""
    if bool(certificate) != bool(key):
        raise InvalidArgument("--upstream-cert and --upstream-key go together")
    if ca is None:
        if certificate is not None or server_name:
            raise InvalidArgument("--upstream-cert and --upstream-server-name need --upstream-ca")
        return None
    return ClientTls(ca, certificate, key, server_name)
